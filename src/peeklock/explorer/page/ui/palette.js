// The palette: places, entities and commands by a few letters of their names.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { makeStore, useStore } from "../store.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icon.js";
import { Text } from "./text.js";

const SHOWN_MAX = 50;
const commands = makeStore([]);

/** Offer commands in the palette while a component is shown: {name, icon, hint?, run}. */
export function useCommands(own, inputs = []) {
  useEffect(() => {
    commands.set([...own, ...commands.value]);
    return () => commands.set(commands.value.filter((one) => !own.includes(one)));
  }, inputs);
}

/** Return how well letters fit a name; 0 = not at all. */
function fit(name, wanted) {
  if (!wanted) return 1;
  const text = name.toLowerCase();
  const at = text.indexOf(wanted);
  if (at >= 0) return 1000 - Math.min(at, 500) - Math.min(text.length, 400) / 10 + (at === 0 ? 500 : 0);
  let from = 0;
  for (const letter of wanted) {
    from = text.indexOf(letter, from) + 1;
    if (from === 0) return 0;
  }
  return 100 - Math.min(from, 90);
}

/** The palette itself; `places`: further entries. */
export function Palette({ places, onClose }) {
  const own = useStore(commands);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef(null);
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const scored = [];
    for (const one of [...own, ...places]) {
      const score = fit(one.name, wanted);
      if (score > 0) scored.push([score, scored.length, one]);
    }
    if (wanted) scored.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    return scored.slice(0, SHOWN_MAX).map((one) => one[2]);
  }, [text, own, places]);
  const place = Math.min(at, found.length - 1);
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [place]);
  const choose = (one) => {
    if (!one) return;
    onClose();
    one.run();
  };
  const press = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || found.length === 0) return;
    event.preventDefault();
    setAt((place + by + found.length) % found.length);
  };
  return html`<${Dialog} title="Go to" size="medium" isBare onClose=${onClose} onSubmit=${() => choose(found[place])}>
    <div class="palette">
      <div class="palette-input">
        <${Icon} name="search" />
        <input
          autofocus
          role="combobox"
          aria-label="Go to"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant=${found.length ? `palette-${place}` : undefined}
          placeholder="Go to a queue, a topic, a page…"
          autocomplete="off"
          spellcheck="false"
          value=${text}
          onInput=${(event) => (setText(event.target.value), setAt(0))}
          onKeyDown=${press}
        />
        <kbd>Esc</kbd>
      </div>
      <ul id="palette-list" class="palette-list" role="listbox" aria-label="Found" ref=${list}>
        ${found.map(
          (one, index) => html`<li
            key=${index}
            id=${`palette-${index}`}
            role="option"
            aria-selected=${index === place ? "true" : "false"}
            onClick=${() => choose(one)}
            onMouseMove=${() => setAt(index)}
          >
            <${Icon} name=${one.icon ?? "right"} /><${Text} value=${one.name} /><span class="hint">${one.hint}</span>
          </li>`,
        )}
      </ul>
      ${found.length === 0 && html`<div class="palette-none" role="status">Nothing has this name.</div>`}
    </div>
  <//>`;
}
