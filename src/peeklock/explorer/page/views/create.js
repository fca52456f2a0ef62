// A new queue, topic or subscription.
import { html, useMemo, useState } from "../lib.js";
import { api, entityPath } from "../api.js";
import { refreshCounts, useCounts } from "../counts.js";
import { go, href } from "../router.js";
import { RuleFields, formOf, ruleOf, useRuleCheck } from "../rule_form.js";
import { can } from "../session.js";
import { SettingsFields, areWhole, changesOf, standardSettings } from "../settings_form.js";
import { Button, Empty, Field, Icon, LinkButton, Page, Refusal, Text, toast } from "../ui.js";

const KINDS = [
  ["queue", "Queue", "Each message goes to one receiver."],
  ["topic", "Topic", "Each message goes to all subscriptions whose rules match it."],
  ["subscription", "Subscription", "Gets the messages of a topic that its rules match."],
];
const NAMES = "Letters, digits and . - _ , and for queues and topics also / between them.";

function Topics() {
  const { list } = useCounts(can("Manage"));
  const names = useMemo(() => (list ?? []).filter((one) => one.kind === "topic").map((one) => one.name).slice(0, 1000), [list]);
  return html`<datalist id="topics">${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}

function Kind({ kind, onKind }) {
  return html`<div class="kinds" role="group" aria-label="Kind">
    ${KINDS.map(
      ([key, title, text]) => html`<button key=${key} type="button" class="kind" aria-pressed=${key === kind ? "true" : "false"} onClick=${() => onKind(key)}>
        <${Icon} name=${key} size=${20} /><span><b>${title}</b><span class="faint">${text}</span></span>
      </button>`,
    )}
  </div>`;
}

function FirstRule({ rule, onChange }) {
  const checked = useRuleCheck(rule);
  return html`<section class="card" aria-label="First rule">
    <h2>First rule</h2>
    <${RuleFields} form=${rule} onChange=${onChange} checked=${checked} />
  </section>`;
}

export default function Create({ query }) {
  const [kind, setKind] = useState(query.topic ? "subscription" : (query.kind ?? "queue"));
  const [topic, setTopic] = useState(query.topic ?? "");
  const [name, setName] = useState("");
  const [edits, setEdits] = useState({}); // of settings, by kind
  const [rule, setRule] = useState(() => formOf());
  const [state, setState] = useState({ isBusy: false, problem: null });
  const standard = standardSettings(kind);
  const values = { ...standard, ...edits[kind] };
  const path = kind === "subscription" ? `${topic.trim()}/subscriptions/${name.trim()}` : name.trim();
  const isReady = name.trim() !== "" && (kind !== "subscription" || topic.trim() !== "") && areWhole(values);
  const change = (one, value) => setEdits({ ...edits, [kind]: { ...edits[kind], [one]: value } });
  const create = async (event) => {
    event.preventDefault();
    if (!isReady || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    const given = changesOf(standard, values);
    if (!values.requiresDuplicateDetection) delete given.duplicateDetectionWindow;
    const body = { kind, settings: given };
    if (kind === "subscription" && rule.kind !== "all") body.rule = ruleOf(rule);
    else if (kind === "subscription" && rule.action.trim()) body.rule = ruleOf(rule);
    try {
      const made = await api.put(entityPath(path), { body });
      toast(`The ${kind} is created`);
      refreshCounts();
      go(["entities", made.name], {}, { replace: true });
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  if (!can("Manage", query.topic ?? "")) {
    return html`<${Page} title="Create an entity"><${Empty} title="Not allowed" icon="lock">To create an entity needs a key with Manage.<//><//>`;
  }
  const { problem } = state;
  return html`<${Page} title="Create an entity">
    <form class="stack" onSubmit=${create} novalidate>
      <${Kind} kind=${kind} onKind=${setKind} />
      <section class="card" aria-label="Its name">
        <div class="form-grid wide">
          ${kind === "subscription" && html`<${Field} label="Topic" mono value=${topic} onInput=${setTopic} list="topics" autocomplete="off" spellcheck=${false} />`}
          <${Field} label="Name" mono value=${name} onInput=${setName} autofocus autocomplete="off" spellcheck=${false} help=${NAMES} />
        </div>
        <${Topics} />
      </section>
      ${kind === "subscription" && html`<${FirstRule} rule=${rule} onChange=${setRule} />`}
      <${SettingsFields} key=${kind} kind=${kind} values=${values} onChange=${change} isNew name=${path} />
      <div class="save-bar" role="group" aria-label="Create">
        ${problem && html`<${Refusal} problem=${problem} />`}
        ${problem?.status === 409 && html`<p><a href=${href(["entities", path])}>Open <${Text} value=${path} /></a></p>`}
        <div class="row-of">
          <span class="faint save-names">${isReady && html`<${Text} value=${path} mono />`}</span>
          <div class="spread"></div>
          <${LinkButton} href=${href(kind === "subscription" && query.topic ? ["entities", query.topic] : [])}>Cancel<//>
          <${Button} type="submit" kind="primary" disabled=${!isReady} isBusy=${state.isBusy}>Create the ${kind}<//>
        </div>
      </div>
    </form>
  <//>`;
}
