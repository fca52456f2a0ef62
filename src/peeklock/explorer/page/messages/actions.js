// What can be done to messages: to those that are chosen, and to all of an entity that match.
import { refreshCounts } from "../counts.js";
import { nameParts } from "../entity.js";
import { html, useState } from "../lib.js";
import { plural } from "../format.js";
import { can, maySend, session } from "../session.js";
import { useCommands } from "../ui/palette.js";
import { Button, toast, useShortcuts } from "../ui.js";
import { downloadFound, downloadRows } from "./download.js";
import { JobDialog } from "./job_dialog.js";
import { forgetListings } from "./listing.js";
import { ReceiveDialog } from "./receive.js";
import { SendDialog, targetOf } from "./send.js";
import { CancelDialog, CompleteDialog, DeadLetterDialog, DeferDialog, RescheduleDialog, isActive, isDeferred, isScheduled, isSettled } from "./settle.js";
import { bodyOfCriteria, criteriaOf } from "./criteria.js";

const hasJobs = () => session.value.me.has.jobs;

/** Works on chosen messages: a dialog each, what it takes, and when it is offered. */
const CHOSEN = [
  { id: "complete", label: "Complete", icon: "check", takes: isSettled, Shown: CompleteDialog, key: "c" },
  { id: "deadLetter", label: "Dead-letter", icon: "dead", takes: isSettled, Shown: DeadLetterDialog, isOffered: ({ subQueue }) => !subQueue, key: "d" },
  { id: "defer", label: "Defer", icon: "clock", takes: isActive, Shown: DeferDialog, isOffered: ({ subQueue }) => !subQueue },
  { id: "receive", label: "Receive", icon: "lock", takes: isDeferred, Shown: ReceiveDialog, isOffered: ({ requiresSession }) => !requiresSession },
  { id: "reschedule", label: "Move the schedule", icon: "clock", takes: isScheduled, Shown: RescheduleDialog },
  { id: "cancel", label: "Cancel the schedule", icon: "trash", takes: isScheduled, Shown: CancelDialog },
  { id: "resubmit", label: "Send back", icon: "send", takes: isActive, work: "resubmit", isOffered: ({ subQueue }) => subQueue && hasJobs() && maySend() },
  { id: "move", label: "Move", icon: "right", takes: isActive, work: "move", isOffered: () => hasJobs() && maySend() },
];

/**
 * Return {buttons, dialog} of what can be done to rows, and offer its keys. `onDone(numbers, outcome)`: with what outcome
 * they left; empty = look what became of them. The dialog is to be drawn whether there are rows or not: they leave while
 * it is at work.
 */
export function useRowActions({ entity, shown, rows, onDone, small, what = "the chosen messages" }) {
  const [open, setOpen] = useState(null); // {action, rows}
  const [isBusy, setBusy] = useState(false);
  const { subQueue } = nameParts(entity);
  const about = { subQueue, requiresSession: shown.settings.requiresSession };
  const offered = can("Listen", entity) ? CHOSEN.filter((one) => (one.isOffered?.(about) ?? true) && rows.some(one.takes)) : [];
  const names = offered.map((one) => one.id).join();
  const begin = (action) => setOpen({ action, rows });
  const download = async () => {
    setBusy(true);
    try {
      await downloadRows(rows, entity);
    } catch (problem) {
      toast(`Not downloaded: ${problem.message}`, { kind: "bad" });
    }
    setBusy(false);
  };
  useShortcuts(offered.filter((one) => one.key).map((one) => ({ keys: one.key, name: `${one.label}: ${what}`, run: () => begin(one) })), [rows, names]);
  useCommands(offered.map((one) => ({ name: `${one.label}: ${what}`, icon: one.icon, hint: one.key, run: () => begin(one) })), [rows, names]);
  const close = () => setOpen(null);
  const numbers = open?.rows.filter(open.action.takes).map((row) => row.number);
  const dialog = open && (open.action.work
    ? html`<${JobDialog} work=${open.action.work} entity=${entity} numbers=${numbers} onDone=${() => onDone(numbers, "")} onClose=${close} />`
    : html`<${open.action.Shown} entity=${entity} rows=${open.rows} onDone=${onDone} onClose=${close} />`);
  const buttons = html`
    ${offered.map((one) => html`<${Button} key=${one.id} small=${small} icon=${one.icon} onClick=${() => begin(one)}>${one.label}<//>`)}
    <${Button} small=${small} icon="download" isBusy=${isBusy} onClick=${download}>Download<//>
  `;
  return { buttons, dialog };
}

/** The bar of what can be done to chosen rows: it stands in the foot of their table, which has the place for it. */
export function ChosenBar({ entity, shown, rows, onDone, onClear }) {
  const { buttons, dialog } = useRowActions({ entity, shown, rows, onDone, small: true });
  useShortcuts(rows.length ? [{ keys: "Escape", name: "Choose none", run: onClear }] : [], [rows.length > 0]);
  const bar = html`<div class="chosen-bar" role="toolbar" aria-label="Chosen messages">
    <b>${plural(rows.length, "message")} chosen</b>
    ${buttons}
    <${Button} small kind="quiet" onClick=${onClear}>Choose none<//>
  </div>`;
  return html`${rows.length > 0 && bar}${dialog}`;
}

/** Works on all messages that match: the icon and the name. */
const WHOLE = {
  resubmit: ["send", "Send back…"],
  move: ["right", "Move…"],
  purge: ["trash", "Delete…"],
  reschedule: ["clock", "Move the schedule…"],
  cancel: ["trash", "Cancel the schedule…"],
};

/** Return the works that this key may do to all messages of an entity that match. A topic has scheduled messages alone. */
function worksOf(entity, kind, state) {
  const { base, subQueue } = nameParts(entity);
  if (!can("Listen", base) || !hasJobs()) return [];
  const mayReschedule = can("Send", base) ? ["reschedule"] : [];
  if (kind === "topic") return mayReschedule;
  if (subQueue) return maySend() ? ["resubmit", "move", "purge"] : ["purge"];
  if (state === "scheduled") return [...mayReschedule, "cancel"];
  return maySend() ? ["move", "purge"] : ["purge"];
}

/** Buttons for the whole of an entity: send, and works on all messages that match. */
export function WholeActions({ entity, kind, query = {}, criteria = criteriaOf({ ...query, states: query.state }), onSent }) {
  const [open, setOpen] = useState("");
  const { base, subQueue } = nameParts(entity);
  const target = targetOf(entity);
  const canSend = can("Send", target) && subQueue === "";
  const works = worksOf(entity, kind, query.state);
  const canSearch = kind !== "topic" && can("Listen", base) && hasJobs();
  const done = () => {
    forgetListings();
    refreshCounts();
  };
  useShortcuts(canSend ? [{ keys: "n", name: "Send a message", run: () => setOpen("send") }] : [], [canSend, entity]);
  useCommands(
    [
      ...(canSend ? [{ name: "Send a message", icon: "send", hint: "n", run: () => setOpen("send") }] : []),
      ...works.map((work) => ({ name: `${WHOLE[work][1].replace("…", "")}: messages that match`, icon: WHOLE[work][0], run: () => setOpen(work) })),
    ],
    [entity, canSend, works.join()],
  );
  return html`
    ${works.map((work) => html`<${Button} key=${work} icon=${WHOLE[work][0]} onClick=${() => setOpen(work)}>${WHOLE[work][1]}<//>`)}
    ${canSearch && html`<${Button} icon="download" onClick=${() => downloadFound({ entity, ...bodyOfCriteria(criteria) }, entity).catch((problem) => toast(`Not downloaded: ${problem.message}`, { kind: "bad" }))}>Download<//>`}
    ${canSend && html`<${Button} kind="primary" icon="send" onClick=${() => setOpen("send")}>Send<//>`}
    ${open === "send" && html`<${SendDialog} entity=${entity} onSent=${onSent} onClose=${() => setOpen("")} />`}
    ${open && open !== "send" && html`<${JobDialog} work=${open} entity=${entity} criteria=${criteria} onDone=${done} onClose=${() => setOpen("")} />`}
  `;
}
