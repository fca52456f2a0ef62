// A rule of a subscription: shown, and as a form that is checked as one types.
import { html, useEffect, useRef, useState } from "./lib.js";
import { api, isCancelled } from "./api.js";
import { useSettled } from "./hooks.js";
import { rowsOf, shownValue, valuesOf, wrongIn } from "./typed_values.js";
import { Badge, Code, Facts, Field, Text } from "./ui.js";
import { visible } from "./ui/text.js";
import { ValueFields } from "./value_fields.js";

const CHECK_MS = 200;
const BESIDE = 60; // characters shown on each side of a problem

const KINDS = [
  ["all", "All messages"],
  ["sql", "SQL filter"],
  ["correlation", "Correlation filter"],
  ["none", "No message"],
];
const CONSTANTS = { all: "1=1", none: "1=0" };

/** [member, title] of the properties that a correlation filter compares. */
const FIELDS = [
  ["correlationId", "Correlation id"],
  ["subject", "Subject"],
  ["messageId", "Message id"],
  ["to", "To"],
  ["replyTo", "Reply to"],
  ["sessionId", "Session id"],
  ["replyToSessionId", "Reply to session id"],
  ["contentType", "Content type"],
];

const kindOf = ({ sql, correlation, parameters }) => {
  if (correlation) return "correlation";
  if (parameters) return "sql";
  return Object.keys(CONSTANTS).find((kind) => CONSTANTS[kind] === sql) ?? "sql";
};

/** Return the state of the form for a rule; without one, a rule that matches all. */
export function formOf(rule = { name: "", filter: { sql: "1=1" } }) {
  const kind = kindOf(rule.filter);
  const { properties, ...texts } = rule.filter.correlation ?? {};
  return {
    name: rule.name,
    kind,
    sql: kind === "sql" ? rule.filter.sql : "",
    parameters: rowsOf(rule.filter.parameters),
    texts,
    properties: rowsOf(properties),
    action: rule.action ?? "",
    actionParameters: rowsOf(rule.actionParameters),
  };
}

const withMember = (name, values) => (Object.keys(values).length ? { [name]: values } : {});

function filterOf(form) {
  if (form.kind === "sql") return { sql: form.sql, ...withMember("parameters", valuesOf(form.parameters)) };
  if (form.kind !== "correlation") return { sql: CONSTANTS[form.kind] };
  const texts = Object.fromEntries(Object.entries(form.texts).filter(([, text]) => text !== undefined && text !== ""));
  return { correlation: { ...texts, ...withMember("properties", valuesOf(form.properties)) } };
}

/** Return the rule of a form, as `PUT .../rules/{rule}` takes it. */
export function ruleOf(form) {
  const action = form.action.trim() ? { action: form.action, ...withMember("actionParameters", valuesOf(form.actionParameters)) } : {};
  return { filter: filterOf(form), ...action };
}

/** Return why a form cannot be sent yet; empty = it can be. */
function missing(form) {
  if (form.kind === "sql" && !form.sql.trim()) return "The filter is empty.";
  const rows = form.kind === "sql" ? form.parameters : form.kind === "correlation" ? form.properties : [];
  if ([...rows, ...(form.action.trim() ? form.actionParameters : [])].some((row) => row.name !== "" && wrongIn(row))) return "A value is not right.";
  if (form.kind === "correlation" && !Object.keys(filterOf(form).correlation).length) return "The filter compares nothing yet.";
  return "";
}

/** Check a form while it changes. Returns {isGood, isChecking, text, found}; `found` is what the API says. */
export function useRuleCheck(form) {
  const [state, setState] = useState({ of: null, found: null, problem: null });
  const settled = useSettled(form, CHECK_MS);
  const lacks = missing(settled);
  useEffect(() => {
    if (lacks) return undefined;
    const control = new AbortController();
    api.post("rules/check", { body: ruleOf(settled), signal: control.signal }).then(
      (found) => setState({ of: settled, found, problem: null }),
      (problem) => isCancelled(problem) || setState({ of: settled, found: null, problem }),
    );
    return () => control.abort();
  }, [settled]);
  const isCurrent = state.of === form;
  const text = lacks || state.problem?.message || (state.found && !state.found.isGood ? state.found.problem : "");
  return { isGood: isCurrent && !lacks && !!state.found?.isGood, isChecking: !lacks && !isCurrent, text, found: lacks ? null : state.found };
}

/** The place of a problem in an expression: the characters around it, and the one at fault marked. */
function Place({ text, position, onGo }) {
  const characters = [...text];
  const at = Math.min(position - 1, characters.length);
  const from = Math.max(0, at - BESIDE);
  const before = characters.slice(from, at).join("").replace(/\n/g, " ");
  const after = characters.slice(at + 1, at + 1 + BESIDE).join("").replace(/\n/g, " ");
  return html`<button type="button" class="place" onClick=${() => onGo(characters.slice(0, at).join("").length)} title="Go to the place">
    <code>${from > 0 && "…"}${visible(before)}<mark>${visible(characters[at]?.replace(/\n/, " ") ?? " ")}</mark>${visible(after)}${at + 1 + BESIDE < characters.length && "…"}</code>
    <span class="faint">character ${position}</span>
  </button>`;
}

/** An expression of SQL with its parameters, which are asked for once it names one. */
function Expression({ label, help, placeholder, lines, value, onInput, problem, position, parameters, onParameters }) {
  const box = useRef(null);
  const go = (at) => {
    const area = box.current.querySelector("textarea");
    area.focus();
    area.setSelectionRange(at, at + 1);
  };
  const hasParameters = value.trim() !== "" && (parameters.length > 0 || value.includes("@"));
  return html`<div class="expression" ref=${box}>
      <${Field} type="textarea" mono label=${label} help=${help} value=${value} onInput=${onInput} problem=${problem} rows=${lines} placeholder=${placeholder} spellcheck=${false} autocomplete="off" />
      ${problem && position && html`<${Place} text=${value} position=${position} onGo=${go} />`}
    </div>
    ${hasParameters && html`<${ValueFields} title=${`Parameters of the ${label.toLowerCase().split(" ")[0]}`} what="parameter" rows=${parameters} onChange=${onParameters} />`}`;
}

/** The fields of a rule. `onChange(form)`; `checked` is of `useRuleCheck`; `isNew`: its name is asked for too. */
export function RuleFields({ form, onChange, checked, isNew }) {
  const set = (part) => onChange({ ...form, ...part });
  const bad = checked.found && !checked.found.isGood ? checked.found : null;
  const faultOf = (member) => (bad?.member === member ? { problem: bad.problem, position: bad.position } : {});
  return html`
    ${isNew && html`<${Field} label="Name of the rule" mono value=${form.name} onInput=${(name) => set({ name })} autocomplete="off" spellcheck=${false} autofocus />`}
    <div class="chips" role="group" aria-label="Kind of filter">
      ${KINDS.map(([kind, name]) => html`<button key=${kind} type="button" class="chip" aria-pressed=${form.kind === kind ? "true" : "false"} onClick=${() => set({ kind })}>${name}</button>`)}
    </div>
    ${form.kind === "sql" &&
    html`<${Expression}
      label="Filter"
      help="Names are of application properties; those with sys. are the message's own, such as sys.Label."
      placeholder="region = 'north' AND amount > 100"
      lines="4"
      value=${form.sql}
      onInput=${(sql) => set({ sql })}
      parameters=${form.parameters}
      onParameters=${(parameters) => set({ parameters })}
      ...${faultOf("filter")}
    />`}
    ${form.kind === "correlation" &&
    html`<p class="faint">A message must have all of it, exactly. An empty field is not compared.</p>
      <div class="form-grid">
        ${FIELDS.map(([member, title]) => html`<${Field} key=${member} label=${title} mono value=${form.texts[member]} onInput=${(text) => set({ texts: { ...form.texts, [member]: text } })} autocomplete="off" spellcheck=${false} />`)}
      </div>
      <${ValueFields} title="Application properties" what="property" rows=${form.properties} onChange=${(properties) => set({ properties })} />
      ${faultOf("filter").problem && html`<p class="field-problem" role="alert">${faultOf("filter").problem}</p>`}`}
    ${form.kind !== "none" &&
    html`<${Expression}
      label="Action (optional)"
      help="Changes the copy that the subscription gets."
      placeholder="SET priority = 'high'; REMOVE trace"
      lines="2"
      value=${form.action}
      onInput=${(action) => set({ action })}
      parameters=${form.actionParameters}
      onParameters=${(actionParameters) => set({ actionParameters })}
      ...${faultOf("action")}
    />`}
    <p class="check-line" role="status">
      ${checked.isGood ? html`<${Badge} tone="good">the rule is good<//>` : checked.isChecking ? html`<span class="faint">checking…</span>` : html`<${Badge} tone="warn">not yet<//> <span class="faint">${bad ? "The place is marked above." : checked.text}</span>`}
    </p>
  `;
}

/** A rule to read. */
export function RuleShown({ rule }) {
  const { filter, action, actionParameters } = rule;
  const kind = kindOf(filter);
  const valuesShown = (values) => Object.entries(values ?? {}).map(([name, value]) => [html`<${Text} value=${name} mono />`, html`<${Text} value=${shownValue(value)} mono />`]);
  const { properties, ...texts } = filter.correlation ?? {};
  return html`
    ${kind === "all" && html`<p class="faint">Matches all messages.</p>`}
    ${kind === "none" && html`<p class="faint">Matches no message.</p>`}
    ${kind === "sql" && html`<${Code} text=${filter.sql} label=${`Filter of ${rule.name}`} isPlain />${filter.parameters && html`<${Facts} items=${valuesShown(filter.parameters)} />`}`}
    ${kind === "correlation" && html`<${Facts} items=${[...FIELDS.filter(([member]) => texts[member] !== undefined).map(([member, title]) => [title, html`<${Text} value=${shownValue(texts[member])} mono />`]), ...valuesShown(properties)]} />`}
    ${action && html`<div class="faint">Then it changes the copy:</div><${Code} text=${action} label=${`Action of ${rule.name}`} isPlain />${actionParameters && html`<${Facts} items=${valuesShown(actionParameters)} />`}`}
  `;
}

/** What a rule's filter is called: a word. */
export const filterName = (filter) => ({ all: "all", none: "none", sql: "SQL", correlation: "correlation" })[kindOf(filter)];
