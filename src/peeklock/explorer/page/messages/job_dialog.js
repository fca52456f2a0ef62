// A job: what it would do is counted and shown first, then the broker does it, whether the tab is open or not.
import { Problem, api, isCancelled } from "../api.js";
import { nameParts } from "../entity.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { number, plural, rate, zoneOf } from "../format.js";
import { href } from "../router.js";
import { can, session } from "../session.js";
import { Button, Dialog, Field, LinkButton, Progress, Refusal, Text, toast } from "../ui.js";
import { Which } from "./each.js";
import { CriteriaFields, bodyOfCriteria, isNarrow, useFilterCheck } from "./criteria.js";
import { STATES, rowOf } from "./model.js";

const ACTIVE = ["active"];
const POLL_MS = 500;

/** Works: name -> title, the button, what is done, which states it takes, and what else is asked. */
export const WORKS = {
  purge: { title: "Delete messages", label: "Delete", past: "deleted", states: STATES, isDanger: true, note: "Deleted messages are gone. There is no way back." },
  move: { title: "Move messages", label: "Move", past: "moved", states: ACTIVE, hasTarget: true },
  resubmit: { title: "Send back", label: "Send back", past: "sent back", states: ACTIVE, hasTarget: true, note: "Each is sent to where it came from, without the reason of its death, and leaves the dead letters." },
  deadLetter: { title: "Dead-letter messages", label: "Dead-letter", past: "dead-lettered", states: ACTIVE, hasReason: true },
  reschedule: { title: "Move the schedule", label: "Move", past: "moved in time", states: ["scheduled"], hasTime: true },
  cancel: { title: "Cancel scheduled messages", label: "Cancel", dismiss: "Keep the messages", past: "cancelled", states: ["scheduled"], isDanger: true, note: "Cancelled messages are gone. There is no way back." },
};

/** Count what a job would do: {examined, of} while it counts, then {count, states, examples, guarantee}. */
function usePreview(body, isOn) {
  const [state, setState] = useState({ progress: null, found: null, problem: null });
  const key = JSON.stringify(body);
  useEffect(() => {
    setState({ progress: null, found: null, problem: null });
    if (!isOn) return undefined;
    const control = new AbortController();
    const onEvent = (name, data) => {
      if (name === "progress") setState((before) => ({ ...before, progress: data }));
      else if (name === "end") setState({ progress: null, found: data, problem: null });
      else if (name === "problem") setState({ progress: null, found: null, problem: new Problem(data) });
    };
    const timer = setTimeout(
      () => api.stream("POST", "jobs/preview", onEvent, { body, signal: control.signal }).catch((problem) => isCancelled(problem) || setState({ progress: null, found: null, problem })),
      350,
    );
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [key, isOn]);
  return state;
}

/**
 * Follow a job until it has ended, whether its dialog is open or not: `show({job, problem})` each time. Returns the job;
 * null = it is out of sight.
 */
async function follow(id, show) {
  for (;;) {
    try {
      const job = await api.get(`jobs/${encodeURIComponent(id)}`, { query: { entity: session.value.me.path } });
      show({ job, problem: null });
      if (job.state !== "running") return job;
    } catch (problem) {
      show({ problem });
      if ([401, 403, 404].includes(problem.status)) return null;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

const JOB_STATES = { running: "At work", stopped: "Stopped", interrupted: "Interrupted: the broker or the key went", done: "Done", failed: "Failed" };

const endOf = (job, work) => (job.state === "done" ? `${plural(job.done, "message")} ${work.past}` : `${work.title}: ${JOB_STATES[job.state].toLowerCase()}`);

function Running({ job, work }) {
  const known = job.of ?? (job.left === undefined ? undefined : job.done + job.left);
  return html`<div class="stack" role="status">
    <${Progress} label=${work.title} done=${job.done} of=${known} note=${`${JOB_STATES[job.state]}${job.state === "running" && job.perSecond ? `, ${rate(job.perSecond)}` : ""}`} />
    ${job.state === "done" && html`<p><b>${plural(job.done, "message")} ${work.past}.</b></p>`}
    ${job.problem && html`<p class="note warn">${typeof job.problem === "string" ? job.problem : job.problem.detail}</p>`}
    ${job.state === "running" && html`<p class="faint">The broker goes on when this tab is closed.</p>`}
  </div>`;
}

function Preview({ preview, past, entity }) {
  const { progress, found, problem } = preview;
  if (problem) return html`<${Refusal} problem=${problem} />`;
  if (!found) return html`<${Progress} label="Counting" done=${progress?.examined} of=${progress?.of} note="Counting what would be ${past}" />`;
  const states = Object.entries(found.states ?? {}).filter(([, count]) => count > 0);
  return html`<div class="note stack">
    <p><b>${plural(found.count, "message")}</b> will be ${past}${states.length > 1 ? html` <span class="faint">(${states.map(([state, count]) => `${number(count)} ${state}`).join(", ")})</span>` : ""}.</p>
    ${found.count > 0 && html`<${Which} rows=${(found.examples ?? []).map((message) => rowOf(message, entity))} />`}
    ${found.guarantee && html`<p class="faint">${found.guarantee}</p>`}
  </div>`;
}

/** Which messages are meant. */
function Meant({ state, entity, numbers, group, isNarrow }) {
  const of = html`of <code>${entity}</code>`;
  const these = `${state} messages`.trim();
  if (numbers) return html`${plural(numbers.length, "chosen message")} ${of}${state && `, if still ${state}`}.`;
  if (group) return html`The ${these} in the group “<${Text} value=${group.value} max=${200} />” ${of}.`;
  return isNarrow ? html`The ${these} ${of} that match.` : html`All ${these} ${of}.`;
}

/**
 * Do a work to messages of an entity. `numbers`: those that are chosen; `group`: {by, value} of `POST /groups`, those of
 * one; without both, the criteria are asked for, beginning with `criteria`. `onDone()` when the job has ended, also if the
 * dialog is closed before.
 */
export function JobDialog({ work: name, entity, numbers, group, criteria: initial = {}, onDone = () => {}, onClose }) {
  const work = WORKS[name];
  const { base, topic, subQueue } = nameParts(entity);
  const [criteria, setCriteria] = useState(initial);
  const [target, setTarget] = useState(name === "resubmit" ? topic || base : "");
  const [reason, setReason] = useState("");
  const [at, setAt] = useState("");
  const [perSecond, setPerSecond] = useState("");
  const [state, setState] = useState({ job: null, isBusy: false, problem: null });
  const isStarted = useRef(false);
  const isClosed = useRef(false);
  useEffect(() => () => (isClosed.current = true), []);
  const isTimeGood = !work.hasTime || !Number.isNaN(Date.parse(at));
  const isTargetGood = isTimeGood && (!work.hasTarget || (target.trim() !== "" && can("Send", target.trim())));
  const body = {
    work: name,
    entity,
    to: work.hasTarget ? target.trim() : undefined,
    criteria: bodyOfCriteria({ ...criteria, states: criteria.states?.filter((state) => work.states.includes(state)) }),
    numbers,
    group,
    at: work.hasTime && isTimeGood ? new Date(at).toISOString() : undefined,
    reason: work.hasReason && reason ? reason : undefined,
    rate: Number(perSecond) > 0 ? Number(perSecond) : undefined,
  };
  const check = useFilterCheck(criteria.filter);
  const isComplete = isTargetGood && check.isGood;
  const preview = usePreview(body, isComplete && state.job === null);
  const isReady = isComplete && preview.found?.count > 0;
  const start = async () => {
    if (!isReady || isStarted.current) return;
    isStarted.current = true;
    setState({ job: null, isBusy: true, problem: null });
    let job;
    try {
      job = await api.post("jobs", { body });
    } catch (problem) {
      isStarted.current = false;
      setState({ job: null, isBusy: false, problem });
      return;
    }
    setState({ job, isBusy: false, problem: null });
    const ended = await follow(job.id, (part) => setState((before) => ({ ...before, ...part })));
    onDone();
    if (isClosed.current && ended) toast(endOf(ended, work), { kind: ended.state === "failed" ? "bad" : "good" });
  };
  const actions = state.job
    ? html`<${LinkButton} href=${href(["jobs", state.job.id])} icon="jobs">See it among the jobs<//><${Button} kind="primary" onClick=${onClose}>Close<//>`
    : html`<${Button} onClick=${onClose}>${work.dismiss ?? "Cancel"}<//>
        <${Button} type="submit" kind=${work.isDanger ? "danger" : "primary"} isBusy=${state.isBusy} disabled=${!isReady}>${work.label} ${isReady ? plural(preview.found.count, "message") : "messages"}<//>`;
  return html`<${Dialog} title=${work.title} onClose=${onClose} onSubmit=${state.job ? onClose : start} actions=${actions}>
    ${state.job
      ? html`<${Running} job=${state.job} work=${work} />`
      : html`
          <p><${Meant} state=${work.states.length === 1 ? work.states[0] : ""} entity=${entity} numbers=${numbers} group=${group} isNarrow=${isNarrow(criteria, work.states)} /></p>
          ${work.hasTarget && html`<${Field} label="To" mono value=${target} onInput=${setTarget} placeholder="a queue or a topic" problem=${target.trim() && !isTargetGood ? "This key may not send there." : ""} autocomplete="off" spellcheck=${false} autofocus />`}
          ${work.hasTime && html`<${Field} label="Enqueue at" type="datetime-local" step="1" value=${at} onInput=${setAt} help=${`In your zone, ${zoneOf(at)}. A past time means now.`} />`}
          ${work.hasReason && html`<${Field} label="Reason" value=${reason} onInput=${setReason} />`}
          ${!numbers && !group && html`<${CriteriaFields} value=${criteria} check=${check} onChange=${setCriteria} isDead=${subQueue !== ""} states=${work.states} />`}
          <${Field} label="At most per second" inputmode="numeric" value=${perSecond} onInput=${(text) => setPerSecond(text.replace(/\D/g, ""))} help="Empty: as fast as the broker can." />
          ${isComplete && html`<${Preview} preview=${preview} past=${work.past} entity=${entity} />`}
          ${topic && subQueue && target.trim() === topic && html`<p class="note warn">It goes to the topic: each subscription whose rules match gets it, also those that have it already.</p>`}
          ${work.note && html`<p class="note warn">${work.note}</p>`}
        `}
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}
