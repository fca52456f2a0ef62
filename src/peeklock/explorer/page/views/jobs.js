import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Jobs() {
  return html`<${Page} title="Jobs">
    <${Empty} title="Not in the explorer yet">Use <code>peeklock move</code>, <code>resubmit</code> and <code>purge</code> on the command line.<//>
  <//>`;
}
