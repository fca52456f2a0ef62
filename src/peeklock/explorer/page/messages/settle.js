// Dialogs that settle chosen messages: complete, dead-letter, defer; cancel or move what is scheduled.
import { api, entityPath } from "../api.js";
import { zoneOf } from "../format.js";
import { html, useState } from "../lib.js";
import { Field } from "../ui.js";
import { localTime } from "./compose.js";
import { EachDialog } from "./each.js";

const isFree = (row) => row.left === null && !row.isLocked;
const isHere = (row) => isFree(row) && row.state !== "scheduled";
export const isScheduled = (row) => row.left === null && row.state === "scheduled";
export const isDeferred = (row) => isFree(row) && row.state === "deferred";
export const isSettled = isHere;
export const isActive = (row) => isFree(row) && row.state === "active";

const path = (row) => entityPath(row.entity, "messages", row.number);

export const CompleteDialog = (props) => html`<${EachDialog} title="Complete" label="Complete" past="completed" left="completed" isDanger
  takes=${isHere} call=${(row, signal) => api.del(path(row), { signal })} ...${props}>
  <p class="note warn">A completed message is gone. There is no way back.</p>
<//>`;

export const CancelDialog = (props) => html`<${EachDialog} title="Cancel the schedule" label="Cancel the messages" dismiss="Keep the messages" past="cancelled" left="cancelled" isDanger
  takes=${isScheduled} call=${(row, signal) => api.del(path(row), { signal })} ...${props}>
  <p class="note warn">A cancelled message is gone. There is no way back.</p>
<//>`;

export const DeferDialog = (props) => html`<${EachDialog} title="Defer" label="Defer" past="deferred"
  takes=${isActive} call=${(row, signal) => api.patch(path(row), { body: { to: "deferred" }, signal })} ...${props}>
  <p class="faint">A deferred message stays in the queue. Only who asks for its number receives it.</p>
<//>`;

export function DeadLetterDialog(props) {
  const [reason, setReason] = useState("");
  const [description, setDescription] = useState("");
  const call = (row, signal) =>
    api.patch(path(row), { body: { to: "deadLetter", reason: reason || undefined, description: description || undefined }, signal });
  return html`<${EachDialog} title="Dead-letter" label="Dead-letter" past="dead-lettered" left="dead-lettered" takes=${isHere} call=${call} ...${props}>
    <${Field} label="Reason" value=${reason} onInput=${setReason} maxlength="4096" help="People group dead letters by it." autofocus />
    <${Field} label="Description" type="textarea" value=${description} onInput=${setDescription} maxlength="4096" rows="3" />
  <//>`;
}

export function RescheduleDialog(props) {
  const [at, setAt] = useState(localTime(props.rows[0].scheduledEnqueueTime ?? Date.now()));
  const isGood = !Number.isNaN(Date.parse(at));
  const call = (row, signal) => api.patch(path(row), { body: { scheduledEnqueueTime: new Date(at).toISOString() }, signal });
  return html`<${EachDialog} title="Move the schedule" label="Move" past="moved in time" takes=${isScheduled} call=${call} isReady=${isGood} ...${props}>
    <${Field} label="Enqueue at" type="datetime-local" step="1" value=${at} onInput=${setAt} help=${`In your zone, ${zoneOf(at)}. A past time means now.`} />
  <//>`;
}
