// The messages of an entity: its queue or a sub-queue, followed live.
import { refreshCounts } from "../counts.js";
import { EntityPage, nameParts } from "../entity.js";
import { useSettled } from "../hooks.js";
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { number as figure } from "../format.js";
import { ChosenBar, WholeActions } from "../messages/actions.js";
import { lastNumber, useListing } from "../messages/listing.js";
import { STATES, SUB_QUEUES } from "../messages/model.js";
import { MessageTable, columnsOf, keyOf } from "../messages/table.js";
import { go, href } from "../router.js";
import { can, session as signedIn } from "../session.js";
import { Button, Empty, Loading, Page, Refusal, toast, useShortcuts } from "../ui.js";
import { SendDialog } from "../messages/send.js";

const NONE = new Set();
const LEFT = [
  ["now", "from now on"],
  ["all", "all known"],
  ["none", "hidden"],
];
/** Whether a row is shown, by the choice of those that left. */
const SHOWS = { now: (row) => !row.left?.isOld, all: () => true, none: (row) => row.left === null };

function columnsFor({ shown, subQueue, state }) {
  if (shown.kind === "topic" || state === "scheduled") return columnsOf(["number", "state", "due", "messageId", "subject", shown.settings.requiresSession && "session", "body", "size"]);
  return columnsOf([
    "number", "state", "time", subQueue && "reason", "messageId", "subject", shown.settings.requiresSession && "session", "body", "deliveries", "size",
  ]);
}

/** The switch between the queue and its sub-queues. */
function Places({ shown, subQueue }) {
  if (shown.kind === "topic") return null;
  const isOffered = (end) => end === subQueue || !end.startsWith("$transfer") || shown.counts.transferDeadLetter > 0;
  return html`<nav class="chips" aria-label="Part of the queue">
    ${SUB_QUEUES.filter(([end]) => isOffered(end)).map(
      ([end, title]) => html`<a
        key=${end}
        class="chip"
        href=${href(["entities", end ? `${shown.name}/${end}` : shown.name, "messages"])}
        aria-current=${end === subQueue ? "true" : undefined}
        >${title}</a
      >`,
    )}
  </nav>`;
}

/** A text field of the toolbar whose value goes to the address once it rests. */
function Wanted({ label, value, onValue, numeric, width }) {
  const [text, setText] = useState(value);
  const settled = useSettled(text, 350);
  useEffect(() => {
    if (settled !== value) onValue(settled);
  }, [settled]);
  return html`<label class="wanted"><span>${label}</span>
    <input
      class="input"
      style=${{ width }}
      value=${text}
      inputmode=${numeric ? "numeric" : undefined}
      autocomplete="off"
      spellcheck=${false}
      onInput=${(event) => setText(numeric ? event.target.value.replace(/\D/g, "") : event.target.value)}
    />
  </label>`;
}

const Switch = ({ label, isOn, onChange, title }) => html`<label class="switch" title=${title}>
  <input type="checkbox" role="switch" checked=${isOn} onChange=${(event) => onChange(event.target.checked)} /><span>${label}</span>
</label>`;

function Filters({ shown, subQueue, query, set, onNewest, isFollowing, setFollowing, left, setLeft }) {
  const { has } = signedIn.value.me;
  return html`<div class="toolbar">
    <${Places} shown=${shown} subQueue=${subQueue} />
    ${shown.kind !== "topic" &&
    html`<label class="wanted"><span>State</span>
      <select class="input" value=${query.state ?? ""} onChange=${(event) => set({ state: event.target.value })}>
        <option value="">any</option>
        ${STATES.map((state) => html`<option key=${state} value=${state} selected=${state === query.state}>${state}</option>`)}
      </select>
    </label>`}
    <${Wanted} label="From number" numeric value=${query.from ?? ""} onValue=${(from) => set({ from })} width="96px" />
    <${Button} small kind="quiet" icon="down" onClick=${onNewest} title="Go to the newest messages">Newest<//>
    ${(shown.settings.requiresSession || query.session !== undefined) &&
    html`<${Wanted} label="Session" value=${query.session ?? ""} onValue=${(session) => set({ session })} width="130px" />`}
    <span class="spread"></span>
    ${has.history &&
    shown.kind !== "topic" &&
    html`<label class="wanted" title="Messages that were completed, moved or deleted stay in the list, in grey"><span>Those that left</span>
      <select class="input" value=${left} onChange=${(event) => setLeft(event.target.value)}>
        ${LEFT.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === left}>${text}</option>`)}
      </select>
    </label>`}
    <${Switch} label="Follow" isOn=${isFollowing} onChange=${setFollowing} title="Look for new and changed messages every two seconds (f)" />
  </div>`;
}

function Foot({ state, rows, children }) {
  const left = rows.filter((row) => row.left).length;
  const parts = [`${figure(rows.length - left)} listed`];
  if (left) parts.push(`${figure(left)} left`);
  if (state.isFull) parts.push("no more fit into this list");
  else if (!state.isEnd) parts.push("more follow");
  return html`<div class="table-foot">
    <span class="table-count" role="status">${parts.join(" · ")}</span>
    ${state.isFull && html`<a href="#" onClick=${(event) => (event.preventDefault(), state.goOn())}>Go on from the last one</a>`}
    ${state.isLoading && html`<span class="spinner" role="img" aria-label="Loading"></span>`}
    ${children}
  </div>`;
}

function Listed({ entity, shown, query, reloadEntity }) {
  const { subQueue } = nameParts(entity);
  const { has } = signedIn.value.me;
  const [isFollowing, setFollowing] = useState(true);
  const left = query.left in SHOWS ? query.left : "now";
  const [chosen, setChosen] = useState(NONE);
  const filters = {
    state: query.state || undefined,
    session: query.session || undefined,
    from: query.from ? Number(query.from) : undefined,
    isPartitioned: shown.settings.partitioned === true,
    hasHistory: has.history && shown.kind !== "topic",
  };
  const { listing, state, reload, onSee } = useListing(entity, filters, isFollowing);
  const box = useRef(null);
  const rows = useMemo(() => state.rows.filter(SHOWS[left]), [state.rows, left]);
  const byKey = useMemo(() => new Map(rows.map((row) => [keyOf(row), row])), [rows]);
  const picked = useMemo(() => [...chosen].map((key) => byKey.get(key)).filter((row) => row && row.left === null), [chosen, byKey]);
  const columns = useMemo(() => columnsFor({ shown, subQueue, state: query.state }), [shown.kind, shown.settings.requiresSession, subQueue, query.state]);
  const set = (part) => {
    setChosen(NONE);
    go(["entities", entity, "messages"], { ...query, ...part }, { replace: true });
  };
  const onEnd = useCallback(() => listing.more(), [listing]);
  const toEnd = useRef(false);
  const onNewest = async () => {
    toEnd.current = true;
    try {
      const last = await lastNumber(listing.path(), filters.state);
      if (last === undefined) toast("There are no messages");
      else set({ from: String(Math.max(0, last - 199)) });
    } catch (problem) {
      toast(problem.message, { kind: "bad" });
    }
  };
  const onDone = (numbers, outcome) => {
    if (outcome) listing.leave(numbers, outcome);
    else listing.look(numbers).catch((problem) => toast(problem.message, { kind: "bad" }));
    setChosen(NONE);
    refreshCounts();
    reloadEntity();
  };
  useShortcuts([{ keys: "f", name: "Follow, or not", run: () => setFollowing((before) => !before) }]);
  useKeptPlace(box, listing, { count: rows.length, isEnd: state.isEnd }, isFollowing, toEnd);
  const isFiltered = query.state || query.session || query.from;
  const empty = state.isEnd
    ? html`<${Empty} title=${isFiltered ? "No message matches" : "No messages"} icon="messages">${isFiltered ? html`<a href=${href(["entities", entity, "messages"])}>Show all</a>` : isFollowing ? "New ones appear here." : ""}<//>`
    : !state.problem && html`<${Loading} text=${state.reached ? `Looked at those before number ${figure(state.reached)}` : "Loading"} />`;
  return html`
    <${Filters} ...${{ shown, subQueue, query, set, onNewest, isFollowing, setFollowing, left, setLeft: (value) => set({ left: value === "now" ? undefined : value }) }} />
    ${state.problem && html`<${Refusal} problem=${state.problem} onRetry=${reload} />`}
    <div class="fill" ref=${box}>
      <${MessageTable} key=${JSON.stringify(filters)} rows=${rows} columns=${columns} chosen=${chosen} onChoose=${setChosen} onEnd=${onEnd} onSee=${onSee} empty=${empty} />
      <${Foot} state=${{ ...state, goOn: () => set({ from: String(listing.next) }) }} rows=${rows}>
        <${ChosenBar} entity=${entity} shown=${shown} rows=${picked} onDone=${onDone} onClear=${() => setChosen(NONE)} />
      <//>
    </div>
  `;
}

/**
 * Keep the place of a list for the way back, and stay at its end while new messages come: not while further pages do,
 * else it would read them all. `toEnd`: whether to begin there.
 */
function useKeptPlace(box, listing, { count, isEnd }, isFollowing, toEnd) {
  const isAtEnd = useRef(false);
  const wasEnd = useRef(false); // whether all pages had been read before
  const isJumping = useRef(false); // to the end, once there are rows
  const scroller = () => box.current?.querySelector(".table-scroll");
  useLayoutEffect(() => {
    const element = scroller();
    element.scrollTop = listing.scrollTop;
    const note = () => {
      listing.scrollTop = element.scrollTop;
      isAtEnd.current = element.scrollTop > 0 && element.scrollTop + element.clientHeight >= element.scrollHeight - 8;
    };
    note();
    wasEnd.current = false;
    isJumping.current = toEnd.current;
    toEnd.current = false;
    element.addEventListener("scroll", note, { passive: true });
    return () => element.removeEventListener("scroll", note);
  }, [listing]);
  useLayoutEffect(() => {
    if (isJumping.current || (isFollowing && isAtEnd.current && wasEnd.current)) scroller().scrollTop = scroller().scrollHeight;
    isJumping.current = isJumping.current && count === 0;
    wasEnd.current = isEnd;
  }, [count, isEnd]);
}

/** For a key that may only send. */
function SendOnly({ entity }) {
  const [isOpen, setOpen] = useState(false);
  return html`<${Page} title=${entity} actions=${html`<${Button} kind="primary" icon="send" onClick=${() => setOpen(true)}>Send<//>`}>
    <${Empty} title="Not shown" icon="lock">To look at messages needs a key with Listen.<//>
    ${isOpen && html`<${SendDialog} entity=${entity} onClose=${() => setOpen(false)} />`}
  <//>`;
}

export default function Messages({ entity, query }) {
  if (!can("Listen", entity) && can("Send", nameParts(entity).base)) return html`<${SendOnly} entity=${entity} />`;
  return html`<${EntityPage} entity=${entity} tab=${nameParts(entity).subQueue ? "dead-letters" : "messages"} isFull actions=${(shown) => html`<${WholeActions} entity=${entity} kind=${shown.kind} query=${query} />`}>
    ${(shown, reload) => html`<${Listed} entity=${entity} shown=${shown} query=${query} reloadEntity=${reload} />`}
  <//>`;
}

