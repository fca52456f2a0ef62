import { html } from "../lib.js";
import { Empty, Page } from "../ui.js";

export default function Create() {
  return html`<${Page} title="Create an entity">
    <${Empty} title="Not in the explorer yet">Use a Config.json or the administration client of your language.<//>
  <//>`;
}
