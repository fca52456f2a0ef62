// Every AMQP section of a message, with the types of its values.
import { html } from "../lib.js";
import { number } from "../format.js";
import { Table, Text } from "../ui.js";

const TITLES = {
  header: "Header",
  deliveryAnnotations: "Delivery annotations",
  messageAnnotations: "Message annotations",
  properties: "Properties",
  applicationProperties: "Application properties",
  body: "Body",
  footer: "Footer",
};
const LISTED_MAX = 40; // values of a section; more are a table
const DEPTH_MAX = 12;

/** Return a value of `{type, value}` as text. */
function valueText({ type, value, descriptor }, depth = 0) {
  if (depth > DEPTH_MAX) return "…";
  if (type === "described") return `${valueText(descriptor, depth + 1)}: ${valueText(value, depth + 1)}`;
  if (type === "map") return `{${value.map(([key, item]) => `${valueText(key, depth + 1)}: ${valueText(item, depth + 1)}`).join(", ")}}`;
  if (type === "list" || type === "array") return `[${value.map((item) => valueText(item, depth + 1)).join(", ")}]`;
  return value === null ? "null" : String(value);
}

const COLUMNS = [
  { key: "name", title: "Name", value: (row) => row.name, cell: (row) => html`<${Text} value=${row.name} />`, minWidth: 120 },
  { key: "type", title: "Type", value: (row) => row.type, cell: (row) => html`<span class="faint">${row.type}</span>`, width: 96 },
  { key: "value", title: "Value", value: (row) => row.text, cell: (row) => html`<${Text} value=${row.text} max=${4000} mono />`, minWidth: 120, grow: 2 },
];

function Section({ name, values }) {
  const pairs = Array.isArray(values) ? values.map((value, at) => [String(at + 1), value]) : Object.entries(values);
  const rows = pairs.map(([key, value]) => ({ name: key, type: value.type, text: valueText(value) }));
  return html`<div>
    <h3>${TITLES[name] ?? name} <span class="faint">${number(rows.length)}</span></h3>
    ${rows.length > LISTED_MAX
      ? html`<${Table} rows=${rows} rowKey=${(row) => row.name} label=${TITLES[name] ?? name} columns=${COLUMNS} height="360px" />`
      : html`<dl class="facts">${rows.map((row) => html`<div key=${row.name}><dt><${Text} value=${row.name} /></dt><dd><${Text} value=${row.text} max=${4000} mono /> <span class="type">${row.type}</span></dd></div>`)}</dl>`}
  </div>`;
}

const KINDS = { data: "data", sequence: "a sequence of values", value: "a value", none: "none" };

/** All sections of a message that was asked for with `sections=true`. */
export function Sections({ message }) {
  const { sections } = message;
  if (!sections) return null;
  const { malformed = [], ...known } = sections;
  return html`<section class="card" aria-label="AMQP sections">
    <details>
      <summary><h2>AMQP sections</h2> <span class="faint">body: ${KINDS[message.bodyKind] ?? message.bodyKind}</span></summary>
      <div class="sections">
        ${malformed.length > 0 && html`<p class="note warn">Malformed, and not decoded: ${malformed.join(", ")}.</p>`}
        ${Object.keys(TITLES).filter((name) => known[name] !== undefined).map((name) => html`<${Section} key=${name} name=${name} values=${known[name]} />`)}
      </div>
    </details>
  </section>`;
}

/** Return {name: type} of the application properties. */
export function typesOf(message) {
  const found = message.sections?.applicationProperties ?? {};
  return Object.fromEntries(Object.entries(found).map(([name, { type }]) => [name, type]));
}
