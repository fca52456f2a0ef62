// What is known of a message besides its body: times, lock, ids, properties, death, deliveries.
import { html } from "../lib.js";
import { bytes, duration, number } from "../format.js";
import { href } from "../router.js";
import { Badge, Facts, Table, Text, Time } from "../ui.js";
import { Decimal } from "./exact_json.js";
import { DEATH } from "./model.js";

const PLAIN_MAX = 40; // properties that are shown as a list; more are a table
const FROM = "peeklock-resubmitted-from";

/** A link to an entity, or to a message of it. */
export const EntityLink = ({ entity, message }) => html`<a href=${href(["entities", entity, "messages", ...(message === undefined ? [] : [message])])}><${Text} value=${message === undefined ? entity : `${entity}, message ${message}`} max=${400} /></a>`;

const text = (value) => (value === undefined ? undefined : html`<${Text} value=${value} />`);
const time = (value) => (value === undefined ? undefined : html`<${Time} value=${value} />`);

export function Times({ message }) {
  const { lockedUntil, heldByCursor } = message;
  return html`<section class="card" aria-label="Times and state">
    <h2>State</h2>
    <${Facts} items=${[
      ["Sequence number", String(message.sequenceNumber)],
      ["Enqueued number", message.enqueuedSequenceNumber === message.sequenceNumber ? undefined : String(message.enqueuedSequenceNumber)],
      ["Enqueued", time(message.enqueuedTime)],
      ["Due", time(message.scheduledEnqueueTime)],
      ["Expires", time(message.expiresAt)],
      ["Time to live", message.timeToLive === undefined ? undefined : duration(Number(String(message.timeToLive)))],
      ["Deliveries", number(message.deliveryCount)],
      ["Locked until", time(lockedUntil)],
      ["Held by a cursor", text(heldByCursor)],
      ["Size", bytes(message.sizeBytes)],
    ]} />
  </section>`;
}

export function Ids({ message }) {
  const items = [
    ["Message id", text(message.messageId)],
    ["Subject", text(message.subject)],
    ["Session", text(message.sessionId)],
    ["Correlation id", text(message.correlationId)],
    ["Content type", text(message.contentType)],
    ["To", text(message.to)],
    ["Reply to", text(message.replyTo)],
    ["Reply to session", text(message.replyToSessionId)],
    ["Partition key", text(message.partitionKey)],
    ["Via partition key", text(message.viaPartitionKey)],
  ].filter(([, value]) => value !== undefined);
  return html`<section class="card" aria-label="Properties">
    <h2>Properties</h2>
    ${items.length ? html`<${Facts} items=${items} />` : html`<p class="faint">The sender set none.</p>`}
  </section>`;
}

function typeOf(value) {
  if (value === null) return "null";
  if (value instanceof Decimal) return "number";
  return { string: "text", bigint: "number" }[typeof value] ?? typeof value;
}

const shownValue = (value) => (value === null ? html`<span class="faint">null</span>` : html`<${Text} value=${value} max=${4000} mono=${typeof value !== "string"} />`);

const COLUMNS = [
  { key: "name", title: "Name", value: (row) => row.name, cell: (row) => html`<${Text} value=${row.name} />`, minWidth: 110 },
  { key: "type", title: "Type", value: (row) => row.type, cell: (row) => html`<span class="faint">${row.type}</span>`, width: 96, drop: 1 },
  { key: "value", title: "Value", value: (row) => String(row.value), cell: (row) => shownValue(row.value), minWidth: 120, grow: 2 },
];

/** Application properties; `typed` is {name: type} where the AMQP types are known. */
export function ApplicationProperties({ message, typed = {} }) {
  const rows = Object.entries(message.properties ?? {}).map(([name, value]) => ({ name, value, type: typed[name] ?? typeOf(value) }));
  if (rows.length === 0) return null;
  return html`<section class="card" aria-label="Application properties">
    <h2>Application properties <span class="faint">${number(rows.length)}</span></h2>
    ${rows.length > PLAIN_MAX
      ? html`<${Table} rows=${rows} rowKey=${(row) => row.name} label="Application properties" columns=${COLUMNS} height="420px" />`
      : html`<dl class="facts">${rows.map((row) => html`<div key=${row.name}><dt><${Text} value=${row.name} /></dt><dd>${shownValue(row.value)} <span class="type">${row.type}</span></dd></div>`)}</dl>`}
  </section>`;
}

/** Why a message is a dead letter, and where it came from. */
export function Death({ message, isDead }) {
  const [reason, description] = DEATH.map((name) => message.properties?.[name]);
  if (!isDead) return null;
  return html`<section class="card death" aria-label="Why it is a dead letter">
    <h2>${reason === undefined ? "Dead-lettered without a reason" : html`<${Text} value=${reason} />`}</h2>
    ${description !== undefined && html`<p class="long"><${Text} value=${description} max=${20_000} /></p>`}
    ${message.deadLetterSource !== undefined && html`<p class="faint">It came from <${EntityLink} entity=${message.deadLetterSource} /></p>`}
  </section>`;
}

const ENDED = { "lock-lapsed": "the lock lapsed" };

/** How a message left, who had received it, and where it is now. */
export function Left({ entry }) {
  if (!entry) return null;
  const outcome = entry.outcome.replaceAll("-", " ");
  return html`<section class="card" aria-label="How it left">
    <div class="row-of"><h2>It was ${outcome}</h2><${Badge}>left<//><span class="faint"><${Time} value=${entry.leftAt} isAge /></span></div>
    <p class="faint">This is what the history of the broker keeps of it.${entry.message.body === undefined && entry.message.bodyBase64 === undefined ? " The body is not kept." : entry.bodyCut ? " The body is cut." : ""}</p>
    <${Facts} items=${[
      ["Reason", text(entry.reason)],
      ["Moved to", entry.movedTo === undefined ? undefined : html`<${EntityLink} entity=${entry.movedTo} message=${entry.message.sequenceNumber} />`],
      ["By connection", entry.connection === undefined ? undefined : String(entry.connection)],
    ]} />
    ${entry.deliveries.length > 0 &&
    html`<h3>Deliveries <span class="faint">${number(entry.deliveriesTotal)}</span></h3>
      <ol class="deliveries">
        ${entry.deliveries.map(
          (one, at) => html`<li key=${at}><${Time} value=${one.at} /> <span class="faint">connection ${one.connection}${one.link === undefined ? "" : html`, <${Text} value=${one.link} max=${100} />`}: ${one.ended === undefined ? outcome : (ENDED[one.ended] ?? one.ended)}</span></li>`,
        )}
      </ol>`}
  </section>`;
}

/** Where a message was sent back from. */
export const Origin = ({ message }) =>
  message.properties?.[FROM] === undefined ? null : html`<p class="note">It was sent back from <${EntityLink} entity=${String(message.properties[FROM])} />.</p>`;
