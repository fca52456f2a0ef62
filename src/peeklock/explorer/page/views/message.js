// One message in full, and what can be done to it.
import { isCancelled } from "../api.js";
import { refreshCounts } from "../counts.js";
import { EntityPage, nameParts } from "../entity.js";
import { useLoad } from "../hooks.js";
import { html, useMemo, useState } from "../lib.js";
import { useRowActions } from "../messages/actions.js";
import { Body } from "../messages/body.js";
import { formOf } from "../messages/compose.js";
import { ApplicationProperties, Death, Ids, Left, Origin, Times } from "../messages/facts.js";
import { Life } from "../messages/life.js";
import { loadMessage, neighbour, statusOf } from "../messages/loading.js";
import { isCut, rowOf } from "../messages/model.js";
import { Sections, typesOf } from "../messages/sections.js";
import { SendDialog, targetOf } from "../messages/send.js";
import { State } from "../messages/table.js";
import { go, href } from "../router.js";
import { can, session } from "../session.js";
import { Button, IconButton, LinkButton, Loading, Refusal, toast, useShortcuts } from "../ui.js";

const BODY_BYTES = 256 * 1024; // shown at first
const STATUS_MS = 3000;

/** What changes while a message is looked at. */
const CHANGING = ["state", "lockedUntil", "heldByCursor", "deliveryCount", "scheduledEnqueueTime"];

function useMessage(entity, number) {
  const hasHistory = session.value.me.has.history;
  const [isWhole, setWhole] = useState(false);
  const load = (signal) => loadMessage(entity, number, { bodyBytesMax: isWhole ? undefined : BODY_BYTES, hasHistory, signal });
  const { value, problem, reload } = useLoad(load, [entity, number, isWhole]);
  const isHere = value !== undefined && value.entry === null;
  const status = useLoad(
    async (signal) => {
      const found = await statusOf(entity, number, signal);
      if (found === undefined) reload();
      return found;
    },
    [entity, number],
    { everyMs: STATUS_MS, isOn: isHere },
  );
  const message = useMemo(() => {
    if (!value || value.entry || !status.value) return value?.message;
    return { ...value.message, ...Object.fromEntries(CHANGING.map((name) => [name, status.value[name]])) };
  }, [value, status.value]);
  return { message, entry: value?.entry ?? null, problem: problem ?? (isHere ? status.problem : null), reload, onWhole: () => setWhole(true) };
}

function Steps({ entity, number }) {
  const step = async (by) => {
    try {
      const found = await neighbour(entity, number, by);
      if (found === undefined) toast(by > 0 ? "This is the last message" : "This is the first message");
      else go(["entities", entity, "messages", found], {}, { replace: true });
    } catch (problem) {
      if (!isCancelled(problem)) toast(problem.message, { kind: "bad" });
    }
  };
  const back = ["entities", entity, "messages"];
  useShortcuts(
    [
      { keys: "j", name: "Next message", run: () => step(1) },
      { keys: "k", name: "Previous message", run: () => step(-1) },
      { keys: "u", name: "Back to the list", run: () => go(back) },
    ],
    [entity, number],
  );
  return html`<div class="row-of">
    <${LinkButton} kind="quiet small" icon="left" href=${href(back)}>All messages<//>
    <${IconButton} icon="up" label="Previous message (k)" onClick=${() => step(-1)} />
    <${IconButton} icon="down" label="Next message (j)" onClick=${() => step(1)} />
  </div>`;
}

function Shown({ entity, number, shown, reloadEntity }) {
  const { message, entry, problem, reload, onWhole } = useMessage(entity, number);
  const [isEditing, setEditing] = useState(null); // the form
  const { subQueue } = nameParts(entity);
  const row = useMemo(() => message && { ...rowOf(message, entity), left: entry ? { outcome: entry.outcome } : null }, [message, entry]);
  const rows = useMemo(() => (row && !entry ? [row] : []), [row, entry]);
  const canSend = can("Send", targetOf(entity));
  const whole = async () => (await loadMessage(entity, number, { hasHistory: false })).message;
  const edit = async () => {
    try {
      setEditing(formOf(isCut(message) ? await whole() : message));
    } catch (failure) {
      toast(failure.message, { kind: "bad" });
    }
  };
  const canEdit = canSend && message !== undefined && !message.bodyCut;
  useShortcuts(canEdit ? [{ keys: "e", name: "Edit and send again", run: edit }] : [], [canEdit, message]);
  const onDone = () => {
    reload();
    reloadEntity();
    refreshCounts();
  };
  const { buttons, dialog } = useRowActions({ entity, shown, rows, onDone, what: "this message" });
  if (message === undefined) {
    return html`<${Steps} entity=${entity} number=${number} />
      ${problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`}`;
  }
  return html`
    <div class="message-head">
      <h2>Message ${number}</h2> <${State} row=${row} />
      <span class="spread"></span>
      <${Steps} entity=${entity} number=${number} />
    </div>
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    <div class="toolbar" role="toolbar" aria-label="Actions">
      ${canEdit && html`<${Button} icon="edit" onClick=${edit}>Edit and send<//>`}
      ${rows.length > 0 && buttons}
    </div>
    ${dialog}
    <${Left} entry=${entry} />
    <${Death} message=${message} isDead=${subQueue !== ""} />
    <${Origin} message=${message} />
    <div class="message-columns">
      <div class="stack"><${Body} message=${message} name=${`${entity}-${number}`} onWhole=${entry ? undefined : onWhole} whole=${whole} /></div>
      <div class="stack">
        <${Times} message=${message} />
        <${Ids} message=${message} />
        <${ApplicationProperties} message=${message} typed=${typesOf(message)} />
      </div>
    </div>
    <${Life} entity=${entity} number=${number} />
    <${Sections} message=${message} />
    ${isEditing && html`<${SendDialog} entity=${entity} initial=${isEditing} original=${{ entity, number }} requiresSession=${shown.settings.requiresSession} onSent=${onDone} onClose=${() => setEditing(null)} />`}
  `;
}

export default function Message({ entity, number }) {
  return html`<${EntityPage} entity=${entity} tab=${nameParts(entity).subQueue ? "dead-letters" : "messages"}>
    ${(shown, reload) => html`<${Shown} entity=${entity} number=${Number(number)} shown=${shown} reloadEntity=${reload} />`}
  <//>`;
}
