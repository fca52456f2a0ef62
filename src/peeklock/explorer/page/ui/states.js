import { html, useEffect, useState } from "../lib.js";
import { Button } from "./button.js";
import { Icon } from "./icon.js";

/** Nothing to show: `title` says what is not there, the children what to do. */
export const Empty = ({ title, icon = "info", children }) => html`<div class="state">
  <${Icon} name=${icon} size=${24} />
  <div class="state-title">${title}</div>
  <div class="state-text">${children}</div>
</div>`;

/** A refusal or failure, as `Problem` of api.js has it. `onRetry`: offers to try again. */
export function Refusal({ problem, onRetry }) {
  const { title, detail, message, trackingId } = problem;
  return html`<div class="refusal" role="alert">
    <${Icon} name="error" />
    <div>
      <div class="refusal-title">${title ?? "This page has met a defect"}</div>
      <div>${title ? detail : message}</div>
      ${trackingId && html`<div class="faint mono">tracking id ${trackingId}</div>`}
    </div>
    ${onRetry && html`<${Button} small icon="refresh" onClick=${onRetry}>Try again<//>`}
  </div>`;
}

/** Stands where something is loaded; it is blank at first, so that a quick answer does not flash. */
export function Loading({ text = "Loading" }) {
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 200);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="state" aria-busy="true">
    ${isShown && html`<span class="spinner large" aria-hidden="true"></span><div class="state-text">${text}…</div>`}
  </div>`;
}
