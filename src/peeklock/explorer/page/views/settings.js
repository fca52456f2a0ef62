// The settings of an entity: shown, changed; and its end.
import { html, useState } from "../lib.js";
import { api, entityPath } from "../api.js";
import { refreshCounts } from "../counts.js";
import { EntityPage, nameParts } from "../entity.js";
import { bytes, number, plural } from "../format.js";
import { go } from "../router.js";
import { can } from "../session.js";
import { SettingsFields, areWhole, shownSetting, titleOf } from "../settings_form.js";
import { Button, Confirm, Facts, Refusal, Text, Time, toast } from "../ui.js";

function About({ shown }) {
  const { counts } = shown;
  const items = [
    ["Name", html`<${Text} value=${shown.name} mono />`],
    ["Created", html`<${Time} value=${shown.createdAt} />`],
    ["Changed", html`<${Time} value=${shown.updatedAt} />`],
    ["Last used", html`<${Time} value=${shown.accessedAt} />`],
    ["Size", bytes(shown.sizeBytes)],
    ["Messages", `${number(counts.active)} active, ${number(counts.scheduled)} scheduled, ${number(counts.deadLetter)} dead letters${counts.transferDeadLetter ? `, ${number(counts.transferDeadLetter)} not forwarded` : ""}`],
    ["Subscriptions", shown.subscriptionCount === undefined ? undefined : number(shown.subscriptionCount)],
  ];
  return html`<section class="card" aria-label="About"><h2>About</h2><${Facts} items=${items} /></section>`;
}

function Delete({ shown, onClose }) {
  const { name, kind, counts } = shown;
  const { topic, subscription } = nameParts(name);
  const all = counts.active + counts.scheduled + counts.deadLetter + counts.transferDeadLetter;
  const run = async () => {
    await api.del(entityPath(name));
    toast(`The ${kind} is deleted`);
    refreshCounts();
    go(topic ? ["entities", topic, "subscriptions"] : []);
  };
  return html`<${Confirm} title=${`Delete the ${kind}`} label="Delete it for good" isDanger typed=${subscription || name} run=${run} onClose=${onClose}>
    <p>
      <b><${Text} value=${name} /></b> goes with ${all === 0 ? "no message in it" : `its ${plural(all, "message")}`}${kind === "topic" ? `, and with its ${plural(shown.subscriptionCount, "subscription")} and their messages` : ""}.
      ${counts.deadLetter > 0 && html` ${plural(counts.deadLetter, "of them is a dead letter", "of them are dead letters")}.`}
    </p>
    <p class="note warn">Nothing brings it back. Links of clients to it are detached.</p>
  <//>`;
}

function Form({ shown, reload }) {
  const { name, kind, settings } = shown;
  const isAllowed = can("Manage", name);
  const [edits, setEdits] = useState({}); // by name: {value, base}, where base is what it was when it was touched
  const [state, setState] = useState({ isBusy: false, problem: null });
  const [isDeleting, setDeleting] = useState(false);
  const values = { ...settings };
  const changed = {};
  const notes = {};
  for (const [one, { value, base }] of Object.entries(edits)) {
    values[one] = value;
    if (Object.is(value, settings[one])) continue;
    changed[one] = value ?? null;
    if (!Object.is(base, settings[one])) notes[one] = `Meanwhile somebody has set it to: ${shownSetting(one, settings[one])}.`;
  }
  const names = Object.keys(changed);
  const isReady = names.length > 0 && areWhole(changed);
  const change = (one, value) => setEdits({ ...edits, [one]: { value, base: edits[one] ? edits[one].base : settings[one] } });
  const save = async (event) => {
    event.preventDefault();
    if (!isReady || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      await api.patch(entityPath(name), { body: { settings: changed } });
      reload();
      toast(names.length === 1 ? `${titleOf(names[0])} is set` : `${names.length} settings are set`);
      setEdits({});
      setState({ isBusy: false, problem: null });
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  return html`<form class="stack" onSubmit=${save} novalidate>
    <${About} shown=${shown} />
    ${!isAllowed && html`<p class="note">This key may look at the settings. To change them needs Manage.</p>`}
    <${SettingsFields} kind=${kind} values=${values} onChange=${change} disabled=${!isAllowed} notes=${notes} name=${name} />
    ${isAllowed &&
    html`<section class="card danger" aria-label="Delete">
      <div class="card-head">
        <div><h2>Delete the ${kind}</h2><p class="faint">With all that is in it.</p></div>
        <div class="spread"></div>
        <${Button} kind="danger" icon="trash" onClick=${() => setDeleting(true)}>Delete<//>
      </div>
    </section>`}
    ${names.length > 0 &&
    html`<div class="save-bar" role="group" aria-label="Changes">
      ${state.problem && html`<${Refusal} problem=${state.problem} />`}
      <div class="row-of">
        <span class="save-names">${names.map((one) => html`<span key=${one}><b>${titleOf(one)}</b> <span class="faint">${shownSetting(one, settings[one])} →</span> ${Number.isNaN(changed[one]) ? "?" : shownSetting(one, changed[one])}</span>`)}</span>
        <div class="spread"></div>
        <${Button} onClick=${() => (setEdits({}), setState({ isBusy: false, problem: null }))}>Undo<//>
        <${Button} type="submit" kind="primary" disabled=${!isReady} isBusy=${state.isBusy}>Save<//>
      </div>
    </div>`}
    ${isDeleting && html`<${Delete} shown=${shown} onClose=${() => setDeleting(false)} />`}
  </form>`;
}

export default function Settings({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="settings">${(shown, reload) => html`<${Form} key=${shown.createdAt} shown=${shown} reload=${reload} />`}<//>`;
}
