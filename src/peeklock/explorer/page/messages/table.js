// The table of messages, for the list, the search and the previews.
import { html } from "../lib.js";
import { bytes, number } from "../format.js";
import { go, href } from "../router.js";
import { Badge, Icon, Table, Text, Time } from "../ui.js";
import { outcomeText } from "./model.js";

const TONES = { active: "plain", deferred: "warn", scheduled: "accent" };

/** The state of a row, or how the message left. */
export function State({ row }) {
  if (row.left) return html`<${Badge}>${outcomeText(row.left.outcome)}<//>`;
  return html`<${Badge} tone=${TONES[row.state]}>${row.state}<//>${row.isLocked && html` <span title="locked"><${Icon} name="lock" size=${13} /><span class="offscreen">locked</span></span>`}`;
}

const Body = ({ row }) =>
  row.isText
    ? html`<span class="preview"><${Text} value=${row.preview} mono max=${160} /></span>`
    : html`<span class="preview faint mono">${row.preview}</span>`;

const Id = ({ value }) => (value === undefined ? html`<span class="faint">–</span>` : html`<${Text} value=${value} max=${128} />`);

const COLUMNS = {
  entity: { key: "entity", title: "Entity", value: (row) => row.entity, cell: (row) => html`<${Text} value=${row.entity} max=${200} />`, minWidth: 130, drop: 1 },
  number: {
    key: "number",
    title: "Number",
    value: (row) => row.number,
    cell: (row) => html`<a class="message-number" href=${href(["entities", row.entity, "messages", row.number])}>${row.number}</a>`,
    width: 84,
  },
  state: { key: "state", title: "State", value: (row) => row.left?.outcome ?? row.state, cell: (row) => html`<${State} row=${row} />`, width: 128, drop: 5 },
  time: { key: "time", title: "Enqueued", value: (row) => row.enqueuedTime, cell: (row) => html`<${Time} value=${row.enqueuedTime} isAge />`, width: 124, drop: 3 },
  due: { key: "due", title: "Due", value: (row) => row.scheduledEnqueueTime, cell: (row) => html`<${Time} value=${row.scheduledEnqueueTime} />`, width: 228, drop: 2 },
  messageId: { key: "messageId", title: "Message id", value: (row) => row.messageId, cell: (row) => html`<${Id} value=${row.messageId} />`, minWidth: 110, drop: 4 },
  subject: { key: "subject", title: "Subject", value: (row) => row.subject, cell: (row) => html`<${Id} value=${row.subject} />`, minWidth: 90, drop: 6 },
  session: { key: "session", title: "Session", value: (row) => row.sessionId, cell: (row) => html`<${Id} value=${row.sessionId} />`, minWidth: 90, drop: 5 },
  reason: { key: "reason", title: "Reason", value: (row) => row.reason, cell: (row) => html`<${Id} value=${row.reason} />`, minWidth: 130, drop: 2 },
  body: { key: "body", title: "Body", cell: (row) => html`<${Body} row=${row} />`, minWidth: 140, grow: 3, drop: 1 },
  deliveries: { key: "deliveries", title: "Tries", value: (row) => row.deliveryCount, cell: (row) => number(row.deliveryCount), width: 66, align: "end", drop: 8, isDownFirst: true },
  size: { key: "size", title: "Size", value: (row) => row.sizeBytes, cell: (row) => bytes(row.sizeBytes), width: 88, align: "end", drop: 9, isDownFirst: true },
};

/** Return columns by their names; none of an undefined name. */
export const columnsOf = (names) => names.filter(Boolean).map((name) => COLUMNS[name]);

/** The key of a row among those of several entities. */
export const keyOf = (row) => `${row.entity}\n${row.number}`;

/** A table of rows of `model.js`; other properties are those of `Table`. */
export const MessageTable = ({ rows, columns, label = "Messages", ...rest }) => html`<${Table}
  rows=${rows}
  rowKey=${keyOf}
  label=${label}
  columns=${columns}
  onOpen=${(row) => go(["entities", row.entity, "messages", row.number])}
  rowTone=${(row) => (row.left ? "faint" : "")}
  isChoosable=${(row) => !row.left}
  ...${rest}
/>`;
