// The search: as the command `peeklock search` does it, streamed as it is found.
import { Problem, api, entityPath, isCancelled } from "../api.js";
import { EntityPage, nameParts } from "../entity.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../lib.js";
import { number, plural, rate } from "../format.js";
import { ChosenBar } from "../messages/actions.js";
import { CriteriaFields, bodyOfCriteria, criteriaOf, queryOf, useFilterCheck } from "../messages/criteria.js";
import { downloadFound } from "../messages/download.js";
import { JobDialog } from "../messages/job_dialog.js";
import { readThese } from "../messages/loading.js";
import { goneRowOf, rowOf } from "../messages/model.js";
import { MessageTable, columnsOf, keyOf } from "../messages/table.js";
import { go } from "../router.js";
import { can, maySend, session } from "../session.js";
import { makeStore, useStore } from "../store.js";
import { Button, Empty, Page, Progress, Refusal, toast, useShortcuts } from "../ui.js";

const FOUND_MAX = 10_000; // rows in the memory of the tab; a download has no limit
const DRAWN_MS = 150; // between two draws
const BODY_BYTES = 200;
const NONE = new Set();

const fresh = () => ({ turn: 0, phase: "new", key: "", rows: [], progress: null, end: null, problem: null });

/** The search that was last started, `turn` tells it from the one before: it stays while a message of it is looked at. */
const last = makeStore(fresh());
let control = null;

function stop() {
  control?.abort();
}

/** Start a search, and end the one before. */
async function start(key, criteria) {
  stop();
  const own = new AbortController();
  control = own;
  const turn = last.value.turn + 1;
  let rows = [];
  let progress = null;
  let end = null;
  let problem = null;
  let drawn = 0;
  const draw = (phase) => {
    if (control !== own) return;
    drawn = Date.now();
    last.set({ turn, phase, key, rows: rows.slice(), progress, end, problem });
  };
  const onEvent = (name, data) => {
    if (name === "found") rows.push(rowOf(data));
    else if (name === "progress") progress = data;
    else if (name === "end") end = data;
    else if (name === "problem") problem = new Problem(data);
    if (Date.now() - drawn >= DRAWN_MS) draw("running");
  };
  draw("running");
  try {
    await api.stream("POST", "search", onEvent, { body: { ...criteria, limit: FOUND_MAX, bodyBytesMax: BODY_BYTES }, signal: own.signal });
  } catch (failure) {
    if (!isCancelled(failure)) problem = failure;
  }
  if (!end && !problem && !own.signal.aborted) problem = new Problem({ status: 0, title: "The search has ended before its time", detail: "The broker may be restarting." });
  draw(own.signal.aborted ? "stopped" : "ended");
}

function summary({ phase, rows, progress, end }) {
  const examined = end?.examined ?? progress?.examined ?? 0;
  const text = `${plural(rows.length, "message")} found in ${number(examined)}`;
  if (phase === "stopped") return `${text}: stopped`;
  if (end?.why === "limit") return `The first ${number(rows.length)} are shown: make the search narrower, or download all`;
  return text;
}

function Found({ entity, shown, criteria, state }) {
  const [chosen, setChosen] = useState(NONE);
  const [changed, setChanged] = useState(new Map()); // key -> row, of those that something was done to
  const rows = useMemo(() => state.rows.map((row) => changed.get(keyOf(row)) ?? row), [state.rows, changed]);
  const picked = useMemo(() => rows.filter((row) => chosen.has(keyOf(row)) && !row.left), [rows, chosen]);
  const isDead = entity ? nameParts(entity).subQueue !== "" : rows.some((row) => row.reason !== undefined);
  const columns = useMemo(
    () => columnsOf([!entity && "entity", "number", "state", "time", isDead && "reason", "messageId", "subject", shown?.settings.requiresSession && "session", "body", "size"]),
    [entity, isDead],
  );
  const entities = new Set(picked.map((row) => row.entity));
  const target = entities.size ? picked[0].entity : (entity ?? "");
  const onDone = async (numbers, outcome) => {
    setChosen(NONE);
    try {
      const there = outcome ? new Map() : await readThese(entityPath(target, "messages"), numbers);
      const now = (row) => (there.has(row.number) ? rowOf(there.get(row.number), target) : goneRowOf(row, outcome || "gone"));
      const ids = new Set(numbers);
      const done = rows.filter((row) => row.entity === target && ids.has(row.number));
      setChanged((before) => new Map([...before, ...done.map((row) => [keyOf(row), now(row)])]));
    } catch (problem) {
      toast(problem.message, { kind: "bad" });
    }
  };
  const bar =
    (entities.size <= 1
      ? html`<${ChosenBar} entity=${target} shown=${shown ?? { settings: {} }} rows=${picked} onDone=${onDone} onClear=${() => setChosen(NONE)} />`
      : html`<div class="chosen-bar"><b>${plural(picked.length, "message")} chosen</b><span class="faint">They are of ${plural(entities.size, "entity", "entities")}: choose those of one to act on them.</span></div>`);
  const empty = state.phase === "running" ? html`<${Empty} title="Nothing found yet" icon="search" />` : html`<${Empty} title="No message matches" icon="search">${number(state.end?.examined ?? 0)} were looked at.<//>`;
  return html`<div class="fill"><${MessageTable} key=${state.key} rows=${rows} columns=${columns} label="Found messages" chosen=${chosen} onChoose=${setChosen} empty=${empty} />
      <div class="table-foot"><span class="table-count" role="status">${summary(state)}</span>${bar}</div>
    </div>`;
}

function Search({ entity, shown, query, place }) {
  const [criteria, setCriteria] = useState(() => criteriaOf(query));
  const [work, setWork] = useState("");
  const check = useFilterCheck(criteria.filter);
  const isWrong = check.problem !== "";
  const bodyOf = (wanted) => ({ ...(entity ? { entity } : {}), ...bodyOfCriteria(wanted) });
  const body = bodyOf(criteria);
  const key = JSON.stringify(body);
  const state = useStore(last);
  const isOwn = state.key === key;
  const isRunning = isOwn && state.phase === "running";
  const form = useRef(null);
  const { me } = session.value;
  const run = useCallback(() => {
    go(place, queryOf(criteria), { replace: true });
    start(key, body);
  }, [key]);
  useEffect(() => {
    // The address is also edited, and gone back to.
    const wanted = criteriaOf(query);
    const asked = bodyOf(wanted);
    const its = JSON.stringify(asked);
    if (its !== key) setCriteria(wanted);
    if (Object.keys(query).length > 0 && last.value.key !== its) start(its, asked);
  }, [JSON.stringify(query)]);
  useShortcuts([{ keys: "/", name: "Type a search", run: () => form.current.querySelector("input").focus() }]);
  const download = () => {
    toast("The download begins");
    downloadFound(body, entity || "messages").catch((problem) => toast(`Not downloaded: ${problem.message}`, { kind: "bad" }));
  };
  const submit = (event) => {
    event.preventDefault();
    if (!isWrong) run();
  };
  const { subQueue } = nameParts(entity ?? "");
  const mayChange = entity && me.has.jobs && can("Listen", entity) && shown?.kind !== "topic";
  return html`
    <form class="card" role="search" ref=${form} onSubmit=${submit}>
      <${CriteriaFields} value=${criteria} check=${check} onChange=${setCriteria} isDead=${subQueue !== "" || !entity} />
      <div class="row-of">
        ${isRunning ? html`<${Button} icon="stop" onClick=${stop}>Stop<//>` : html`<${Button} type="submit" kind="primary" icon="search" disabled=${isWrong}>Search<//>`}
        <${Button} icon="download" disabled=${isWrong} onClick=${download}>Download all<//>
        ${mayChange && maySend() && html`<${Button} icon="right" onClick=${() => setWork("move")}>Move…<//>`}
        ${mayChange && html`<${Button} icon="trash" onClick=${() => setWork("purge")}>Delete…<//>`}
        <span class="spread"></span>
        <div class="search-progress">${isRunning && html`<${Progress} label="Searching" done=${state.progress?.examined ?? 0} of=${state.progress?.of} note=${state.progress ? rate(state.progress.perSecond) : "Starting"} />`}</div>
      </div>
    </form>
    ${isOwn && state.problem && html`<${Refusal} problem=${state.problem} onRetry=${run} />`}
    ${isOwn && (state.rows.length > 0 || !state.problem) && html`<${Found} key=${state.turn} entity=${entity} shown=${shown} criteria=${criteria} state=${state} />`}
    ${work && html`<${JobDialog} work=${work} entity=${entity} criteria=${criteria} onDone=${() => last.value.key === key && start(key, body)} onClose=${() => setWork("")} />`}
  `;
}

function Parts({ entity, shown }) {
  const { subQueue } = nameParts(entity);
  const parts = [["", "Messages"], ["$deadletterqueue", "Dead letters"]];
  return html`<div class="chips" role="group" aria-label="Part of the queue">
    ${parts.map(
      ([end, title]) => html`<button key=${end} type="button" class="chip" aria-pressed=${end === subQueue ? "true" : "false"} onClick=${() => go(["entities", end ? `${shown.name}/${end}` : shown.name, "search"])}>${title}</button>`,
    )}
  </div>`;
}

export default function SearchView({ entity, query }) {
  if (!session.value.me.has.jobs) {
    const none = html`<${Empty} title="This broker runs no searches" icon="search">Use <code>peeklock search</code> on the command line.<//>`;
    return entity ? html`<${EntityPage} entity=${entity} tab="search">${() => none}<//>` : html`<${Page} title="Search">${none}<//>`;
  }
  if (!entity) {
    return html`<${Page} title="Search" lead="The messages of all queues and subscriptions, and their dead letters" isFull><${Search} query=${query} place=${["search"]} /><//>`;
  }
  return html`<${EntityPage} entity=${entity} tab="search" isFull>
    ${(shown) => html`<${Parts} entity=${entity} shown=${shown} /><${Search} entity=${entity} shown=${shown} query=${query} place=${["entities", entity, "search"]} />`}
  <//>`;
}
