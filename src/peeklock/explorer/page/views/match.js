// "Why did it not arrive?": a message against the rules of a topic.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { api, entityPath } from "../api.js";
import { useCounts } from "../counts.js";
import { EntityPage, nameParts } from "../entity.js";
import { plural } from "../format.js";
import { go, href } from "../router.js";
import { can } from "../session.js";
import { TYPES, newRow, valuesOf, wrongIn } from "../typed_values.js";
import { Badge, Button, Empty, Field, Icon, Refusal, Text } from "../ui.js";
import { ValueFields } from "../value_fields.js";

/** [member, title] of a message that rules can look at. */
const FIELDS = [
  ["subject", "Subject"],
  ["correlationId", "Correlation id"],
  ["messageId", "Message id"],
  ["sessionId", "Session id"],
  ["to", "To"],
  ["replyTo", "Reply to"],
  ["replyToSessionId", "Reply to session id"],
  ["contentType", "Content type"],
];
const PAGE = 100; // subscriptions
const JSON_TYPES = TYPES.slice(0, 4); // a message of this form is JSON

function Typed({ texts, onTexts, rows, onRows }) {
  return html`<div class="form-grid">
      ${FIELDS.map(([member, title]) => html`<${Field} key=${member} label=${title} mono value=${texts[member]} onInput=${(text) => onTexts({ ...texts, [member]: text })} autocomplete="off" spellcheck=${false} />`)}
    </div>
    <${ValueFields} title="Application properties" what="property" types=${JSON_TYPES} rows=${rows} onChange=${onRows} />
    <p class="faint">Rules look at properties alone: the body decides nothing.</p>`;
}

function Picked({ entity, onEntity, sequenceNumber, onNumber }) {
  const { list } = useCounts(can("Manage"));
  const names = useMemo(() => (list ?? []).filter((one) => one.kind !== "topic").flatMap((one) => [one.name, ...(one.deadLetter ? [`${one.name}/$deadletterqueue`] : [])]).slice(0, 1000), [list]);
  return html`<div class="form-grid">
    <${Field} label="Entity" mono list="match-entities" value=${entity} onInput=${onEntity} placeholder="orders, or events/subscriptions/audit" autocomplete="off" spellcheck=${false} help="Where the message is now: a queue, another subscription, a dead-letter queue." />
    <${Field} label="Sequence number" mono inputmode="numeric" value=${sequenceNumber} onInput=${onNumber} autocomplete="off" />
    <datalist id="match-entities">${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
  </div>`;
}

const Mark = ({ isGood }) => html`<span class=${isGood ? "mark good" : "mark"}><${Icon} name=${isGood ? "check" : "close"} /><span class="offscreen">${isGood ? "matches" : "does not match"}</span></span>`;

function Subscription({ one }) {
  const { subscription } = nameParts(one.name);
  return html`<section class="card" aria-label=${`Subscription ${subscription}`}>
    <div class="card-head">
      <h3><a href=${href(["entities", one.name])}><${Text} value=${subscription} /></a></h3>
      <${Badge} tone=${one.isMatched ? "good" : "bad"}>${one.isMatched ? "gets it" : "does not get it"}<//>
      <div class="spread"></div>
      <a href=${href(["entities", one.name, "rules"])}>Rules</a>
    </div>
    ${one.note && html`<p class="note warn"><${Text} value=${one.note} /></p>`}
    ${one.rules.length === 0
      ? html`<p class="faint">It has no rules, so it gets no messages.</p>`
      : html`<ul class="verdicts">
          ${one.rules.map((rule) => html`<li key=${rule.name}><${Mark} isGood=${rule.isMatched} /><div><b><${Text} value=${rule.name} /></b><div><${Text} value=${rule.reason} /></div></div></li>`)}
        </ul>`}
  </section>`;
}

function Verdict({ found, onMore }) {
  const { note, subscriptions, next } = found;
  const [which, setWhich] = useState("all");
  const top = useRef(null);
  useEffect(() => top.current.scrollIntoView({ block: "nearest" }), []);
  const matched = subscriptions.filter((one) => one.isMatched).length;
  const kinds = [["all", "All", subscriptions.length], ["no", "Do not get it", subscriptions.length - matched], ["yes", "Get it", matched]];
  const shown = subscriptions.filter((one) => which === "all" || one.isMatched === (which === "yes"));
  const of = next ? `the first ${subscriptions.length}` : subscriptions.length;
  return html`<div class="stack">
    <div class="toolbar" ref=${top}>
      <div role="status"><h2>${matched === 0 ? `No subscription${next ? ` of the first ${subscriptions.length}` : ""} gets it` : `${plural(matched, "subscription")} of ${of} ${matched === 1 ? "gets" : "get"} it`}</h2></div>
      <div class="chips" role="group" aria-label="Which subscriptions">
        ${kinds.map(([key, title, count]) => html`<button key=${key} type="button" class="chip" aria-pressed=${which === key ? "true" : "false"} onClick=${() => setWhich(key)}>${title} <span class="faint">${count}</span></button>`)}
      </div>
    </div>
    ${note && html`<p class="note warn"><${Text} value=${note} /></p>`}
    ${shown.map((one) => html`<${Subscription} key=${one.name} one=${one} />`)}
    ${subscriptions.length === 0 && html`<${Empty} title="No subscriptions" icon="subscription">Messages sent to this topic are dropped.<//>`}
    ${next && html`<div><${Button} onClick=${onMore}>More subscriptions<//></div>`}
  </div>`;
}

function Form({ topic, query }) {
  const [isPicked, setPicked] = useState(!!query.from);
  const [texts, setTexts] = useState({});
  const [rows, setRows] = useState(() => [newRow()]);
  const [entity, setEntity] = useState(query.from ?? "");
  const [sequenceNumber, setNumber] = useState(query.number ?? "");
  const [state, setState] = useState({ isBusy: false, problem: null, found: null });
  const isReady = isPicked ? entity.trim() !== "" && /^\d+$/.test(sequenceNumber.trim()) : !rows.some((row) => row.name !== "" && wrongIn(row));
  const ask = async (before) => {
    setState({ ...state, isBusy: true, problem: null });
    const given = Object.fromEntries(Object.entries(texts).filter(([, text]) => text));
    const properties = valuesOf(rows);
    const message = { ...given, ...(Object.keys(properties).length ? { properties } : {}) };
    const body = isPicked ? { entity: entity.trim(), number: Number(sequenceNumber) } : { message };
    if (isPicked) go(["entities", topic, "match"], { from: entity.trim(), number: sequenceNumber.trim() }, { replace: true });
    try {
      const found = await api.post(entityPath(topic, "match"), { body, query: { limit: PAGE, cursor: before?.next } });
      const all = [...(before?.subscriptions ?? []), ...found.subscriptions];
      setState({ isBusy: false, problem: null, found: { ...found, subscriptions: all } });
    } catch (problem) {
      setState({ isBusy: false, problem, found: null });
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (isReady && !state.isBusy) ask();
  };
  return html`
    <form class="card" onSubmit=${submit} novalidate>
      <div class="chips" role="group" aria-label="Which message">
        <button type="button" class="chip" aria-pressed=${isPicked ? "false" : "true"} onClick=${() => setPicked(false)}>A message typed in</button>
        <button type="button" class="chip" aria-pressed=${isPicked ? "true" : "false"} onClick=${() => setPicked(true)}>A message that is somewhere</button>
      </div>
      ${isPicked
        ? html`<${Picked} entity=${entity} onEntity=${setEntity} sequenceNumber=${sequenceNumber} onNumber=${setNumber} />`
        : html`<${Typed} texts=${texts} onTexts=${setTexts} rows=${rows} onRows=${setRows} />`}
      <div><${Button} type="submit" kind="primary" icon="filter" disabled=${!isReady} isBusy=${state.isBusy}>Check the rules<//></div>
    </form>
    ${state.problem && html`<${Refusal} problem=${state.problem} onRetry=${() => ask()} />`}
    ${state.found && html`<${Verdict} found=${state.found} onMore=${() => ask(state.found)} />`}
  `;
}

export default function Match({ entity, query }) {
  return html`<${EntityPage} entity=${entity} tab="match">
    ${(shown) =>
      can("Manage", shown.name)
        ? html`<p class="lead">What each rule of each subscription says to a message, as the rules are now.</p><${Form} topic=${shown.name} query=${query} />`
        : html`<${Empty} title="Not shown" icon="lock">Rules need a key with Manage on the topic.<//>`}
  <//>`;
}
