// A rule of a subscription: shown, and as a form that is checked as one types.
import { html, useEffect, useRef, useState } from "./lib.js";
import { api, isCancelled } from "./api.js";
import { useSettled } from "./hooks.js";
import { TYPES, newRow, rowsOf, shownValue, valuesOf, wrongIn } from "./typed_values.js";
import { Badge, Button, Code, Facts, Field, IconButton, Text } from "./ui.js";
import { visible } from "./ui/text.js";

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

function Expression({ label, help, value, onInput, problem, position, placeholder, rows }) {
  const box = useRef(null);
  const go = (at) => {
    const area = box.current.querySelector("textarea");
    area.focus();
    area.setSelectionRange(at, at + 1);
  };
  return html`<div class="expression" ref=${box}>
    <${Field} type="textarea" mono label=${label} help=${help} value=${value} onInput=${onInput} problem=${problem} rows=${rows} placeholder=${placeholder} spellcheck=${false} autocomplete="off" />
    ${problem && position && html`<${Place} text=${value} position=${position} onGo=${go} />`}
  </div>`;
}

/** Names with values of any type. `what`: what one is called, such as "property". */
function Values({ title, what, rows, onChange }) {
  const change = (id, part) => onChange(rows.map((row) => (row.id === id ? { ...row, ...part } : row)));
  return html`<fieldset class="fieldset">
    <legend>${title}</legend>
    ${rows.map((row) => {
      const wrong = row.text || row.type !== "string" ? wrongIn(row) : "";
      return html`<div class="value-row" key=${row.id}>
        <input class="input mono" aria-label=${`Name of the ${what}`} placeholder="name" value=${row.name} spellcheck=${false} autocomplete="off" onInput=${(event) => change(row.id, { name: event.target.value })} />
        <select class="input" aria-label=${`Type of the ${what}`} value=${row.type} onChange=${(event) => change(row.id, { type: event.target.value })}>
          ${TYPES.map(([type, name]) => html`<option key=${type} value=${type} selected=${type === row.type}>${name}</option>`)}
        </select>
        <input class="input mono" aria-label=${`Value of the ${what}`} placeholder="value" value=${row.text} disabled=${row.type === "null"} aria-invalid=${wrong ? "true" : undefined} spellcheck=${false} autocomplete="off" onInput=${(event) => change(row.id, { text: event.target.value })} />
        <${IconButton} icon="trash" label=${`Remove the ${what} ${row.name}`} onClick=${() => onChange(rows.filter((one) => one.id !== row.id))} />
        ${wrong && html`<div class="field-problem" role="alert">${wrong}</div>`}
      </div>`;
    })}
    <div><${Button} small icon="plus" onClick=${() => onChange([...rows, newRow()])}>Add a ${what}<//></div>
  </fieldset>`;
}

const hasParameters = (text, rows) => rows.length > 0 || text.includes("@");

/** The fields of a rule. `onChange(form)`; `checked` is of `useRuleCheck`; `isNew`: its name is asked for too. */
export function RuleFields({ form, onChange, checked, isNew }) {
  const set = (part) => onChange({ ...form, ...part });
  const bad = checked.found && !checked.found.isGood ? checked.found : null;
  const problemOf = (member) => (bad?.member === member ? bad.problem : "");
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
        value=${form.sql}
        onInput=${(sql) => set({ sql })}
        problem=${problemOf("filter")}
        position=${bad?.position}
        rows="4"
      />
      ${hasParameters(form.sql, form.parameters) && html`<${Values} title="Parameters of the filter" what="parameter" rows=${form.parameters} onChange=${(parameters) => set({ parameters })} />`}`}
    ${form.kind === "correlation" &&
    html`<p class="faint">A message must have all of it, exactly. An empty field is not compared.</p>
      <div class="form-grid">
        ${FIELDS.map(([member, title]) => html`<${Field} key=${member} label=${title} mono value=${form.texts[member]} onInput=${(text) => set({ texts: { ...form.texts, [member]: text } })} autocomplete="off" spellcheck=${false} />`)}
      </div>
      <${Values} title="Application properties" what="property" rows=${form.properties} onChange=${(properties) => set({ properties })} />
      ${problemOf("filter") && html`<p class="field-problem" role="alert">${problemOf("filter")}</p>`}`}
    ${form.kind !== "none" &&
    html`<${Expression}
        label="Action (optional)"
        help="Changes the copy that the subscription gets."
        placeholder="SET priority = 'high'; REMOVE trace"
        value=${form.action}
        onInput=${(action) => set({ action })}
        problem=${problemOf("action")}
        position=${bad?.position}
        rows="2"
      />
      ${form.action.trim() && hasParameters(form.action, form.actionParameters) && html`<${Values} title="Parameters of the action" what="parameter" rows=${form.actionParameters} onChange=${(actionParameters) => set({ actionParameters })} />`}`}
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
