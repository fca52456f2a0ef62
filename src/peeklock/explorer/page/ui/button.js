import { html } from "../lib.js";
import { Icon } from "./icon.js";

/** A button. `kind`: "plain", "primary", "danger" or "quiet"; `icon`: a name; `isBusy`: shows that it works. */
export function Button({ kind = "plain", icon, isBusy, children, disabled, type = "button", small, ...rest }) {
  return html`<button
    type=${type}
    class=${`button ${kind} ${small ? "small" : ""}`}
    disabled=${disabled || isBusy}
    aria-busy=${isBusy ? "true" : undefined}
    ...${rest}
  >
    ${isBusy ? html`<span class="spinner" aria-hidden="true"></span>` : icon && html`<${Icon} name=${icon} />`}
    ${children && html`<span>${children}</span>`}
  </button>`;
}

/** A button of an icon alone; `label` is its name. */
export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="button quiet icon-only" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}

/** A link that looks like a button. */
export function LinkButton({ kind = "plain", icon, children, href, ...rest }) {
  return html`<a class=${`button ${kind}`} href=${href} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}<span>${children}</span>
  </a>`;
}
