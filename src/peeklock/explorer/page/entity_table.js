// The table of entities, for the overview and for the subscriptions of a topic.
import { html } from "./lib.js";
import { TRAIL } from "./counts.js";
import { bytes, rate } from "./format.js";
import { go, href } from "./router.js";
import { nameParts } from "./entity.js";
import { Badge, Count, Icon, Spark, Table, Text, Time } from "./ui.js";

const ratesIn = (row) => row.rates.received;
const ratesOut = (row) => row.rates.delivered;

const Rate = ({ value }) => html`<span class=${value ? "count" : "count none"}>${rate(value)}</span>`;

function Name({ row }) {
  const { topic, subscription } = nameParts(row.name);
  return html`<a class="entity-name" href=${href(["entities", row.name])}>
    <${Icon} name=${row.kind} />
    <span>${topic && html`<span class="faint"><${Text} value=${topic} /> / </span>`}<${Text} value=${subscription || row.name} /></span>
    ${row.status !== "Active" && html`<${Badge} tone="warn">${row.status}<//>`}
  </a>`;
}

const COLUMNS = [
  { key: "name", title: "Name", value: (row) => row.name, cell: (row) => html`<${Name} row=${row} />`, minWidth: 160, grow: 3 },
  { key: "dead", title: "Dead letters", value: (row) => row.deadLetter + row.transferDeadLetter, cell: (row) => html`<${Count} value=${row.deadLetter + row.transferDeadLetter} tone="bad" />`, width: 116, align: "end", isDownFirst: true },
  { key: "active", title: "Active", value: (row) => row.active, cell: (row) => html`<${Count} value=${row.active} />`, width: 92, align: "end", drop: 1, isDownFirst: true },
  { key: "scheduled", title: "Scheduled", value: (row) => row.scheduled, cell: (row) => html`<${Count} value=${row.scheduled} />`, width: 104, align: "end", drop: 5, isDownFirst: true },
  { key: "in", title: "In", value: ratesIn, cell: (row) => html`<${Rate} value=${ratesIn(row)} />`, width: 84, align: "end", drop: 4, isDownFirst: true },
  { key: "out", title: "Out", value: ratesOut, cell: (row) => html`<${Rate} value=${ratesOut(row)} />`, width: 84, align: "end", drop: 4, isDownFirst: true },
  { key: "trail", title: "Last minute", cell: (row) => row.trail.length > 0 && html`<${Spark} values=${row.trail} count=${TRAIL} label="What came and left" />`, width: 96, drop: 7 },
  { key: "oldest", title: "Oldest", value: (row) => row.oldestEnqueuedTime, cell: (row) => html`<${Time} value=${row.oldestEnqueuedTime} isAge />`, width: 124, align: "end", drop: 3 },
  { key: "size", title: "Size", value: (row) => row.sizeBytes, cell: (row) => html`<span class=${row.sizeBytes ? "count" : "count none"}>${bytes(row.sizeBytes)}</span>`, width: 92, align: "end", drop: 6, isDownFirst: true },
];

/** Entries of counts as a table; those with dead letters come first. */
export function EntityTable({ rows, label, empty, height }) {
  return html`<${Table}
    rows=${rows}
    rowKey=${(row) => row.name}
    label=${label}
    columns=${COLUMNS}
    sort=${{ key: "dead", isDown: true }}
    onOpen=${(row) => go(["entities", row.name])}
    empty=${empty}
    height=${height}
  />`;
}
