import { html, useEffect, useRef } from "../lib.js";
import { Count } from "./text.js";

/**
 * Tabs: `items` are {id, label, count?, tone?, href?}. With `href` they are links to other places, else they
 * choose: `onChoose(id)`, and the chosen part needs role="tabpanel".
 */
export function Tabs({ items, current, onChoose, label }) {
  const ref = useRef(null);
  useEffect(() => {
    const strip = ref.current.getBoundingClientRect();
    const tab = ref.current.querySelector('[aria-current], [aria-selected="true"]')?.getBoundingClientRect();
    // The strip alone: `scrollIntoView` would scroll the page too.
    if (tab) ref.current.scrollLeft += Math.max(0, tab.right - strip.right) + Math.min(0, tab.left - strip.left);
  }, [current]);
  const inside = (item) =>
    html`<span>${item.label}</span>${item.count !== undefined && html`<${Count} value=${item.count} tone=${item.tone} />`}`;
  if (items[0]?.href) {
    return html`<nav class="tabs" aria-label=${label} ref=${ref}>
      ${items.map(
        (item) => html`<a
          key=${item.id}
          class="tab"
          href=${item.href}
          aria-current=${item.id === current ? "page" : undefined}
          >${inside(item)}</a
        >`,
      )}
    </nav>`;
  }
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = items.findIndex((item) => item.id === current);
    const next = items[(at + by + items.length) % items.length];
    onChoose(next.id);
    ref.current.querySelector(`[data-id="${CSS.escape(next.id)}"]`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${ref} onKeyDown=${move}>
    ${items.map(
      (item) => html`<button
        key=${item.id}
        type="button"
        role="tab"
        class="tab"
        data-id=${item.id}
        aria-selected=${item.id === current ? "true" : "false"}
        tabindex=${item.id === current ? 0 : -1}
        onClick=${() => onChoose(item.id)}
      >
        ${inside(item)}
      </button>`,
    )}
  </div>`;
}
