// What messages must be: the fields of a search, checked as they are typed, and what the API takes of them.
import { api, isCancelled } from "../api.js";
import { zoneOf } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { useSettled } from "../hooks.js";
import { Field } from "../ui.js";
import { localTime } from "./compose.js";
import { STATES } from "./model.js";

const TEXTS = ["filter", "text", "regex", "jsonPath", "session", "deadLetterReason"];
const NUMBERS = ["from", "to"];
const INSTANTS = ["since", "until"];

/** Return the criteria of the texts of an address. */
export function criteriaOf(query) {
  const found = {};
  for (const name of [...TEXTS, ...NUMBERS, ...INSTANTS]) if (query[name]) found[name] = query[name];
  if (query.states) found.states = query.states.split(",").filter((state) => STATES.includes(state));
  if (query.ignoreCase) found.ignoreCase = true;
  return found;
}

/** Return the texts of an address for criteria. */
export const queryOf = (criteria) => ({ ...criteria, states: criteria.states?.join(","), ignoreCase: criteria.ignoreCase ? "yes" : undefined });

/** Return criteria as the API takes them: without what is empty. */
export function bodyOfCriteria(criteria) {
  const found = {};
  for (const name of TEXTS) if (criteria[name]) found[name] = criteria[name];
  for (const name of NUMBERS) if (criteria[name]) found[name] = Number(criteria[name]);
  for (const name of INSTANTS) if (criteria[name]) found[name] = new Date(criteria[name]).toISOString();
  if (criteria.states?.length && criteria.states.length < STATES.length) found.states = criteria.states;
  if (criteria.ignoreCase && (criteria.text || criteria.regex)) found.ignoreCase = true;
  return found;
}

/** Return whether criteria leave any message of some states out. */
export function isNarrow({ states = [], ...criteria }, of) {
  const leavesStateOut = states.length > 0 && of.some((state) => !states.includes(state));
  return leavesStateOut || Object.keys(bodyOfCriteria(criteria)).length > 0;
}

/** Ask the broker whether a filter is good: {isGood, problem}. `problem` empty and not good: it is not known yet. */
export function useFilterCheck(text = "") {
  const settled = useSettled(text, 250);
  const [state, setState] = useState({ text: "", problem: "" });
  useEffect(() => {
    if (!settled.trim()) {
      setState({ text: settled, problem: "" });
      return undefined;
    }
    const control = new AbortController();
    api
      .post("rules/check", { body: { filter: { sql: settled } }, signal: control.signal })
      .then((found) => setState({ text: settled, problem: found.isGood ? "" : placed(found) }))
      .catch((problem) => isCancelled(problem) || setState({ text: settled, problem: problem.message }));
    return () => control.abort();
  }, [settled]);
  const isCurrent = state.text === text || text.trim() === "";
  const problem = isCurrent && text.trim() ? state.problem : "";
  return { isGood: isCurrent && problem === "", problem };
}

const placed = ({ problem, position }) => (position === undefined ? problem : `${problem}, at character ${position}`);

/** Return what is wrong with a regular expression as far as the browser can say; Python's have more forms. */
function regexHint(text) {
  try {
    RegExp(text);
    return "";
  } catch (error) {
    return /\(\?P|\(\?[aiLmsux-]|\\A|\\Z/.test(text) ? "" : `It looks unfinished: ${error.message.replace(/^Invalid regular expression: /, "")}`;
  }
}

/** A problem in the place of the help: so the fields below stay where they are. */
const noted = (help, problem) => (problem ? { problem } : { help });

const toggled = (states, state) => (states.includes(state) ? states.filter((one) => one !== state) : [...states, state]);

/**
 * The fields. `value`: criteria; `check`: of `useFilterCheck`; `isDead`: whether a reason is asked for; `states`: those
 * to choose from.
 */
export function CriteriaFields({ value, onChange, check, isDead, states: offered = STATES }) {
  const set = (name) => (text) => onChange({ ...value, [name]: text === "" ? undefined : text });
  const states = value.states ?? [];
  const text = { autocomplete: "off", spellcheck: false };
  const isRareUsed = ["from", "to", "since", "until", "session"].some((name) => value[name]);
  return html`<div class="stack criteria">
    <${Field} label="Filter" mono value=${value.filter ?? ""} onInput=${set("filter")} placeholder="amount > 100 AND sys.Label = 'order'" maxlength="1024" ...${text} ...${noted("SQL over the properties, as in a rule. sys.Label is the subject.", check.problem)} />
    <div class="form-grid">
      <${Field} label="Body contains" value=${value.text ?? ""} onInput=${set("text")} ...${text} />
      <${Field} label="Regular expression" mono value=${value.regex ?? ""} onInput=${set("regex")} ...${noted("In the syntax of Python.", value.regex ? regexHint(value.regex) : "")} ...${text} />
      <${Field} label="JSON path" mono value=${value.jsonPath ?? ""} onInput=${set("jsonPath")} placeholder="$.order.total > 100" ...${text} />
      ${isDead && html`<${Field} label="Dead-letter reason" value=${value.deadLetterReason ?? ""} onInput=${set("deadLetterReason")} ...${text} />`}
    </div>
    <div class="toolbar">
      ${offered.length > 1 &&
      html`<div class="chips" role="group" aria-label="States">
        <span class="field-label" aria-hidden="true">States</span>
        ${offered.map(
          (state) => html`<button key=${state} type="button" class="chip" aria-pressed=${states.includes(state) ? "true" : "false"} onClick=${() => onChange({ ...value, states: toggled(states, state) })}>${state}</button>`,
        )}
        <span class="faint">${states.length === 0 ? "None is chosen: all states" : ""}</span>
      </div>`}
      ${(value.text || value.regex) && html`<${Field} label="Upper and lower case alike" type="checkbox" value=${value.ignoreCase === true} onInput=${(isOn) => onChange({ ...value, ignoreCase: isOn || undefined })} />`}
    </div>
    <details open=${isRareUsed}>
      <summary>Numbers, times, session</summary>
      <div class="form-grid">
        <${Field} label="From number" inputmode="numeric" value=${value.from ?? ""} onInput=${(given) => set("from")(given.replace(/\D/g, ""))} />
        <${Field} label="To number" inputmode="numeric" value=${value.to ?? ""} onInput=${(given) => set("to")(given.replace(/\D/g, ""))} />
        <${Field} label="Enqueued since" help=${`In your zone, ${zoneOf(value.since)}.`} type="datetime-local" step="1" value=${value.since ?? ""} onInput=${set("since")} max=${localTime(Date.now())} />
        <${Field} label="Enqueued before" help=${`In your zone, ${zoneOf(value.until)}.`} type="datetime-local" step="1" value=${value.until ?? ""} onInput=${set("until")} />
        <${Field} label="Session" value=${value.session ?? ""} onInput=${set("session")} ...${text} />
      </div>
    </details>
  </div>`;
}
