// The dialog that sends: one message with all its properties, several copies of it, or a file.
import { api, entityPath } from "../api.js";
import { refreshCounts } from "../counts.js";
import { nameParts } from "../entity.js";
import { html, useMemo, useState } from "../lib.js";
import { plural, zoneOf } from "../format.js";
import { can } from "../session.js";
import { Button, Dialog, Field, Progress, Refusal, Tabs, toast } from "../ui.js";
import { blank, copiesOf, faultsOf, localTime, messageOf } from "./compose.js";
import { toBase64 } from "./model.js";
import { PropertiesEditor } from "./properties_editor.js";
import { SendFile } from "./send_file.js";
import { sendAll } from "./sending.js";
import { Templates } from "./templates.js";

const TABS = [
  { id: "one", label: "A message" },
  { id: "file", label: "From a file" },
];
const FORMS = [
  ["text", "text"],
  ["json", "JSON"],
  ["base64", "bytes, as base64"],
];
const FIELDS = [
  ["subject", "Subject"],
  ["messageId", "Message id", "Empty: the broker gives none. A queue that detects duplicates drops a known id."],
  ["sessionId", "Session"],
  ["correlationId", "Correlation id"],
  ["contentType", "Content type"],
  ["to", "To"],
  ["replyTo", "Reply to"],
  ["replyToSessionId", "Reply to session"],
  ["partitionKey", "Partition key"],
];
const FILE_BYTES_MAX = 50 * 1024 * 1024;

/** Where a message of an entity is sent: its queue, or the topic of its subscription. */
export function targetOf(entity) {
  const { base, topic } = nameParts(entity);
  return topic || base;
}

function BodyOf({ form, set, fault }) {
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    if (file.size > FILE_BYTES_MAX) {
      toast("The file is larger than 50 MiB", { kind: "bad" });
      return;
    }
    const bytes = new Uint8Array(await file.arrayBuffer());
    try {
      set({ body: new TextDecoder("utf-8", { fatal: true }).decode(bytes), form: form.form === "json" ? "json" : "text" });
    } catch {
      set({ body: toBase64(bytes), form: "base64" });
    }
  };
  return html`<div class="stack tight">
    <${Field} label="Body" type="textarea" mono value=${form.body} onInput=${(body) => set({ body })} problem=${fault} spellcheck=${false} rows="8" autofocus />
    <div class="row-of">
      <label class="wanted"><span>sent as</span>
        <select class="input" value=${form.form} onChange=${(event) => set({ form: event.target.value })}>
          ${FORMS.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === form.form}>${text}</option>`)}
        </select>
      </label>
      <label class="button small quiet file-button">Take the body from a file<input type="file" class="offscreen" onChange=${read} /></label>
    </div>
  </div>`;
}

function Form({ form, set, faults, requiresSession }) {
  const setField = (name) => (value) => set({ fields: { ...form.fields, [name]: value } });
  return html`
    <${BodyOf} form=${form} set=${set} fault=${faults.body} />
    <div class="form-grid">
      ${FIELDS.map(
        ([name, label, help]) => html`<${Field} key=${name} label=${label} help=${name === "sessionId" && requiresSession ? "This entity requires one." : help} value=${form.fields[name] ?? ""} onInput=${setField(name)} problem=${faults[name]} autocomplete="off" spellcheck=${false} />`,
      )}
      <${Field} label="Time to live" help="Seconds. Empty: that of the entity." inputmode="decimal" value=${form.fields.timeToLive ?? ""} onInput=${setField("timeToLive")} problem=${faults.timeToLive} />
      <${Field} label="Enqueue at" type="datetime-local" step="1" help=${`Empty: at once. In your zone, ${zoneOf(form.fields.scheduledEnqueueTime)}.`} value=${form.fields.scheduledEnqueueTime ?? ""} onInput=${setField("scheduledEnqueueTime")} min=${localTime(Date.now())} />
      <${Field} label="Copies" type="number" min="1" max="10000" value=${form.copies} onInput=${(copies) => set({ copies })} problem=${faults.copies} help=${form.copies > 1 && form.fields.messageId ? "Each gets a message id of its own: id-1, id-2…" : undefined} />
    </div>
    <${PropertiesEditor} value=${form.properties} onChange=${(properties) => set({ properties })} />
  `;
}

/**
 * Send to an entity. `initial`: a form to begin with; `original`: {entity, number} of the message that is edited, which
 * can be removed once the new one is sent.
 */
export function SendDialog({ entity, initial, original, requiresSession, onSent = () => {}, onClose }) {
  const [tab, setTab] = useState("one");
  const [form, setForm] = useState(initial ?? blank());
  const [target, setTarget] = useState(targetOf(entity));
  const [isRemoving, setRemoving] = useState(false);
  const [state, setState] = useState({ isBusy: false, sent: 0, problem: null });
  const [isTried, setTried] = useState(false);
  const set = (part) => setForm((before) => ({ ...before, ...part }));
  const faults = useMemo(() => faultsOf(form), [form]);
  const hasFaults = Object.keys(faults).length > 0;
  const isAllowed = can("Send", target);
  const sent = () => {
    refreshCounts();
    onSent();
  };
  const send = async () => {
    setTried(true);
    if (tab !== "one" || hasFaults || state.isBusy || !isAllowed) return;
    setState({ isBusy: true, sent: 0, problem: null });
    try {
      const message = messageOf(form);
      await sendAll(target, copiesOf(message, form.copies), { onSent: (count) => setState((before) => ({ ...before, sent: count })) });
      if (isRemoving && original) await api.del(entityPath(original.entity, "messages", original.number));
      toast(`${plural(form.copies, "message")} ${message.scheduledEnqueueTime ? "scheduled" : "sent"} to ${target}${isRemoving ? "; the original is removed" : ""}`);
      sent();
      onClose();
    } catch (problem) {
      setState((before) => ({ ...before, isBusy: false, problem }));
      if (problem.sent) sent();
    }
  };
  const actions = html`
    <${Button} onClick=${onClose}>${tab === "file" ? "Close" : "Cancel"}<//>
    ${tab === "one" && html`<${Button} type="submit" kind="primary" icon="send" isBusy=${state.isBusy} disabled=${!isAllowed || (isTried && hasFaults)}>${form.copies > 1 ? `Send ${plural(form.copies, "copy", "copies")}` : "Send"}<//>`}
  `;
  return html`<${Dialog} title=${original ? `Edit message ${original.number} and send it` : "Send"} size="large" onClose=${onClose} onSubmit=${send} actions=${actions}>
    <${Field} label="To" mono value=${target} onInput=${setTarget} autocomplete="off" spellcheck=${false} problem=${isAllowed ? "" : "This key may not send there."} />
    ${!original && html`<${Tabs} items=${TABS} current=${tab} onChoose=${setTab} label="What to send" />`}
    <div role=${original ? undefined : "tabpanel"} aria-label=${original ? undefined : TABS.find((one) => one.id === tab).label} class="stack">
      ${tab === "file"
        ? html`<${SendFile} entity=${target} onSent=${sent} />`
        : html`<${Templates} form=${form} onChoose=${setForm} />
            <${Form} form=${form} set=${set} faults=${isTried || form.form !== "text" ? faults : {}} requiresSession=${requiresSession} />`}
    </div>
    ${original && can("Listen", original.entity) && html`<${Field} label=${`Remove the original, ${original.number} of ${original.entity}, once this is sent`} type="checkbox" value=${isRemoving} onInput=${setRemoving} />`}
    ${state.isBusy && form.copies > 1 && html`<${Progress} label="Sending" done=${state.sent} of=${form.copies} note="Sending" />`}
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
    ${state.problem?.sent > 0 && html`<p class="note warn">${plural(state.problem.sent, "message was", "messages were")} sent before.</p>`}
  <//>`;
}
