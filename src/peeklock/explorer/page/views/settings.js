import { EntityPage } from "../entity.js";
import { html } from "../lib.js";
import { Empty } from "../ui.js";

export default function Settings({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="settings">
    ${() => html`<${Empty} title="Not in the explorer yet">Use the administration client of your language.<//>`}
  <//>`;
}
