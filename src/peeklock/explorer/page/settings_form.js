// The settings of entities as a form: one table for making and changing them.
import { html, useMemo } from "./lib.js";
import { useCounts } from "./counts.js";
import { duration, number } from "./format.js";
import { can } from "./session.js";
import { Badge, Field } from "./ui.js";
import { DurationField } from "./ui/duration.js";

const ALL = ["queue", "topic", "subscription"];
const HOLDERS = ["queue", "subscription"]; // of messages
const SENT_TO = ["queue", "topic"];

const STATUSES = [
  ["Active", "Active"],
  ["SendDisabled", "Sends are refused"],
  ["ReceiveDisabled", "Receives are refused"],
  ["Disabled", "Disabled"],
];

/**
 * `type`: "duration" (seconds), "number", "boolean", "text", "entity" or "status"; `unlimited`: what an absent duration
 * is called; `isFixed`: set at creation alone; `standard`: the value of a new entity. Ranges are the broker's.
 */
const SECTIONS = [
  {
    title: "Delivery",
    settings: [
      { name: "lockDuration", title: "Lock duration", type: "duration", kinds: HOLDERS, standard: 60, help: "How long a received message stays locked for its receiver: 5 seconds to 5 minutes. Receivers can renew a lock." },
      { name: "maxDeliveryCount", title: "Maximum delivery count", type: "number", kinds: HOLDERS, standard: 10, help: "After so many deliveries without success a message is dead-lettered." },
      { name: "requiresSession", title: "Require sessions", type: "boolean", kinds: HOLDERS, isFixed: true, standard: false, help: "Each message has a session id, and one receiver at a time gets the messages of a session, in order." },
      { name: "supportOrdering", title: "Keep the order", type: "boolean", kinds: ["topic"], standard: true, help: "Subscriptions get messages in the order of their sends." },
    ],
  },
  {
    title: "Life of messages",
    settings: [
      { name: "defaultTimeToLive", title: "Default time to live", type: "duration", unlimited: "unlimited", kinds: ALL, help: "How long a message lives, unless it says less." },
      { name: "deadLetteringOnExpiration", title: "Dead-letter what expires", type: "boolean", kinds: HOLDERS, standard: false, help: "Expired messages go to the dead-letter queue. Else they are dropped." },
      { name: "deadLetteringOnFilterErrors", title: "Dead-letter on filter errors", type: "boolean", kinds: ["subscription"], standard: true, help: "Messages that a filter cannot evaluate go to the dead-letter queue. Else they are dropped." },
    ],
  },
  {
    title: "Forwarding",
    settings: [
      { name: "forwardTo", title: "Forward to", type: "entity", kinds: HOLDERS, help: "A queue or topic that gets each message. Nobody receives from this entity then." },
      { name: "forwardDeadLetteredTo", title: "Forward dead letters to", type: "entity", kinds: HOLDERS, help: "A queue or topic that gets each dead-lettered message." },
    ],
  },
  {
    title: "Duplicates",
    settings: [
      { name: "requiresDuplicateDetection", title: "Detect duplicates", type: "boolean", kinds: SENT_TO, isFixed: true, standard: false, help: "A message whose id came before is dropped." },
      { name: "duplicateDetectionWindow", title: "Window", type: "duration", kinds: SENT_TO, standard: 600, isOn: (values) => values.requiresDuplicateDetection, help: "How long message ids are remembered: 20 seconds to 7 days." },
    ],
  },
  {
    title: "Size",
    settings: [
      { name: "maxSizeMegabytes", title: "Maximum size (MB)", type: "number", kinds: SENT_TO, standard: 1024, help: "Sends are refused when the messages of a partition have so many megabytes. Whole gigabytes." },
      { name: "maxMessageSizeKilobytes", title: "Largest message (KB)", type: "number", kinds: SENT_TO, help: "In the premium tier. Empty is the tier's own limit." },
      { name: "partitioned", title: "Partitioned", type: "boolean", kinds: SENT_TO, isFixed: true, standard: false, help: "Messages are divided over 16 partitions, by session or partition key." },
    ],
  },
  {
    title: "The entity",
    settings: [
      { name: "status", title: "Status", type: "status", kinds: ALL, standard: "Active", help: "What clients may do with it." },
      { name: "autoDeleteOnIdle", title: "Delete when idle", type: "duration", unlimited: "never", kinds: ALL, help: "The entity is deleted when nobody has used it for so long: 5 minutes at least." },
      { name: "userMetadata", title: "Note", type: "text", kinds: ALL, help: "Any text of up to 1,024 characters. The broker only keeps it." },
      { name: "batchedOperations", title: "Batched operations", type: "boolean", kinds: ALL, standard: true, help: "Kept for clients that ask. The broker always batches." },
      { name: "express", title: "Express", type: "boolean", kinds: SENT_TO, standard: false, help: "Kept for clients that ask. The broker keeps all messages alike." },
    ],
  },
];

/** Return what a new entity of a kind has; absent = unlimited, or not set. */
export function standardSettings(kind) {
  const found = {};
  for (const { settings } of SECTIONS) {
    for (const { name, kinds, standard } of settings) if (kinds.includes(kind) && standard !== undefined) found[name] = standard;
  }
  return found;
}

const isSame = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));

/** Return what differs, as `settings` of the API: null sets the default of what is absent. */
export function changesOf(before, after) {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  const found = {};
  for (const name of names) if (!isSame(before[name] ?? undefined, after[name] ?? undefined)) found[name] = after[name] ?? null;
  return found;
}

/** Return whether the values can be sent: no duration or number is malformed. */
export const areWhole = (values) => Object.values(values).every((value) => !Number.isNaN(value));

/** Return a value as a word or two. */
export function shownSetting(name, value) {
  const setting = SECTIONS.flatMap((section) => section.settings).find((one) => one.name === name);
  if (value === undefined || value === null) return setting?.unlimited ?? "not set";
  if (setting?.type === "duration") return duration(value);
  if (setting?.type === "boolean") return value ? "on" : "off";
  return typeof value === "number" ? number(value) : String(value);
}

export const titleOf = (name) => SECTIONS.flatMap((section) => section.settings).find((one) => one.name === name)?.title ?? name;

function Setting({ setting, value, onInput, disabled, note }) {
  const { title, type, unlimited, isFixed } = setting;
  const label = html`${title}${isFixed && html` <${Badge}>fixed<//>`}`;
  const shared = { label: isFixed ? label : title, help: setting.help, disabled, problem: note };
  if (type === "duration") return html`<${DurationField} ...${shared} label=${title} value=${value} onInput=${onInput} unlimited=${unlimited} />`;
  if (type === "boolean") return html`<${Field} ...${shared} type="checkbox" value=${!!value} onInput=${onInput} />`;
  if (type === "status") return html`<${Field} ...${shared} type="select" options=${STATUSES} value=${value} onInput=${onInput} />`;
  if (type === "number") return html`<${Field} ...${shared} type="number" min="1" step="1" value=${value} onInput=${onInput} />`;
  if (type === "entity") return html`<${Field} ...${shared} mono list="forward-targets" autocomplete="off" spellcheck=${false} value=${value} onInput=${(text) => onInput(text || undefined)} />`;
  return html`<${Field} ...${shared} type="textarea" rows="2" maxlength="1024" value=${value} onInput=${(text) => onInput(text || undefined)} />`;
}

/** Names of queues and topics, to choose from in a field. */
function ForwardTargets({ except }) {
  const { list } = useCounts(can("Manage"));
  const names = useMemo(() => (list ?? []).filter((one) => one.kind !== "subscription" && one.name !== except).map((one) => one.name).slice(0, 1000), [list, except]);
  return html`<datalist id="forward-targets">${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}

/**
 * The fields. `values` by name; `onChange(name, value)`; `isNew`: fixed ones can be set; `disabled`: all of them;
 * `notes`: problems by name; `name`: of the entity.
 */
export function SettingsFields({ kind, values, onChange, isNew, disabled, notes = {}, name }) {
  const sections = SECTIONS.map(({ title, settings }) => ({
    title,
    settings: settings.filter((one) => one.kinds.includes(kind) && (one.isOn?.(values) ?? true)),
  })).filter(({ settings }) => settings.length > 0);
  return html`<div class="settings">
    <${ForwardTargets} except=${name} />
    ${sections.map(
      ({ title, settings }) => html`<section key=${title} class="card" aria-label=${title}>
        <h2>${title}</h2>
        <div class="form-grid wide">
          ${settings.map((setting) => html`<${Setting} key=${setting.name} setting=${setting} value=${values[setting.name]} onInput=${(value) => onChange(setting.name, value)} disabled=${disabled || (setting.isFixed && !isNew)} note=${notes[setting.name]} />`)}
        </div>
      </section>`,
    )}
  </div>`;
}
