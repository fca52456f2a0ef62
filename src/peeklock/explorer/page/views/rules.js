// The rules of a subscription: which messages it gets, and how they are changed.
import { html, useMemo, useRef, useState } from "../lib.js";
import { api, entityPath } from "../api.js";
import { EntityPage, nameParts } from "../entity.js";
import { plural } from "../format.js";
import { useLoad, useSettled } from "../hooks.js";
import { href } from "../router.js";
import { RuleFields, RuleShown, filterName, formOf, ruleOf, useRuleCheck } from "../rule_form.js";
import { can } from "../session.js";
import { Badge, Button, Confirm, Dialog, Empty, LinkButton, Loading, Refusal, Text, toast, useShortcuts } from "../ui.js";
import { useCommands } from "../ui/palette.js";

const SHOWN_AT_FIRST = 100;

async function rulesOf(entity, signal) {
  const rules = [];
  for await (const rule of api.pages(entityPath(entity, "rules"), "rules", { signal })) rules.push(rule);
  return rules;
}

/** What a rule does, to compare. */
const contentOf = ({ filter, action, actionParameters }) => JSON.stringify([filter, action, actionParameters]);

function RuleDialog({ entity, rule, names, onClose, onDone }) {
  const isNew = rule === undefined;
  const [form, setForm] = useState(() => formOf(rule));
  const [state, setState] = useState({ isBusy: false, problem: null });
  const seen = useRef(rule && contentOf(rule)); // what the one who edits has seen
  const checked = useRuleCheck(form);
  const isTaken = isNew && names.includes(form.name);
  const isReady = checked.isGood && form.name !== "" && !isTaken;
  const save = async () => {
    if (!isReady || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      const now = (await rulesOf(entity)).find((one) => one.name === form.name);
      if (now ? contentOf(now) !== seen.current : !isNew && seen.current !== "") {
        seen.current = now ? contentOf(now) : "";
        throw Object.assign(new Error(), { title: "Somebody else was faster", detail: `The rule ${now ? (isNew ? "is there already" : "has changed since you opened it") : "is deleted"}. Save again to put yours in its place.` });
      }
      await api.put(entityPath(entity, "rules", form.name), { body: ruleOf(form) });
      toast(isNew ? "The rule is added" : "The rule is changed");
      onDone();
      onClose();
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  const actions = html`<${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind="primary" disabled=${!isReady} isBusy=${state.isBusy}>${isNew ? "Add the rule" : "Save"}<//>`;
  const title = isNew ? "New rule" : html`Rule <${Text} value=${rule.name} />`;
  return html`<${Dialog} title=${title} size="large" onClose=${onClose} onSubmit=${save} actions=${actions}>
    <${RuleFields} form=${form} onChange=${setForm} checked=${checked} isNew=${isNew} />
    ${isTaken && html`<p class="note warn" role="alert">A rule with this name is there already.</p>`}
    <p class="faint">It applies to messages that are sent from now on.</p>
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}

function Remove({ entity, rule, isLast, onClose, onDone }) {
  const run = async () => {
    await api.del(entityPath(entity, "rules", rule.name));
    toast("The rule is deleted");
    onDone();
  };
  return html`<${Confirm} title="Delete the rule" label="Delete" isDanger run=${run} onClose=${onClose}>
    <p><b><${Text} value=${rule.name} /></b> decides no longer which messages come to the subscription. Messages that are there stay.</p>
    ${isLast && html`<p class="note warn">It is the last rule: the subscription gets no messages without one.</p>`}
  <//>`;
}

function Rule({ rule, onEdit, onRemove }) {
  return html`<section class="card rule" aria-label=${`Rule ${rule.name}`}>
    <div class="card-head">
      <h2><${Text} value=${rule.name} /></h2>
      <${Badge}>${filterName(rule.filter)}<//>
      ${rule.action && html`<${Badge} tone="accent">action<//>`}
      <div class="spread"></div>
      <${Button} small icon="edit" onClick=${onEdit}>Edit<//>
      <${Button} small kind="danger" icon="trash" onClick=${onRemove}>Delete<//>
    </div>
    <${RuleShown} rule=${rule} />
  </section>`;
}

function Listed({ entity }) {
  const { value, problem, reload } = useLoad((signal) => rulesOf(entity, signal), [entity], { everyMs: 10_000 });
  const [open, setOpen] = useState(null); // {kind: "add" | "edit" | "remove", rule}
  const [text, setText] = useState("");
  const [isWhole, setWhole] = useState(false);
  const wanted = useSettled(text.trim().toLowerCase(), 80);
  const add = () => setOpen({ kind: "add" });
  useShortcuts([{ keys: "n", name: "New rule", run: add }]);
  useCommands([{ name: "New rule", icon: "plus", run: add }]);
  const found = useMemo(() => (value ?? []).filter((rule) => !wanted || JSON.stringify(rule).toLowerCase().includes(wanted)), [value, wanted]);
  if (value === undefined) return problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`;
  const close = () => setOpen(null);
  const shown = isWhole ? found : found.slice(0, SHOWN_AT_FIRST);
  return html`
    <div class="toolbar">
      ${value.length > 5 && html`<input class="input search" type="search" placeholder="Search" aria-label="Search rules" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} />`}
      <span class="faint" role="status">${plural(value.length, "rule")}: a message comes once for each that matches and has an action, and once for all others that match.</span>
      <div class="spread"></div>
      ${can("Manage", nameParts(entity).topic) && html`<${LinkButton} icon="filter" href=${href(["entities", nameParts(entity).topic, "match"])}>Why did it not arrive?<//>`}
      <${Button} kind="primary" icon="plus" onClick=${add}>New rule<//>
    </div>
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${value.length === 0 && html`<${Empty} title="No rules" icon="rules">The subscription gets no messages.<//>`}
    ${value.length > 0 && found.length === 0 && html`<${Empty} title="No rule matches" icon="search"></${Empty}>`}
    <div class="stack cards-of">
      ${shown.map((rule) => html`<${Rule} key=${rule.name} rule=${rule} onEdit=${() => setOpen({ kind: "edit", rule })} onRemove=${() => setOpen({ kind: "remove", rule })} />`)}
    </div>
    ${shown.length < found.length && html`<div><${Button} onClick=${() => setWhole(true)}>Show all ${plural(found.length, "rule")}<//></div>`}
    ${(open?.kind === "add" || open?.kind === "edit") && html`<${RuleDialog} entity=${entity} rule=${open.rule} names=${value.map((rule) => rule.name)} onClose=${close} onDone=${reload} />`}
    ${open?.kind === "remove" && html`<${Remove} entity=${entity} rule=${open.rule} isLast=${value.length === 1} onClose=${close} onDone=${reload} />`}
  `;
}

export default function Rules({ entity }) {
  return html`<${EntityPage} entity=${entity} tab="rules">
    ${(shown) =>
      can("Manage", shown.name)
        ? html`<${Listed} entity=${shown.name} />`
        : html`<${Empty} title="Not shown" icon="lock">Rules need a key with Manage on the subscription.<//>`}
  <//>`;
}
