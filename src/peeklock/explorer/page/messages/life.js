// The life of a message: what the event log tells of it.
import { api, entityPath } from "../api.js";
import { useLoad } from "../hooks.js";
import { html, useState } from "../lib.js";
import { duration, instant, plural } from "../format.js";
import { session } from "../session.js";
import { Badge, Button, Empty, Loading, Refusal, Text, Time } from "../ui.js";
import { EntityLink } from "./facts.js";

const TONES = {
  enqueued: "accent", scheduled: "accent", activated: "accent", delivered: "plain", renewed: "plain", completed: "good",
  abandoned: "warn", released: "warn", deferred: "warn", lock_lapsed: "bad", dead_lettered: "bad", expired: "bad", purged: "bad", cancelled: "bad",
};

const isAway = (type) => ["dead_lettered", "forwarded", "activated"].includes(type);

function Details({ event }) {
  const parts = [];
  if (event.reason) parts.push(html`<${Text} value=${event.reason} max=${500} />`);
  if (event.type === "delivered" && event.deliveryCount) parts.push(`delivery ${event.deliveryCount}`);
  if (event.lockedUntil) parts.push(`locked until ${instant(event.lockedUntil)}`);
  if (event.scheduledEnqueueTime && event.type === "scheduled") parts.push(`for ${instant(event.scheduledEnqueueTime)}`);
  if (event.connectionId) parts.push(html`connection ${event.connectionId}${event.linkName ? html`, <${Text} value=${event.linkName} max=${100} />` : ""}`);
  if (event.connectionLost) parts.push("the connection broke");
  if (event.transactionId) parts.push("in a transaction");
  return html`
    ${event.relatedEntity && html`<span>${isAway(event.type) ? "to" : "from"} <${EntityLink} entity=${event.relatedEntity} message=${event.relatedSequenceNumber} /></span>`}
    ${parts.map((part, at) => html`<span key=${at} class="faint">${part}</span>`)}
  `;
}

function Events({ life, isLoading, onRefresh }) {
  const { events, asOf, isCut } = life;
  const until = asOf ? `The log has what happened until ${instant(asOf)}.` : "The log has nothing yet.";
  const again = html`<button type="button" class="link" disabled=${isLoading} onClick=${onRefresh}>Look again</button>`; // another look would end the one under way
  if (events.length === 0) return html`<${Empty} title="The log has nothing of this message" icon="clock">${until} It is written in intervals. ${again}<//>`;
  const began = Date.parse(events[0].time);
  return html`<ol class="life">
      ${events.map(
        (event) => html`<li key=${`${event.batch}.${event.index}`}>
          <${Time} value=${event.time} /><span class="faint life-after">${event === events[0] ? "" : `+${duration((Date.parse(event.time) - began) / 1000)}`}</span>
          <${Badge} tone=${TONES[event.type] ?? "plain"}>${event.type.replaceAll("_", " ")}<//>
          <span class="life-details"><${Details} event=${event} /></span>
        </li>`,
      )}
    </ol>
    <p class="faint">${isCut ? `The first ${plural(events.length, "event")} are shown. ` : ""}${until} ${again}</p>`;
}

/** The life of a message; it is asked for when it is wanted, as a process of its own reads the log. */
export function Life({ entity, number }) {
  const [isOpen, setOpen] = useState(false);
  const { value, problem, isLoading, reload } = useLoad((signal) => api.get(entityPath(entity, "messages", number, "life"), { signal }), [entity, number], { isOn: isOpen });
  if (!session.value.me.has.eventLog) return null;
  let shown = html`<${Button} icon="clock" onClick=${() => setOpen(true)}>Show what happened to it<//>`;
  if (isOpen) {
    if (problem) shown = html`<${Refusal} problem=${problem} onRetry=${reload} />`;
    else shown = value ? html`<${Events} life=${value} isLoading=${isLoading} onRefresh=${reload} />` : html`<${Loading} text="Reading the event log" />`;
  }
  return html`<section class="card" aria-label="Life"><h2>Life</h2><div class="stack">${shown}</div></section>`;
}
