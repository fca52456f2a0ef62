import { html, useEffect } from "../lib.js";
import { makeStore, useStore } from "../store.js";
import { IconButton } from "./button.js";
import { Icon } from "./icon.js";

const SHOWN_MS = { good: 4000, bad: 12_000 };
const toasts = makeStore([]);
let last = 0;

const drop = (id) => toasts.set(toasts.value.filter((one) => one.id !== id));

/** Show a line for a while. `kind`: "good" or "bad"; `action`: {label, run}. */
export function toast(text, { kind = "good", action } = {}) {
  last += 1;
  toasts.set([...toasts.value.slice(-3), { id: last, text, kind, action }]);
}

function Toast({ one }) {
  useEffect(() => {
    const timer = setTimeout(() => drop(one.id), SHOWN_MS[one.kind]);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class=${`toast ${one.kind}`}>
    <${Icon} name=${one.kind === "bad" ? "error" : "check"} />
    <span>${one.text}</span>
    ${one.action &&
    html`<button type="button" class="button quiet small" onClick=${() => (drop(one.id), one.action.run())}>
      ${one.action.label}
    </button>`}
    <${IconButton} icon="close" label="Dismiss" onClick=${() => drop(one.id)} />
  </div>`;
}

/** The place of the toasts, once in a page. */
export function Toasts() {
  const shown = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map((one) => html`<${Toast} key=${one.id} one=${one} />`)}
  </div>`;
}
