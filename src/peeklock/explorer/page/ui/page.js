import { html } from "../lib.js";
import { useTitle } from "../hooks.js";

/** The frame of a view: `title`, `lead` (a sentence), `actions` (buttons), and the view. `isFull`: as high as the window. */
export function Page({ title, name = title, lead, actions, above, children, isFull }) {
  useTitle(typeof name === "string" ? name : "");
  return html`<div class=${`page ${isFull ? "full" : ""}`}>
    ${above}
    <header class="page-head">
      <div class="page-name">
        <h1>${title}</h1>
        ${lead && html`<p class="lead">${lead}</p>`}
      </div>
      ${actions && html`<div class="page-actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}
