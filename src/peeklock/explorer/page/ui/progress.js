import { html } from "../lib.js";
import { number } from "../format.js";

/** A bar. `of` undefined = not known: the bar only moves. `label` names what is done; `note` is beside it. */
export function Progress({ done = 0, of, label, note }) {
  const isKnown = of !== undefined && of !== null;
  const part = isKnown ? (of === 0 ? 1 : Math.min(1, done / of)) : 0;
  return html`<div class="progress">
    <div
      class=${`progress-bar ${isKnown ? "" : "unknown"}`}
      role="progressbar"
      aria-label=${label}
      aria-valuemin="0"
      aria-valuemax=${isKnown ? of : undefined}
      aria-valuenow=${isKnown ? Math.min(done, of) : undefined}
    >
      <div class="progress-fill" style=${{ transform: `scaleX(${isKnown ? part : 0.3})` }}></div>
    </div>
    <div class="progress-note">
      <span>${note}</span>
      <span class="mono">${number(done)}${isKnown ? ` / ${number(of)}` : ""}</span>
    </div>
  </div>`;
}
