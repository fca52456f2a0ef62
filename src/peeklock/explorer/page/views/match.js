import { EntityPage } from "../entity.js";
import { html } from "../lib.js";
import { Empty } from "../ui.js";

export default function Match({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="match">
    ${() => html`<${Empty} title="Not in the explorer yet">The rules of the subscriptions decide which message arrives where.<//>`}
  <//>`;
}
