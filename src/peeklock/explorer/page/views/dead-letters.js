import { EntityPage } from "../entity.js";
import { html } from "../lib.js";
import { Empty } from "../ui.js";

export default function DeadLetters({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="dead-letters">
    ${() => html`<${Empty} title="Not in the explorer yet">Use <code>peeklock peek</code> and <code>peeklock resubmit</code> on the command line.<//>`}
  <//>`;
}
