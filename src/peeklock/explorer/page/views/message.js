import { EntityPage } from "../entity.js";
import { html } from "../lib.js";
import { Empty } from "../ui.js";

export default function Message({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="messages">
    ${() => html`<${Empty} title="Not in the explorer yet">Use <code>peeklock peek</code> on the command line.<//>`}
  <//>`;
}
