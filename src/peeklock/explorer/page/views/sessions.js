import { EntityPage } from "../entity.js";
import { html } from "../lib.js";
import { Empty } from "../ui.js";

export default function Sessions({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="sessions">
    ${() => html`<${Empty} title="Not in the explorer yet">Use the JSON API: <code>GET /entities/{entity}/sessions</code>.<//>`}
  <//>`;
}
