// A table of many rows, of which only those in sight are drawn. Rows have one height.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { useWidth } from "../hooks.js";
import { number } from "../format.js";
import { Icon } from "./icon.js";
import { useShortcuts } from "./shortcuts.js";

const ROW_PX = 34;
const STILL_PX = 4; // a mouse that moves less while its button is down clicks
const BEYOND = 8; // rows drawn above and below those in sight
const ROW_PADDING_PX = 12; // both sides

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

/** Return the rows in the order of a column; without one as they are. */
function useSorted(rows, columns, sort) {
  return useMemo(() => {
    const column = sort && columns.find((one) => one.key === sort.key);
    if (!column?.value) return rows;
    const valued = rows.map((row, at) => [column.value(row), at, row]);
    const sign = sort.isDown ? -1 : 1;
    valued.sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1]);
    return valued.map((one) => one[2]);
  }, [rows, sort, columns]);
}

/** Return what a scroller shows, in pixels: {top, height}. */
function useView(scroller) {
  const [view, setView] = useState({ top: 0, height: 600 });
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
  return view;
}

/** Scroll such that the row at a place is in sight, below the head. */
function reveal(element, at) {
  const head = element.firstElementChild.offsetHeight;
  const [top, bottom] = [at * ROW_PX, (at + 1) * ROW_PX];
  if (top < element.scrollTop) element.scrollTop = top;
  if (bottom > element.scrollTop + element.clientHeight - head) element.scrollTop = bottom - element.clientHeight + head;
}

/**
 * The current row: the one that has the focus, or had it last. Keys can come faster than a row is drawn, so `wanted`
 * runs ahead of what is drawn. Returns {current, places, wanted, take(key), moveTo(place), move(by)}.
 */
function useCurrentRow(scroller, sorted, rowKey) {
  const [current, setCurrent] = useState(null); // key
  const wanted = useRef(null);
  const isFocusWanted = useRef(false);
  const places = useMemo(() => new Map(sorted.map((row, at) => [rowKey(row), at])), [sorted]);
  const take = (key) => {
    wanted.current = key;
    setCurrent(key);
  };
  const moveTo = (next) => {
    if (sorted.length === 0) return;
    const at = Math.max(0, Math.min(sorted.length - 1, next));
    reveal(scroller.current, at);
    isFocusWanted.current = true;
    take(rowKey(sorted[at]));
  };
  // Before the next key can come: it would go to what had the focus before.
  useLayoutEffect(() => {
    if (!isFocusWanted.current || current !== wanted.current) return;
    const element = scroller.current.querySelector('[data-current="true"]');
    if (element) {
      isFocusWanted.current = false;
      element.focus({ preventScroll: true });
    }
  });
  return { current, places, wanted, take, moveTo, move: (by) => moveTo((places.get(wanted.current) ?? -1) + by) };
}

/** Return how rows are chosen: {count, canChoose(row), has(row), toggle(row), areAll, toggleAll()}; null = they cannot be. */
function useChoice({ chosen, onChoose, isChoosable = () => true, rowKey, sorted }) {
  const latest = useRef(chosen); // keys can come faster than the choice is drawn
  latest.current = chosen;
  const choosable = useMemo(() => (chosen ? sorted.filter(isChoosable) : []), [sorted, !!chosen]);
  if (!chosen) return null;
  const change = (next) => {
    latest.current = next;
    onChoose(next);
  };
  const areAll = choosable.length > 0 && choosable.every((row) => chosen.has(rowKey(row)));
  return {
    count: choosable.length,
    canChoose: isChoosable,
    has: (row) => chosen.has(rowKey(row)),
    toggle: (row) => {
      const key = rowKey(row);
      const next = new Set(latest.current);
      if (!next.delete(key) && isChoosable(row)) next.add(key);
      change(next);
    },
    areAll,
    toggleAll: () => change(areAll ? new Set() : new Set(choosable.map(rowKey))),
  };
}

function HeadCell({ column, sort, onSort }) {
  const isSorted = sort?.key === column.key;
  const name = html`<span>${column.title}</span>${isSorted && html`<${Icon} name=${sort.isDown ? "down" : "up"} size=${12} />`}`;
  return html`<div
    role="columnheader"
    class=${`cell ${column.align ?? ""}`}
    aria-sort=${isSorted ? (sort.isDown ? "descending" : "ascending") : undefined}
  >
    ${column.value ? html`<button type="button" class="sort" onClick=${() => onSort(column)}>${name}</button>` : name}
  </div>`;
}

function Head({ columns, template, sort, onSort, choice }) {
  return html`<div role="rowgroup" class="table-head">
    <div role="row" class="row head" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
      ${choice &&
      html`<div role="columnheader" class="cell">
        <input type="checkbox" aria-label=${`Choose all ${number(choice.count)}`} checked=${choice.areAll} disabled=${choice.count === 0} onChange=${choice.toggleAll} />
      </div>`}
      ${columns.map((column) => html`<${HeadCell} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}
    </div>
  </div>`;
}

function Row({ row, at, columns, template, tone, choice, isCurrent, isReached, onTake, onPress, onHold, onOpen }) {
  const isChosen = choice?.has(row);
  return html`<div
    role="row"
    class=${`row ${onOpen ? "opens" : ""} ${tone} ${isChosen ? "chosen" : ""}`}
    aria-rowindex=${at + 2}
    aria-selected=${choice ? (isChosen ? "true" : "false") : undefined}
    tabindex=${isReached ? 0 : -1}
    data-current=${isCurrent ? "true" : "false"}
    style=${{ gridTemplateColumns: template, transform: `translateY(${at * ROW_PX}px)` }}
    onFocus=${(event) => event.target === event.currentTarget && onTake()}
    onKeyDown=${(event) => onPress(event, row)}
    onMouseDown=${(event) => onHold(event, row)}
  >
    ${choice &&
    html`<div role="gridcell" class="cell">
      <input type="checkbox" tabindex="-1" aria-label="Choose the row" checked=${isChosen} disabled=${!isChosen && !choice.canChoose(row)} onChange=${() => (onTake(), choice.toggle(row))} />
    </div>`}
    ${columns.map((column) => html`<div key=${column.key} role="gridcell" class=${`cell ${column.align ?? ""}`}>${column.cell(row)}</div>`)}
  </div>`;
}

/**
 * A table.
 *
 * `rows`, `rowKey(row)`, `label` (its name), `columns`: [{key, title, cell(row), value(row)?, width?, minWidth?,
 * align?: "end", drop?, isFirst?}] where `value` makes it sortable, `width` is fixed in pixels, `minWidth` shares what
 * is left, and columns with a high `drop` go first where there is no room.
 * `sort`: {key, isDown} at first. `onOpen(row)`: on Enter, o or a click. `rowTone(row)`: "", "faint", "bad".
 * `chosen` (a Set of keys) and `onChoose(set)`: rows can be chosen, by Space and x too; `isChoosable(row)`: which.
 * `onEnd()`: the last row is nearly in sight; `onSee(rows)`: those that are drawn. `empty`: what is shown without rows. `height`: CSS; else it fills its place.
 */
export function Table(props) {
  const { rows, rowKey, label, columns, onOpen, rowTone, chosen, onEnd, onSee, empty, height } = props;
  const [sort, setSort] = useState(props.sort ?? null);
  const [box, width] = useWidth();
  const scroller = useRef(null);
  const view = useView(scroller);
  const sorted = useSorted(rows, columns, sort);
  const choice = useChoice({ ...props, sorted });
  const { current, places, wanted, take, moveTo, move } = useCurrentRow(scroller, sorted, rowKey);

  const first = Math.max(0, Math.floor(view.top / ROW_PX) - BEYOND);
  const end = Math.min(sorted.length, Math.ceil((view.top + view.height) / ROW_PX) + BEYOND);
  useEffect(() => {
    if (onEnd && end >= sorted.length - BEYOND) onEnd();
  }, [end, sorted.length, onEnd]);
  useEffect(() => onSee?.(sorted.slice(first, end)), [first, end, sorted]);

  const latest = useRef(null);
  latest.current = { move, choose: () => places.has(wanted.current) && choice.toggle(sorted[places.get(wanted.current)]) };
  useShortcuts(
    [
      { keys: "j", name: "Next row", run: () => latest.current.move(1) },
      { keys: "k", name: "Previous row", run: () => latest.current.move(-1) },
      { keys: "Enter", name: "Open the row" },
      ...(chosen ? [{ keys: "x", name: "Choose the row", run: () => latest.current.choose() }] : []),
    ],
    [!!chosen],
  );

  // Rows move while counts change: a click is for the row that was under the mouse when its button went down.
  const held = useRef(null);
  const hold = (event, row) => {
    held.current = event.target.closest("a, button, input") ? null : { row, x: event.clientX, y: event.clientY };
  };
  const click = (event) => {
    const down = held.current;
    held.current = null;
    if (!onOpen || event.target.closest("a, button, input") || getSelection().toString()) return;
    const isStill = down && Math.hypot(event.clientX - down.x, event.clientY - down.y) < STILL_PX;
    const under = event.target.closest("[role=row]");
    const row = isStill ? down.row : sorted[under?.getAttribute("aria-rowindex") - 2];
    if (row) onOpen(row);
  };

  const press = (event, row) => {
    if (event.target !== event.currentTarget && /^(A|BUTTON|INPUT)$/.test(event.target.tagName)) return;
    row = sorted[places.get(wanted.current)] ?? row; // the focus may come later than the next key
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: Math.floor(view.height / ROW_PX) - 2, PageUp: 2 - Math.floor(view.height / ROW_PX) };
    if (event.key in steps) move(steps[event.key]);
    else if (event.key === "Home") moveTo(0);
    else if (event.key === "End") moveTo(sorted.length - 1);
    else if ((event.key === "Enter" || event.key === "o") && onOpen) onOpen(row);
    else if ((event.key === " " || event.key === "x") && chosen) choice.toggle(row);
    else return;
    event.preventDefault();
  };
  const order = (column) => setSort((before) => ({ key: column.key, isDown: before?.key === column.key ? !before.isDown : !!column.isDownFirst }));

  const shown = fitting(columns, width && width - ROW_PADDING_PX - (chosen ? 40 : 0));
  const template = [
    ...(chosen ? ["40px"] : []),
    ...shown.map((column) => (column.width ? `${column.width}px` : `minmax(${column.minWidth ?? 120}px, ${column.grow ?? 1}fr)`)),
  ].join(" ");
  const drawRow = (row, at) => {
    const key = rowKey(row);
    const isCurrent = key === current;
    return html`<${Row} key=${key} ...${{ row, at, columns: shown, template, choice, isCurrent, onOpen }} tone=${rowTone?.(row) ?? ""}
      isReached=${isCurrent || (!places.has(current) && at === 0)} onTake=${() => take(key)} onPress=${press} onHold=${hold} />`;
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
      <${Head} columns=${shown} template=${template} sort=${sort} onSort=${order} choice=${choice} />
      <div role="rowgroup" class="table-rows" onClick=${click} style=${{ height: `${sorted.length * ROW_PX}px` }}>
        ${sorted.slice(first, end).map((row, at) => drawRow(row, first + at))}
      </div>
      ${sorted.length === 0 && empty && html`<div role="rowgroup"><div role="row"><div role="gridcell">${empty}</div></div></div>`}
    </div>
  </div>`;
}
