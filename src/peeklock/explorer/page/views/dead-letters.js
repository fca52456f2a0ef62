// Dead letters by group: why they died, how often, and how they are put right.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { api, entityPath, isCancelled } from "../api.js";
import { useCounts } from "../counts.js";
import { EntityPage, deadLettersOf } from "../entity.js";
import { age, number, plural } from "../format.js";
import { readGroups, useGroups } from "../groups.js";
import { useSettled } from "../hooks.js";
import { JobDialog } from "../messages/job_dialog.js";
import { go, href } from "../router.js";
import { can, maySend, session } from "../session.js";
import { Badge, Button, Code, Count, Dialog, Empty, IconButton, LinkButton, Loading, Page, Progress, Refusal, Table, Text, Time, useShortcuts } from "../ui.js";
import { visibleText } from "../ui/text.js";

const BYS = [
  ["reason", "Reason"],
  ["property", "Property"],
  ["jsonPath", "JSON path"],
];
const PLACEHOLDERS = { property: "DeadLetterErrorDescription", jsonPath: "$.customer.id" };
const TRANSFER = "$transfer/$deadletterqueue";
const EXAMPLES = 5;
const EXAMPLE_BYTES = 4096;
const AT_ONCE = 3; // entities whose groups are read at the same time
const ENTITIES_MAX = 500; // whose groups are read

/** Return `by` of the API; null = a name is still missing. */
function byOf(kind, text) {
  if (kind === "reason") return { reason: true };
  return text.trim() ? { [kind]: text.trim() } : null;
}

function By({ kind, text, onChange }) {
  return html`<div class="chips" role="group" aria-label="Group by">
      ${BYS.map(([key, title]) => html`<button key=${key} type="button" class="chip" aria-pressed=${kind === key ? "true" : "false"} onClick=${() => onChange(key, text)}>${title}</button>`)}
    </div>
    ${kind !== "reason" && html`<input class="input search mono" aria-label=${kind === "property" ? "Name of the property" : "JSON path"} placeholder=${PLACEHOLDERS[kind]} value=${text} autocomplete="off" spellcheck=${false} onInput=${(event) => onChange(kind, event.target.value)} />`}`;
}

/** How much of all a group is. */
const Share = ({ count, of }) => html`<span class="share" aria-hidden="true"><span style=${{ width: `${Math.max(2, (100 * count) / Math.max(1, of))}%` }}></span></span>`;

const Value = ({ value }) => (value === "(none)" ? html`<span class="faint">without a value</span>` : html`<${Text} value=${value} max=${300} />`);

function groupColumns(total, onAct, mayAct) {
  const columns = [
    { key: "value", title: "Group", value: (row) => row.value, cell: (row) => html`<${Value} value=${row.value} />`, minWidth: 130, grow: 3 },
    { key: "share", title: html`<span class="offscreen">Share</span>`, cell: (row) => html`<${Share} count=${row.count} of=${total} />`, width: 110, drop: 5 },
    { key: "count", title: "Messages", value: (row) => row.count, cell: (row) => html`<${Count} value=${row.count} tone="bad" />`, width: 92, align: "end", isDownFirst: true },
    { key: "repeated", title: "Failed again", value: (row) => row.repeated, cell: (row) => (row.repeated ? html`<${Badge} tone="warn">${number(row.repeated)}<//>` : html`<span class="count none">0</span>`), width: 104, align: "end", drop: 2, isDownFirst: true },
    { key: "oldest", title: "Oldest enqueued", value: (row) => row.oldest, cell: (row) => html`<${Time} value=${row.oldest} isAge />`, width: 136, align: "end", drop: 3 },
    { key: "newest", title: "Newest enqueued", value: (row) => row.newest, cell: (row) => html`<${Time} value=${row.newest} isAge />`, width: 140, align: "end", drop: 4 },
  ];
  if (mayAct) {
    columns.push({
      key: "act",
      title: html`<span class="offscreen">Actions</span>`,
      cell: (row) => html`<span class="row-of tight end">
        ${maySend() && html`<${IconButton} icon="upload" label=${`Send back the group ${visibleText(row.value)}`} onClick=${() => onAct("resubmit", row)} />`}
        <${IconButton} icon="trash" label=${`Delete the group ${visibleText(row.value)}`} onClick=${() => onAct("purge", row)} />
      </span>`,
      width: 92,
      align: "end",
      drop: 1, // the group's own dialog offers it too
    });
  }
  return columns;
}

function Examples({ queue, numbers }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    const read = (one) => api.get(entityPath(queue, "messages", String(one)), { query: { bodyBytesMax: EXAMPLE_BYTES }, signal: control.signal }).catch((problem) => (problem.status === 404 ? { sequenceNumber: one, isGone: true } : Promise.reject(problem)));
    Promise.all(numbers.slice(0, EXAMPLES).map(read)).then(setFound, (problem) => isCancelled(problem) || setFound(problem));
    return () => control.abort();
  }, [queue, numbers.join()]);
  if (found === null) return html`<${Loading} />`;
  if (found instanceof Error) return html`<${Refusal} problem=${found} />`;
  return html`<div class="stack">
    ${found.map(
      (one) => html`<section key=${one.sequenceNumber} class="example" aria-label=${`Message ${one.sequenceNumber}`}>
        <div class="row-of">
          <a href=${href(["entities", queue, "messages", String(one.sequenceNumber)])}>Message ${one.sequenceNumber}</a>
          ${one.isGone ? html`<span class="faint">has left meanwhile</span>` : html`<span class="faint"><${Time} value=${one.enqueuedTime} isAge /></span>`}
          ${one.properties?.DeadLetterErrorDescription && html`<span><${Text} value=${one.properties.DeadLetterErrorDescription} max=${400} /></span>`}
        </div>
        ${!one.isGone && (one.body ?? "") !== "" && html`<${Code} text=${one.body} language=${/^\s*[[{]/.test(one.body) ? "json" : "text"} label=${`Body of message ${one.sequenceNumber}`} />`}
        ${one.bodyBase64 && html`<p class="faint">The body is not text.</p>`}
      </section>`,
    )}
  </div>`;
}

function GroupDialog({ queue, group, mayAct, onAct, onClose }) {
  const actions = html`
    <${Button} onClick=${onClose}>Close<//>
    ${mayAct &&
    html`<${Button} kind="danger" icon="trash" onClick=${() => onAct("purge", group)}>Delete…<//>
      ${maySend() && html`<${Button} icon="right" onClick=${() => onAct("move", group)}>Move…<//>
        <${Button} kind="primary" icon="upload" onClick=${() => onAct("resubmit", group)}>Send back…<//>`}`}
  `;
  return html`<${Dialog} title=${html`<${Value} value=${group.value} />`} size="large" onClose=${onClose} actions=${actions}>
    <p>
      <b>${plural(group.count, "message")}</b>, the oldest enqueued ${age(group.oldest)} ago, the newest ${age(group.newest)} ago.
      ${group.repeated > 0 ? html` <${Badge} tone="warn">${number(group.repeated)} had been sent back before<//>` : " None had been sent back before."}
    </p>
    <h3>${group.numbers.length > 1 ? "The first of them" : "It"}</h3>
    <${Examples} queue=${queue} numbers=${group.numbers} />
  <//>`;
}

const CountButton = ({ isCounting, onStop, onCount }) =>
  isCounting ? html`<${Button} icon="stop" onClick=${onStop}>Stop<//>` : html`<${Button} icon="refresh" onClick=${onCount}>Count again<//>`;

function Grouped({ queue, query, place }) {
  const [kind, setKind] = useState(query.by ?? "reason");
  const [text, setText] = useState(query.of ?? "");
  const wanted = useSettled(text, 400);
  const by = useMemo(() => byOf(kind, wanted), [kind, wanted]);
  const { progress, found, problem, isStopped, reload, stop } = useGroups(queue, by);
  const [open, setOpen] = useState(null); // a group
  const [job, setJob] = useState(null); // {work, group}
  const mayAct = can("Listen", queue);
  const act = (work, group) => setJob({ work, group });
  const change = (next, of) => {
    setKind(next);
    setText(of);
    go(place, { ...query, by: next === "reason" ? "" : next, of: next === "reason" ? "" : of }, { replace: true });
  };
  const total = useMemo(() => (found ? found.groups.reduce((sum, one) => sum + one.count, 0) : 0), [found]);
  const columns = useMemo(() => groupColumns(total, act, mayAct), [total, mayAct]);
  useShortcuts([{ keys: "r", name: "Count again", run: () => reload() }], [queue, kind, wanted]);
  const isCounting = by !== null && (progress !== null || (!found && !problem && !isStopped));
  return html`
    <div class="toolbar">
      <${By} kind=${kind} text=${text} onChange=${change} />
      <div class="spread"></div>
      <${CountButton} isCounting=${isCounting} onStop=${stop} onCount=${reload} />
      <${LinkButton} icon="messages" href=${href(["entities", queue, "messages"])}>One by one<//>
      ${mayAct &&
      html`${maySend() && html`<${Button} icon="right" onClick=${() => act("move")}>Move…<//>`}
        <${Button} icon="trash" kind="danger" onClick=${() => act("purge")}>Delete…<//>
        ${maySend() && html`<${Button} icon="upload" kind="primary" onClick=${() => act("resubmit")}>Send back…<//>`}`}
    </div>
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    <div class="group-progress">
      ${isStopped && !found && html`<span class="faint" role="status">The count was stopped.</span>`}
      ${isCounting ? html`<${Progress} label="Counting" done=${progress?.examined} of=${progress?.of} note="Counting the dead letters" />` : found && html`<span class="faint" role="status">${plural(found.examined ?? total, "dead letter")} in ${plural(found.count ?? found.groups.length, "group")}${found.count > found.groups.length ? `, the ${number(found.groups.length)} largest are shown` : ""}${found.others > 0 ? `; ${plural(found.others, "dead letter")} with further values ${found.others === 1 ? "is" : "are"} in none` : ""}</span>`}
    </div>
    ${by === null && html`<${Empty} title="Group by what?" icon="filter">Name a ${kind === "property" ? "property" : "place in a JSON body"} above.<//>`}
    ${found && html`<${Table} label="Groups" rows=${found.groups} rowKey=${(row) => row.value} columns=${columns} sort=${{ key: "count", isDown: true }} onOpen=${setOpen}
      empty=${html`<${Empty} title="No dead letters" icon="check">Nothing has failed here.<//>`} />`}
    ${open && !job && html`<${GroupDialog} queue=${queue} group=${open} mayAct=${mayAct} onAct=${act} onClose=${() => setOpen(null)} />`}
    ${job && html`<${JobDialog} work=${job.work} entity=${queue} group=${job.group && { by, value: job.group.value }} onDone=${reload} onClose=${() => (setJob(null), setOpen(null))} />`}
  `;
}

function Parts({ shown, part }) {
  const { counts } = shown;
  if (counts.transferDeadLetter === 0 && part !== TRANSFER) return null;
  const parts = [["", "Dead letters", counts.deadLetter], [TRANSFER, "Not forwarded", counts.transferDeadLetter]];
  return html`<div class="chips" role="group" aria-label="Which dead letters">
    ${parts.map(([key, title, count]) => html`<button key=${key} type="button" class="chip" aria-pressed=${key === part ? "true" : "false"} onClick=${() => go(["entities", shown.name, "dead-letters"], { part: key })}>${title} <span class="faint">${number(count)}</span></button>`)}
  </div>`;
}

const None = () => html`<${Empty} title="This broker runs no searches" icon="dead">Use <code>peeklock dead-letters</code> on the command line.<//>`;

const NONE_YET = { groups: [], done: 0, examined: 0, problem: null, isStopped: false };

/** Read the groups of many entities, a few at a time: {groups, done, examined, problem, isStopped, reload, stop}. */
function useAllGroups(names) {
  const [state, setState] = useState(NONE_YET);
  const [turn, setTurn] = useState(0);
  const current = useRef(null);
  const key = names.join("\n");
  useEffect(() => {
    const control = new AbortController();
    current.current = control;
    const waiting = [...names];
    const merged = new Map();
    const examined = new Map(); // messages, by entity
    const sum = () => [...examined.values()].reduce((all, one) => all + one, 0);
    let done = 0;
    let problem = null;
    setState(NONE_YET);
    const work = async () => {
      for (let name = waiting.shift(); name !== undefined && !control.signal.aborted; name = waiting.shift()) {
        const onProgress = (progress) => {
          examined.set(name, progress.examined);
          setState((before) => ({ ...before, examined: sum() }));
        };
        try {
          const { groups, examined: all } = await readGroups(name, { reason: true }, { signal: control.signal, onProgress });
          examined.set(name, all);
          for (const group of groups) {
            const before = merged.get(group.value) ?? { value: group.value, count: 0, repeated: 0, oldest: null, newest: null, entities: [] };
            merged.set(group.value, {
              value: group.value,
              count: before.count + group.count,
              repeated: before.repeated + group.repeated,
              oldest: !before.oldest || group.oldest < before.oldest ? group.oldest : before.oldest,
              newest: !before.newest || group.newest > before.newest ? group.newest : before.newest,
              entities: [...before.entities, { name, count: group.count }],
            });
          }
        } catch (failure) {
          if (isCancelled(failure)) return;
          if (failure.status !== 404) problem = failure;
        }
        done += 1;
        setState({ groups: [...merged.values()], done, examined: sum(), problem, isStopped: false });
      }
    };
    Promise.all(Array.from({ length: AT_ONCE }, work));
    return () => control.abort();
  }, [key, turn]);
  const stop = () => {
    current.current.abort();
    setState((before) => ({ ...before, isStopped: true }));
  };
  return { ...state, stop, reload: () => setTurn((before) => before + 1) };
}

const ALL_COLUMNS = [
  { key: "value", title: "Reason", value: (row) => row.value, cell: (row) => html`<${Value} value=${row.value} />`, minWidth: 130, grow: 2 },
  { key: "entities", title: "Where", value: (row) => row.entities.length, cell: (row) => html`<span class="row-of tight where">${row.entities.slice(0, 3).map(({ name }) => html`<a key=${name} href=${placeOf(name)}><${Text} value=${ownerOf(name)} /></a>`)}${row.entities.length > 3 && html`<span class="faint">and ${number(row.entities.length - 3)} more</span>`}</span>`, minWidth: 140, grow: 3, drop: 1 },
  { key: "count", title: "Messages", value: (row) => row.count, cell: (row) => html`<${Count} value=${row.count} tone="bad" />`, width: 92, align: "end", isDownFirst: true },
  { key: "repeated", title: "Failed again", value: (row) => row.repeated, cell: (row) => (row.repeated ? html`<${Badge} tone="warn">${number(row.repeated)}<//>` : html`<span class="count none">0</span>`), width: 104, align: "end", drop: 3, isDownFirst: true },
  { key: "newest", title: "Newest enqueued", value: (row) => row.newest, cell: (row) => html`<${Time} value=${row.newest} isAge />`, width: 140, align: "end", drop: 2 },
];

const ownerOf = (queue) => queue.replace(/\/\$(transfer\/\$)?deadletterqueue$/i, "");
const placeOf = (queue) => href(["entities", ownerOf(queue), "dead-letters"], { part: /\$transfer/i.test(queue) ? TRANSFER : "" });

function Where({ group, onClose }) {
  const columns = [
    { key: "name", title: "Entity", value: (row) => row.name, cell: (row) => html`<a href=${placeOf(row.name)} onClick=${onClose}><${Text} value=${row.name} /></a>`, minWidth: 160 },
    { key: "count", title: "Messages", value: (row) => row.count, cell: (row) => html`<${Count} value=${row.count} tone="bad" />`, width: 100, align: "end", isDownFirst: true },
  ];
  return html`<${Dialog} title=${html`<${Value} value=${group.value} />`} onClose=${onClose}>
    <p><b>${plural(group.count, "message")}</b> in ${plural(group.entities.length, "entity", "entities")}. Open one to send its messages back.</p>
    <${Table} label="Entities" rows=${group.entities} rowKey=${(row) => row.name} columns=${columns} sort=${{ key: "count", isDown: true }} height=${`${Math.min(10, group.entities.length) * 34 + 38}px`}
      onOpen=${(row) => (onClose(), (location.hash = placeOf(row.name)))} />
  <//>`;
}

function All() {
  const { list, problem } = useCounts();
  const [names, setNames] = useState(null); // as of when the view was opened: the counts change all the time
  const [open, setOpen] = useState(null);
  const queues = useMemo(() => {
    const found = [];
    for (const one of list ?? []) {
      if (one.deadLetter) found.push([one.deadLetter, deadLettersOf(one.name)]);
      if (one.transferDeadLetter) found.push([one.transferDeadLetter, `${one.name}/${TRANSFER}`]);
    }
    return found.sort((a, b) => b[0] - a[0]).map(([, name]) => name);
  }, [list]);
  useEffect(() => {
    if (list !== null && names === null) setNames(queues.slice(0, ENTITIES_MAX));
  }, [list]);
  const state = useAllGroups(names ?? []);
  if (names === null) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const isDone = state.done === names.length || state.isStopped;
  const total = (list ?? []).reduce((sum, one) => sum + one.deadLetter + one.transferDeadLetter, 0);
  return html`
    <div class="toolbar">
      <div class="group-progress wide">
        ${state.isStopped
          ? html`<span class="faint" role="status">The count was stopped: ${number(state.done)} of ${plural(names.length, "entity", "entities")} are shown</span>`
          : isDone
          ? html`<span class="faint" role="status">${plural(total, "dead letter")} in ${plural(queues.length, "entity", "entities")}${queues.length > names.length ? `: the ${number(names.length)} with the most are shown` : ""}</span>`
          : html`<${Progress} label="Counting" done=${state.examined} of=${total} note="Reading the reasons, entity by entity" />`}
      </div>
      <${CountButton} isCounting=${!isDone} onStop=${state.stop} onCount=${() => (setNames(queues.slice(0, ENTITIES_MAX)), state.reload())} />
    </div>
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
    <${Table} label="Reasons" rows=${state.groups} rowKey=${(row) => row.value} columns=${ALL_COLUMNS} sort=${{ key: "count", isDown: true }} onOpen=${setOpen}
      empty=${state.isStopped ? html`<${Empty} title="Not counted" icon="dead" />` : isDone ? html`<${Empty} title="No dead letters" icon="check">Nothing has failed in this namespace.<//>` : html`<${Loading} />`} />
    ${open && html`<${Where} group=${open} onClose=${() => setOpen(null)} />`}
  `;
}

export default function DeadLetters({ entity, query }) {
  const { has } = session.value.me;
  if (!entity) return html`<${Page} title="Dead letters" lead="Why messages have failed, in all queues and subscriptions." isFull>${has.jobs ? html`<${All} />` : html`<${None} />`}<//>`;
  const part = query.part === TRANSFER ? TRANSFER : "";
  return html`<${EntityPage} entity=${entity} tab="dead-letters" isFull>
    ${(shown) => {
      if (!has.jobs) return html`<${None} />`;
      const queue = part ? `${shown.name}/${TRANSFER}` : deadLettersOf(shown.name);
      return html`<${Parts} shown=${shown} part=${part} /><${Grouped} key=${queue} queue=${queue} query=${query} place=${["entities", shown.name, "dead-letters"]} />`;
    }}
  <//>`;
}
