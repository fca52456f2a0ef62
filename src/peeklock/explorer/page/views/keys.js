import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Keys() {
  return html`<${Page} title="Keys">
    <${Empty} title="Not in the explorer yet">Use <code>peeklock keys</code> on the command line.<//>
  <//>`;
}
