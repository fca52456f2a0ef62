// The sessions of an entity: who holds each, its state, its messages.
import { html, useMemo, useState } from "../lib.js";
import { api, entityPath } from "../api.js";
import { bytesOf, fromBase64, isJson } from "../bytes.js";
import { EntityPage } from "../entity.js";
import { bytes, number, plural } from "../format.js";
import { useLoad, useSettled } from "../hooks.js";
import { go, href } from "../router.js";
import { can } from "../session.js";
import { Badge, Button, Code, Confirm, Dialog, Empty, Facts, Field, LinkButton, Loading, Refusal, Table, Tabs, Text, Time, toast, useShortcuts } from "../ui.js";
import { hexDump } from "../ui/code.js";

const PAGE = 250;
const SCROLLED_MS = 150; // a row that stays so long in sight is asked for
const MESSAGES_MAX = 100;

const pathOf = (entity, id, ...rest) => entityPath(entity, "sessions", id, ...rest);
const isHeld = (one) => one.lockedUntil !== undefined && Date.parse(one.lockedUntil) > Date.now();

/** The id of a session may be empty: the address says so in a way of its own. */
const openSession = (entity, id) => go(["entities", entity, "sessions"], id === "" ? { isEmpty: 1 } : { session: id }, { replace: true });
const sessionIn = (query) => (query.isEmpty ? "" : query.session);

function rested(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("scrolled away", "AbortError"));
    });
  });
}

/** What a row says of its session, once it stays in sight. */
function Brief({ entity, id }) {
  const { value, problem } = useLoad(async (signal) => (await rested(SCROLLED_MS, signal), api.get(pathOf(entity, id), { signal })), [entity, id], { everyMs: 10_000 });
  if (!value) return html`<span class="faint">${problem ? "–" : ""}</span>`;
  const { active, deferred, scheduled } = value.counts;
  const counts = [[active, "active"], [deferred, "deferred"], [scheduled, "scheduled"]].filter(([count]) => count > 0);
  return html`<span class="row-of tight">
    ${isHeld(value) && html`<${Badge} tone="accent">held<//>`} ${value.state && html`<${Badge}>state<//>`}
    <span class="count">${counts.map(([count, name]) => `${number(count)} ${name}`).join(", ") || "no messages"}</span>
  </span>`;
}

async function pagesOf(entity, count, signal) {
  const ids = [];
  let cursor;
  for (let at = 0; at < count; at += 1) {
    const found = await api.get(entityPath(entity, "sessions"), { query: { limit: PAGE, cursor }, signal });
    ids.push(...found.sessions);
    cursor = found.next;
    if (!cursor) break;
  }
  return { ids, hasMore: cursor !== undefined };
}

/** Text as JSON, as it is, or in hexadecimal. */
function State({ state }) {
  const forms = [
    ...(isJson(state.body) ? [{ id: "json", label: "JSON" }] : []),
    ...(state.body !== undefined ? [{ id: "text", label: "Text" }] : []),
    { id: "hex", label: "Hex" },
  ];
  const [chosen, setChosen] = useState("");
  const form = forms.some((one) => one.id === chosen) ? chosen : forms[0].id;
  const data = useMemo(() => bytesOf(state), [state]);
  const text = form === "hex" ? hexDump(data) : state.body;
  return html`<div class="stack tight">
    <div class="row-of"><${Tabs} items=${forms} current=${form} onChoose=${setChosen} label="Forms of the state" /><div class="spread"></div><span class="faint">${bytes(data.length)}</span></div>
    <div role="tabpanel" aria-label=${`State as ${form}`}><${Code} text=${text} language=${form === "json" ? "json" : "text"} label="State" isPlain=${form === "hex"} isProgram=${form === "hex"} /></div>
  </div>`;
}

const isSameState = (a, b) => a?.body === b?.body && a?.bodyBase64 === b?.bodyBase64;

function EditState({ entity, id, state, onClose, onDone }) {
  const isBytes = state !== undefined && state.body === undefined;
  const [form, setForm] = useState(isBytes ? "base64" : "text");
  const [text, setText] = useState(isBytes ? state.bodyBase64 : (state?.body ?? ""));
  const [before, setBefore] = useState(state); // what the one who edits has seen
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  let wrong = "";
  if (form === "base64") {
    try {
      fromBase64(text);
    } catch {
      wrong = "This is not base64.";
    }
  }
  const change = (next) => {
    if (next === form) return;
    if (next === "base64") setText(btoa(String.fromCharCode(...new TextEncoder().encode(text))));
    else if (!wrong) setText(new TextDecoder().decode(fromBase64(text)));
    setForm(next);
  };
  const save = async () => {
    if (isBusy || wrong) return;
    setBusy(true);
    setProblem(null);
    try {
      const now = await api.get(pathOf(entity, id));
      if (!isSameState(now.state, before)) {
        setBefore(now.state);
        throw Object.assign(new Error(), { title: "Somebody else was faster", detail: "The state has changed since you opened it. Save again to replace it by yours." });
      }
      await api.put(pathOf(entity, id, "state"), { body: form === "text" ? { state: text } : { stateBase64: text.replace(/\s+/g, "") } });
      toast("The state is set");
      onDone();
      onClose();
    } catch (failure) {
      setBusy(false);
      setProblem(failure);
    }
  };
  const actions = html`<${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind="primary" disabled=${!!wrong} isBusy=${isBusy}>Save the state<//>`;
  return html`<${Dialog} title=${html`State of <${Text} value=${id || "the session without a name"} max=${60} />`} size="large" onClose=${onClose} onSubmit=${save} actions=${actions}>
    <div class="chips" role="group" aria-label="Form">
      <button type="button" class="chip" aria-pressed=${form === "text" ? "true" : "false"} onClick=${() => change("text")}>Text</button>
      <button type="button" class="chip" aria-pressed=${form === "base64" ? "true" : "false"} onClick=${() => change("base64")}>Base64</button>
      ${form === "text" && text.trim() && html`<span class="faint">${isJson(text) ? "It is JSON." : "It is not JSON."}</span>`}
    </div>
    <${Field} type="textarea" label="State" mono rows="12" value=${text} onInput=${setText} problem=${wrong} spellcheck=${false} autofocus />
    ${problem && html`<${Refusal} problem=${problem} />`}
  <//>`;
}

function ClearState({ entity, id, onClose, onDone }) {
  const run = async () => {
    await api.del(pathOf(entity, id, "state"));
    toast("The state is cleared");
    onDone();
  };
  return html`<${Confirm} title="Clear the state" label="Clear" isDanger run=${run} onClose=${onClose}>
    <p>The session <b><${Text} value=${id} max=${200} /></b> has no state then. Its messages stay.</p>
  <//>`;
}

const MESSAGE_COLUMNS = [
  { key: "number", title: "Number", cell: (row) => row.sequenceNumber, width: 96 },
  { key: "state", title: "State", cell: (row) => html`<${Badge} tone=${row.state === "deferred" ? "warn" : "plain"}>${row.lockedUntil ? "locked" : row.state}<//>`, width: 96, drop: 1 },
  { key: "body", title: "Message", cell: (row) => html`<${Text} value=${row.subject ? `${row.subject}  ${row.body ?? ""}` : (row.body ?? row.bodyBase64 ?? "")} max=${200} />`, minWidth: 120, grow: 2 },
  { key: "enqueued", title: "Enqueued", cell: (row) => html`<${Time} value=${row.enqueuedTime} isAge />`, width: 118, align: "end", drop: 2 },
];

function Messages({ entity, id }) {
  const { value, problem, reload } = useLoad((signal) => api.get(pathOf(entity, id, "messages"), { query: { limit: MESSAGES_MAX }, signal }), [entity, id], { everyMs: 5000 });
  if (!value) return problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`;
  const rows = value.messages;
  return html`<${Table} label="Messages of the session" rows=${rows} rowKey=${(row) => row.sequenceNumber} columns=${MESSAGE_COLUMNS} height=${`${Math.min(10, Math.max(4, rows.length)) * 34 + 36}px`}
      onOpen=${(row) => go(["entities", entity, "messages", String(row.sequenceNumber)])} empty=${html`<${Empty} title="No messages">The session has state alone, or is empty.<//>`} />
    ${rows.length === MESSAGES_MAX && html`<p class="faint">The first ${MESSAGES_MAX} messages are shown.</p>`}`;
}

function Holder({ holder }) {
  if (!holder) return "a receiver";
  const { connection, identities } = holder;
  return html`<${Text} value=${identities.join(", ") || "a receiver"} /> <span class="faint">on connection</span> ${can("Manage") ? html`<a href=${href(["connections"], { id: connection })}>${connection}</a>` : connection}`;
}

function Details({ entity, id }) {
  const { value, problem, reload } = useLoad((signal) => api.get(pathOf(entity, id), { signal }), [entity, id], { everyMs: 3000 });
  const [open, setOpen] = useState(""); // "edit" or "clear"
  if (!value) return problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`;
  const { counts, state } = value;
  const held = isHeld(value);
  const items = [
    ["Held by", held ? html`<${Holder} holder=${value.holder} />` : html`<span class="faint">nobody</span>`],
    ["Locked until", held ? html`<${Time} value=${value.lockedUntil} />` : undefined],
    ["Messages", `${number(counts.active)} active, ${number(counts.deferred)} deferred, ${number(counts.scheduled)} scheduled`],
  ];
  const close = () => setOpen("");
  return html`
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    <section class="card" aria-label="Session">
      <div class="card-head"><h2>${id === "" ? html`<span class="faint">the session without a name</span>` : html`<${Text} value=${id} />`}</h2>${held && html`<${Badge} tone="accent">held<//>`}</div>
      <${Facts} items=${items} />
    </section>
    <section class="card" aria-label="State">
      <div class="card-head">
        <h2>State</h2>
        <div class="spread"></div>
        ${can("Listen", entity) && !held && html`<${Button} small icon="edit" onClick=${() => setOpen("edit")}>${state ? "Edit" : "Set"}<//>${state && html`<${Button} small kind="danger" icon="trash" onClick=${() => setOpen("clear")}>Clear<//>`}`}
      </div>
      ${held && html`<p class="faint">While a receiver holds the session, its state is the receiver's own.</p>`}
      ${state ? html`<${State} state=${state} />` : html`<p class="faint">None is set.</p>`}
    </section>
    <section class="card" aria-label="Messages">
      <div class="card-head"><h2>Messages</h2><div class="spread"></div><${LinkButton} href=${href(["entities", entity, "messages"], { session: id })}>Show all<//></div>
      <${Messages} entity=${entity} id=${id} />
    </section>
    ${open === "edit" && html`<${EditState} entity=${entity} id=${id} state=${state} onClose=${close} onDone=${reload} />`}
    ${open === "clear" && html`<${ClearState} entity=${entity} id=${id} onClose=${close} onDone=${reload} />`}
  `;
}

function Listed({ entity, query }) {
  const [pages, setPages] = useState(1);
  const { value, problem, reload } = useLoad((signal) => pagesOf(entity, pages, signal), [entity, pages], { everyMs: 10_000 });
  const [text, setText] = useState("");
  const wanted = useSettled(text.trim().toLowerCase(), 80);
  const chosen = sessionIn(query);
  const rows = useMemo(() => (value?.ids ?? []).filter((id) => !wanted || id.toLowerCase().includes(wanted)), [value, wanted]);
  const columns = useMemo(
    () => [
      { key: "id", title: "Session", value: (id) => id, cell: (id) => (id === "" ? html`<span class="faint">without a name</span>` : html`<${Text} value=${id} max=${128} />`), minWidth: 110 },
      { key: "brief", title: "What it has", cell: (id) => html`<${Brief} key=${id} entity=${entity} id=${id} />`, minWidth: 150, drop: 1 },
    ],
    [entity],
  );
  useShortcuts([{ keys: "/", name: "Search the sessions", run: () => document.getElementById("session-search").focus() }]);
  if (value === undefined) return problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`;
  const openTyped = (event) => {
    event.preventDefault();
    if (text !== "") openSession(entity, text);
  };
  const none = wanted
    ? html`<${Empty} title="Not in the list" icon="search"><button type="button" class="link" onClick=${() => openSession(entity, text)}>Open the session with exactly this id</button><//>`
    : html`<${Empty} title="No sessions" icon="sessions">A session is here when it has messages or a state.<//>`;
  return html`<div class="panes">
    <div class="stack">
      <form class="toolbar" onSubmit=${openTyped}>
        <input id="session-search" class="input search" type="search" placeholder="Search, or an id and Enter  /" aria-label="Search sessions" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} />
        <span class="faint" role="status">${value.hasMore ? `${number(value.ids.length)} and more` : plural(value.ids.length, "session")}</span>
      </form>
      ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
      <${Table} label="Sessions" rows=${rows} rowKey=${(id) => id} columns=${columns} onOpen=${(id) => openSession(entity, id)} rowTone=${(id) => (id === chosen ? "chosen" : "")}
        onEnd=${value.hasMore ? () => pages * PAGE <= value.ids.length && setPages(pages + 1) : undefined} empty=${none} />
    </div>
    <div class="stack pane">
      ${chosen === undefined
        ? html`<${Empty} title="Choose a session" icon="sessions">Its holder, state and messages are shown here.<//>`
        : html`<${Details} key=${chosen} entity=${entity} id=${chosen} />`}
    </div>
  </div>`;
}

export default function Sessions({ entity, query }) {
  return html`<${EntityPage} entity=${entity} tab="sessions" isFull>
    ${(shown) =>
      shown.settings.requiresSession
        ? html`<${Listed} entity=${shown.name} query=${query} />`
        : html`<${Empty} title="No sessions here" icon="sessions">This entity does not require sessions.<//>`}
  <//>`;
}
