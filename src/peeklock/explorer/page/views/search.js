import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Search() {
  return html`<${Page} title="Search">
    <${Empty} title="Not in the explorer yet">Use <code>peeklock search</code> on the command line.<//>
  <//>`;
}
