// A table of many rows, of which only those in sight are drawn. Rows have one height.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { useWidth } from "../hooks.js";
import { number } from "../format.js";
import { Icon } from "./icon.js";
import { useShortcuts } from "./shortcuts.js";

const ROW_PX = 34;
const BEYOND = 8; // rows drawn above and below those in sight

/** Return the columns that fit: those with the highest `drop` go first. */
function fitting(columns, width) {
  const shown = [...columns];
  const needed = () => shown.reduce((sum, column) => sum + (column.width ?? column.minWidth ?? 120), 0);
  while (width && needed() > width) {
    const last = shown.reduce((worst, column) => ((column.drop ?? 0) > (worst?.drop ?? 0) ? column : worst), null);
    if (last === null) break;
    shown.splice(shown.indexOf(last), 1);
  }
  return shown;
}

const compare = (first, second) => {
  if (first === second) return 0;
  if (first === undefined || first === null) return 1;
  if (second === undefined || second === null) return -1;
  if (typeof first === "string") return first.localeCompare(second, "en", { numeric: true });
  return first < second ? -1 : 1;
};

/**
 * A table.
 *
 * `rows`, `rowKey(row)`, `label` (its name), `columns`: [{key, title, cell(row), value(row)?, width?, minWidth?,
 * align?: "end", drop?, isFirst?}] where `value` makes it sortable, `width` is fixed in pixels, `minWidth` shares what
 * is left, and columns with a high `drop` go first where there is no room.
 * `sort`: {key, isDown} at first. `onOpen(row)`: on Enter, o or a click. `rowTone(row)`: "", "faint", "bad".
 * `chosen` (a Set of keys) and `onChoose(set)`: rows can be chosen, by Space and x too.
 * `onEnd()`: the last row is nearly in sight; `onSee(rows)`: those that are drawn. `empty`: what is shown without rows. `height`: CSS; else it fills its place.
 */
export function Table(props) {
  const { rows, rowKey, label, columns, onOpen, rowTone, chosen, onChoose, onEnd, onSee, empty, height } = props;
  const [sort, setSort] = useState(props.sort ?? null);
  const [box, width] = useWidth();
  const scroller = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [current, setCurrent] = useState(null); // key of the row with the focus
  const wanted = useRef(null); // the same, before it is drawn: keys can come faster
  const isFocusWanted = useRef(false);
  const chosenNow = useRef(chosen); // likewise
  chosenNow.current = chosen;

  const sorted = useMemo(() => {
    const column = sort && columns.find((one) => one.key === sort.key);
    if (!column?.value) return rows;
    const valued = rows.map((row, at) => [column.value(row), at, row]);
    const sign = sort.isDown ? -1 : 1;
    valued.sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1]);
    return valued.map((one) => one[2]);
  }, [rows, sort, columns]);

  const shown = fitting(columns, width - (chosen ? 40 : 0));
  const template = [
    ...(chosen ? ["40px"] : []),
    ...shown.map((column) => (column.width ? `${column.width}px` : `minmax(${column.minWidth ?? 120}px, ${column.grow ?? 1}fr)`)),
  ].join(" ");

  useLayoutEffect(() => {
    const element = scroller.current;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const first = Math.max(0, Math.floor(view.top / ROW_PX) - BEYOND);
  const end = Math.min(sorted.length, Math.ceil((view.top + view.height) / ROW_PX) + BEYOND);
  useEffect(() => {
    if (onEnd && end >= sorted.length - BEYOND) onEnd();
  }, [end, sorted.length, onEnd]);
  useEffect(() => onSee?.(sorted.slice(first, end)), [first, end, sorted]);

  const places = useMemo(() => new Map(sorted.map((row, at) => [rowKey(row), at])), [sorted]);
  const place = places.get(current) ?? -1;
  const move = (by) => moveTo((places.get(wanted.current) ?? -1) + by);
  const moveTo = (next) => {
    if (sorted.length === 0) return;
    const at = Math.max(0, Math.min(sorted.length - 1, next));
    const element = scroller.current;
    const head = element.firstElementChild.offsetHeight;
    const [top, bottom] = [at * ROW_PX, (at + 1) * ROW_PX];
    if (top < element.scrollTop) element.scrollTop = top;
    if (bottom > element.scrollTop + element.clientHeight - head) element.scrollTop = bottom - element.clientHeight + head;
    isFocusWanted.current = true;
    wanted.current = rowKey(sorted[at]);
    setCurrent(wanted.current);
  };
  useEffect(() => {
    if (!isFocusWanted.current || current !== wanted.current) return;
    const element = scroller.current.querySelector('[data-current="true"]');
    if (element) {
      isFocusWanted.current = false;
      element.focus({ preventScroll: true });
    }
  });

  const latest = useRef(null);
  latest.current = { move, choose: () => places.has(wanted.current) && toggle(wanted.current) };
  useShortcuts(
    [
      { keys: "j", name: "Next row", run: () => latest.current.move(1) },
      { keys: "k", name: "Previous row", run: () => latest.current.move(-1) },
      { keys: "Enter", name: "Open the row" },
      ...(chosen ? [{ keys: "x", name: "Choose the row", run: () => latest.current.choose() }] : []),
    ],
    [!!chosen],
  );

  const take = (key) => {
    wanted.current = key;
    setCurrent(key);
  };
  const toggle = (key) => {
    const next = new Set(chosenNow.current);
    if (!next.delete(key)) next.add(key);
    chosenNow.current = next;
    onChoose(next);
  };
  const press = (event, row) => {
    if (event.target !== event.currentTarget && /^(A|BUTTON|INPUT)$/.test(event.target.tagName)) return;
    row = sorted[places.get(wanted.current)] ?? row; // the focus may come later than the next key
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: Math.floor(view.height / ROW_PX) - 2, PageUp: 2 - Math.floor(view.height / ROW_PX) };
    if (event.key in steps) move(steps[event.key]);
    else if (event.key === "Home") moveTo(0);
    else if (event.key === "End") moveTo(sorted.length - 1);
    else if ((event.key === "Enter" || event.key === "o") && onOpen) onOpen(row);
    else if ((event.key === " " || event.key === "x") && chosen) toggle(rowKey(row));
    else return;
    event.preventDefault();
  };
  const click = (event, row) => {
    if (!onOpen || event.target.closest("a, button, input") || getSelection().toString()) return;
    onOpen(row);
  };
  const order = (column) => setSort((before) => ({ key: column.key, isDown: before?.key === column.key ? !before.isDown : !!column.isDownFirst }));
  const areAllChosen = chosen && sorted.length > 0 && sorted.every((row) => chosen.has(rowKey(row)));

  const headCell = (column) => {
    const isSorted = sort?.key === column.key;
    const name = html`<span>${column.title}</span>${isSorted && html`<${Icon} name=${sort.isDown ? "down" : "up"} size=${12} />`}`;
    return html`<div
      key=${column.key}
      role="columnheader"
      class=${`cell ${column.align ?? ""}`}
      aria-sort=${isSorted ? (sort.isDown ? "descending" : "ascending") : undefined}
    >
      ${column.value ? html`<button type="button" class="sort" onClick=${() => order(column)}>${name}</button>` : name}
    </div>`;
  };

  const drawRow = (row, at) => {
    const key = rowKey(row);
    const isCurrent = key === current || (place < 0 && at === 0);
    return html`<div
      key=${key}
      role="row"
      class=${`row ${onOpen ? "opens" : ""} ${rowTone?.(row) ?? ""} ${chosen?.has(key) ? "chosen" : ""}`}
      aria-rowindex=${at + 2}
      aria-selected=${chosen ? (chosen.has(key) ? "true" : "false") : undefined}
      tabindex=${isCurrent ? 0 : -1}
      data-current=${key === current ? "true" : "false"}
      style=${{ gridTemplateColumns: template, transform: `translateY(${at * ROW_PX}px)` }}
      onFocus=${(event) => event.target === event.currentTarget && take(key)}
      onKeyDown=${(event) => press(event, row)}
      onClick=${(event) => click(event, row)}
    >
      ${chosen &&
      html`<div role="gridcell" class="cell">
        <input type="checkbox" tabindex="-1" aria-label="Choose the row" checked=${chosen.has(key)} onChange=${() => (take(key), toggle(key))} />
      </div>`}
      ${shown.map((column) => html`<div key=${column.key} role="gridcell" class=${`cell ${column.align ?? ""}`}>${column.cell(row)}</div>`)}
    </div>`;
  };

  return html`<div class="table" ref=${box}>
    <div
      class="table-scroll"
      ref=${scroller}
      role="grid"
      aria-label=${label}
      aria-rowcount=${sorted.length + 1}
      aria-multiselectable=${chosen ? "true" : undefined}
      tabindex=${sorted.length ? undefined : 0}
      style=${height ? { height } : undefined}
    >
      <div role="rowgroup" class="table-head">
        <div role="row" class="row head" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
          ${chosen &&
          html`<div role="columnheader" class="cell">
            <input
              type="checkbox"
              aria-label=${`Choose all ${number(sorted.length)}`}
              checked=${areAllChosen}
              onChange=${() => onChoose(areAllChosen ? new Set() : new Set(sorted.map(rowKey)))}
            />
          </div>`}
          ${shown.map(headCell)}
        </div>
      </div>
      <div role="rowgroup" class="table-rows" style=${{ height: `${sorted.length * ROW_PX}px` }}>
        ${sorted.slice(first, end).map((row, at) => drawRow(row, first + at))}
      </div>
      ${sorted.length === 0 && empty && html`<div role="rowgroup"><div role="row"><div role="gridcell">${empty}</div></div></div>`}
    </div>
  </div>`;
}
