import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Connections() {
  return html`<${Page} title="Connections">
    <${Empty} title="Not in the explorer yet">Use <code>peeklock connections</code> on the command line.<//>
  <//>`;
}
