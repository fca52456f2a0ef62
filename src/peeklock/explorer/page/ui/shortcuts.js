// Keys of the whole page. They rest while a dialog is open or something is typed.
import { html, useLayoutEffect } from "../lib.js";
import { makeStore, useStore } from "../store.js";
import { Dialog } from "./dialog.js";

const known = makeStore([]); // of the views that are shown: [{keys, name, run}]
let waiting = ""; // the first key of two, such as "g"
let waitingTimer = 0;

/** Whether what is typed goes into a control. */
const isTyping = (target) =>
  target instanceof HTMLElement &&
  (target.isContentEditable || (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && target.type !== "checkbox"));

/**
 * Add shortcuts while a component is shown: {keys: "g o", name: "Overview", run}. `keys`: one key, or two after each
 * other; `run` absent = it is handled elsewhere, and only listed. They change as soon as the component is drawn again:
 * the next key can come before an effect.
 */
export function useShortcuts(shortcuts, inputs = []) {
  useLayoutEffect(() => {
    known.set([...known.value, ...shortcuts]);
    return () => known.set(known.value.filter((one) => !shortcuts.includes(one)));
  }, inputs);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const pressed = waiting ? `${waiting} ${event.key}` : event.key;
  clearTimeout(waitingTimer);
  waiting = "";
  const found = known.value.findLast((one) => one.keys === pressed && one.run);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (known.value.some((one) => one.keys.startsWith(`${pressed} `))) {
    waiting = pressed;
    waitingTimer = setTimeout(() => (waiting = ""), 1000);
  }
});

/** The list of all shortcuts. */
export function ShortcutHelp({ onClose }) {
  const shown = useStore(known);
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    <dl class="shortcuts">
      ${shown.map(
        (one) => html`<div key=${one.keys}>
          <dt>${one.keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt>
          <dd>${one.name}</dd>
        </div>`,
      )}
    </dl>
  <//>`;
}
