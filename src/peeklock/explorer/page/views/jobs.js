// Jobs: long work over messages that the broker does, whether a tab is open or not.
import { html, useState } from "../lib.js";
import { api } from "../api.js";
import { number, plural, rate } from "../format.js";
import { useLoad } from "../hooks.js";
import { go, href } from "../router.js";
import { session } from "../session.js";
import { Badge, Button, Confirm, Empty, Facts, Icon, Loading, Page, Progress, Refusal, Table, Text, Time, toast } from "../ui.js";

const RUNNING_MS = 1000;
const QUIET_MS = 5000;

const STATES = {
  running: ["accent", "at work"],
  stopped: ["warn", "stopped"],
  interrupted: ["warn", "interrupted"],
  done: ["good", "done"],
  failed: ["bad", "failed"],
};
const WORKS = {
  purge: "Delete",
  cancel: "Cancel",
  move: "Move",
  resubmit: "Send back",
  deadLetter: "Dead-letter",
  reschedule: "Move the schedule",
};
const PAST = { purge: "deleted", cancel: "cancelled", move: "moved", resubmit: "sent back", deadLetter: "dead-lettered", reschedule: "moved in time" };

const workName = (job) => WORKS[job.work] ?? job.work;
const isResumable = (job) => ["stopped", "interrupted", "failed"].includes(job.state);
const isOver = (job) => job.state !== "running";
const ofAll = (job) => job.of ?? (job.left === undefined ? undefined : job.done + job.left);
const problemText = (problem) => (typeof problem === "string" ? problem : (problem?.detail ?? problem?.title ?? ""));

/** A key of one entity sees the jobs of that entity. */
const scope = () => ({ entity: session.value.me.path });
const pathOf = (id, ...rest) => ["jobs", id, ...rest].map(encodeURIComponent).join("/");

const State = ({ job }) => {
  const [tone, name] = STATES[job.state] ?? ["plain", job.state];
  return html`<${Badge} tone=${tone}>${name}<//>`;
};

/** Which messages it is for, and how fast, in words; empty = all of the entity. */
function whichOf({ criteria = {}, group, numberCount, limit, rate: most }) {
  const parts = Object.entries(criteria).map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(", ") : value}`);
  if (group) parts.push(`group: ${group.value}`);
  if (numberCount) parts.push(`${plural(numberCount, "message")} by number`);
  if (limit) parts.push(`at most ${number(limit)}`);
  if (most) parts.push(`at most ${rate(most)}`);
  return parts.join("; ");
}

function Part({ job }) {
  const all = ofAll(job);
  const part = all === undefined ? 0 : all === 0 ? 1 : job.done / all;
  return html`<span class="job-part"><span class="share wide" aria-hidden="true"><span style=${{ width: `${100 * part}%` }}></span></span><span class="count">${number(job.done)}${all === undefined ? "" : ` / ${number(all)}`}</span></span>`;
}

const COLUMNS = [
  { key: "work", title: "Work", value: workName, cell: (job) => html`<b>${workName(job)}</b>`, minWidth: 86, grow: 2 },
  { key: "entity", title: "Entity", value: (job) => job.entity, cell: (job) => html`<${Text} value=${job.entity} />${job.to && html` <span class="faint">to <${Text} value=${job.to} /></span>`}`, minWidth: 90, grow: 4 },
  { key: "which", title: "Which", value: whichOf, cell: (job) => html`<${Text} value=${whichOf(job) || "all"} />`, minWidth: 110, grow: 2, drop: 5 },
  { key: "state", title: "State", value: (job) => job.state, cell: (job) => html`<${State} job=${job} />`, width: 104 },
  { key: "part", title: "Messages", value: (job) => job.done, cell: (job) => html`<${Part} job=${job} />`, width: 190, drop: 2 },
  { key: "by", title: "By", value: (job) => job.by, cell: (job) => html`<${Text} value=${job.by || "–"} />`, minWidth: 110, drop: 4 },
  { key: "created", title: "Started", value: (job) => job.createdAt, cell: (job) => html`<${Time} value=${job.createdAt} isAge />`, width: 118, align: "end", drop: 3, isDownFirst: true },
];

const None = () => html`<${Empty} title="This broker runs no jobs" icon="jobs">Use <code>peeklock move</code>, <code>resubmit</code> and <code>purge</code> on the command line.<//>`;

function List() {
  const { value, problem, reload } = useLoad((signal) => api.get("jobs", { query: scope(), signal }), [], { everyMs: 2000 });
  const none = html`<${Empty} title="No jobs" icon="jobs">Jobs are started where messages are: from dead letters, from a search, from a list of messages.<//>`;
  return html`
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${!value && !problem && html`<${Loading} />`}
    ${value && html`<${Table} label="Jobs" rows=${value.jobs} rowKey=${(job) => job.id} columns=${COLUMNS} onOpen=${(job) => go(["jobs", job.id])} rowTone=${(job) => (job.state === "done" ? "faint" : "")} empty=${none} />`}
  `;
}

function Forget({ job, onClose }) {
  const run = async () => {
    await api.del(pathOf(job.id), { query: scope() });
    toast("The job is forgotten");
    go(["jobs"], {}, { replace: true });
  };
  return html`<${Confirm} title="Forget the job" label="Forget it" isDanger=${isResumable(job)} run=${run} onClose=${onClose}>
    <p>${isResumable(job) ? "It cannot be resumed then. What it has done stays done." : "It leaves the list. What it has done stays done."}</p>
  <//>`;
}

function Steering({ job, reload }) {
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState(null);
  const [isForgetting, setForgetting] = useState(false);
  const steer = async (what) => {
    setBusy(what);
    setProblem(null);
    try {
      await api.post(pathOf(job.id, what), { query: scope() });
    } catch (failure) {
      setProblem(failure);
    }
    setBusy("");
    reload();
  };
  return html`
    <div class="row-of">
      ${job.state === "running" && html`<${Button} icon="stop" isBusy=${busy === "stop"} onClick=${() => steer("stop")}>Stop<//>`}
      ${isResumable(job) && html`<${Button} kind="primary" icon="play" isBusy=${busy === "resume"} onClick=${() => steer("resume")}>Resume<//>`}
      ${isOver(job) && html`<${Button} icon="trash" onClick=${() => setForgetting(true)}>Forget<//>`}
    </div>
    ${problem && html`<${Refusal} problem=${problem} />`}
    ${isForgetting && html`<${Forget} job=${job} onClose=${() => setForgetting(false)} />`}
  `;
}

const EXPLAINED = {
  stopped: "It stopped in order, and goes on where it was.",
  interrupted: "The broker restarted, or its process was killed. It goes on where it was, with the rights of who resumes it.",
  failed: "It met what it cannot pass. Put that right, then resume it.",
};

function Detail({ id }) {
  const [isRunning, setRunning] = useState(true);
  const { value: job, problem, reload } = useLoad(
    async (signal) => {
      const found = await api.get(pathOf(id), { query: scope(), signal });
      setRunning(found.state === "running");
      return found;
    },
    [id],
    { everyMs: isRunning ? RUNNING_MS : QUIET_MS },
  );
  if (!job) return html`<${Page} title="Job" above=${html`<${Crumbs} />`}>${problem ? html`<${Refusal} problem=${problem} onRetry=${reload} />` : html`<${Loading} />`}<//>`;
  const all = ofAll(job);
  const remaining = job.state === "running" && job.perSecond > 0 && all !== undefined ? (all - job.done) / job.perSecond : undefined;
  const items = [
    ["Entity", html`<a href=${href(["entities", job.entity, "messages"])}><${Text} value=${job.entity} /></a>`],
    ["To", job.to && html`<a href=${href(["entities", job.to])}><${Text} value=${job.to} /></a>`],
    ["Which", html`<${Text} value=${whichOf(job) || "all messages"} />`],
    ["Started by", html`<${Text} value=${job.by || "anybody: the broker asks for no key"} />`],
    ["Started", html`<${Time} value=${job.createdAt} />`],
    ["Last change", html`<${Time} value=${job.updatedAt} />`],
    ["Guarantee", job.guarantee],
    ["Id", html`<${Text} value=${job.id} mono />`],
  ];
  const note = job.state === "running" ? [job.perSecond > 0 && rate(job.perSecond), remaining !== undefined && `about ${number(Math.ceil(remaining))} s left`].filter(Boolean).join(", ") || "Beginning" : STATES[job.state]?.[1];
  const title = html`${workName(job)} <${State} job=${job} />`;
  return html`<${Page} title=${title} name=${`Job: ${workName(job)}`} above=${html`<${Crumbs} />`}>
    <div class="stack cards-of">
      ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
      <section class="card" aria-label="Progress">
        <${Progress} label=${workName(job)} done=${job.done} of=${job.state === "running" || all !== undefined ? all : job.done} note=${note} />
        ${job.state === "done" && html`<p role="status"><b>${plural(job.done, "message")} ${PAST[job.work] ?? "done"}.</b>${job.left ? ` ${plural(job.left, "message")} left: they were locked, or came in between.` : ""}</p>`}
        ${EXPLAINED[job.state] && html`<p class="faint">${EXPLAINED[job.state]}</p>`}
        ${job.problem && html`<p class="note warn"><${Text} value=${problemText(job.problem)} /></p>`}
        <${Steering} job=${job} reload=${reload} />
      </section>
      <section class="card" aria-label="What it is"><${Facts} items=${items} /></section>
    </div>
  <//>`;
}

const Crumbs = () => html`<nav class="crumbs" aria-label="Breadcrumb"><a href=${href(["jobs"])}>Jobs</a><${Icon} name="right" size=${12} /><span>Job</span></nav>`;

export default function Jobs({ job }) {
  const { has } = session.value.me;
  if (job && has.jobs) return html`<${Detail} id=${job} />`;
  return html`<${Page} title="Jobs" lead="Work over many messages, which goes on when the tab is closed." isFull>${has.jobs ? html`<${List} />` : html`<${None} />`}<//>`;
}
