import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Namespaces() {
  return html`<${Page} title="Namespaces">
    <${Empty} title="Not in the explorer yet">Use <code>peeklock namespaces</code> on the command line.<//>
  <//>`;
}
