// Doing something to each of some messages: asked first, with progress, and with what others were faster at.
import { html, useEffect, useRef, useState } from "../lib.js";
import { number, plural } from "../format.js";
import { Button, Dialog, Progress, Refusal, Text, toast } from "../ui.js";

const AT_ONCE = 4;
const LISTED_MAX = 8;

/** Which messages: the first of them, by number, subject and body. */
export function Which({ rows }) {
  return html`<ul class="which">
    ${rows.slice(0, LISTED_MAX).map(
      (row) => html`<li key=${row.number}>
        <b>${row.number}</b> <${Text} value=${row.subject ?? row.messageId ?? ""} max=${60} /> <span class="faint"><${Text} value=${row.preview} mono max=${80} /></span>
      </li>`,
    )}
    ${rows.length > LISTED_MAX && html`<li class="faint">and ${number(rows.length - LISTED_MAX)} more</li>`}
  </ul>`;
}

/** Whether all further calls would fail in the same way. */
const isFinal = (problem) => ![404, 409, 410].includes(problem.status);

/** Call for each row, some at a time. Returns {done: [rows], failed: Map of text -> {problem, rows}}. Stops at what is final. */
async function runAll(rows, call, signal, onProgress) {
  const done = [];
  const failed = new Map();
  const queue = rows.slice();
  let stopped = null;
  const work = async () => {
    while (queue.length && !stopped && !signal.aborted) {
      const row = queue.shift();
      try {
        await call(row, signal);
        done.push(row);
      } catch (problem) {
        if (isFinal(problem)) stopped ??= problem;
        else {
          const known = failed.get(problem.type) ?? { problem, rows: [] };
          known.rows.push(row);
          failed.set(problem.type, known);
        }
      }
      onProgress(done.length + [...failed.values()].reduce((sum, one) => sum + one.rows.length, 0));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return { done, failed: [...failed.values()], stopped, rest: queue.length };
}

const REASONS = { 404: "not there any more: someone else was faster", 409: "not free" };

function Results({ result, past }) {
  return html`<div class="stack" role="status">
    <p><b>${plural(result.done.length, "message")} ${past}.</b>${result.rest > 0 && ` ${number(result.rest)} not tried.`}</p>
    ${result.failed.map(
      ({ problem, rows }) => html`<div class="note warn stack" key=${problem.type}>
        <div><b>${plural(rows.length, "message")} ${rows.length === 1 ? "was" : "were"} ${REASONS[problem.status] ?? problem.title}.</b></div>
        <div>${rows.slice(0, LISTED_MAX).map((row) => row.number).join(", ")}${rows.length > LISTED_MAX ? "…" : ""}</div>
        <div class="faint">${problem.detail}</div>
      </div>`,
    )}
    ${result.stopped && html`<${Refusal} problem=${result.stopped} />`}
  </div>`;
}

/**
 * Ask, then call for each message. `rows`: those that are chosen; `takes(row)`: whether it can be done to one;
 * `call(row, signal)`; `past`: "completed"; `left`: the outcome to note of messages that left by it; the children are
 * further fields; `isReady`: whether these are right; `dismiss`: the button that does nothing.
 */
export function EachDialog({ title, label, past, left, isDanger, rows, takes, call, isReady = true, dismiss = "Cancel", onDone, onClose, children }) {
  const able = rows.filter(takes);
  const others = rows.length - able.length;
  const [state, setState] = useState({ phase: "ask", count: 0, result: null });
  const control = useRef(new AbortController());
  useEffect(() => () => control.current.abort(), []);
  const [fixed] = useState(able); // what was shown is what is done, whatever changes meanwhile
  const done = (result) => {
    onDone(result.done.map((row) => row.number), left);
    onClose();
  };
  const close = () => {
    if (state.result) done(state.result);
    else if (state.phase === "ask") onClose();
  };
  const run = async () => {
    if (state.phase !== "ask" || !isReady || fixed.length === 0) return;
    setState({ phase: "running", count: 0, result: null });
    const result = await runAll(fixed, call, control.current.signal, (count) => setState((before) => ({ ...before, count })));
    const isSmooth = result.failed.length === 0 && !result.stopped && result.rest === 0;
    if (isSmooth) {
      toast(`${plural(result.done.length, "message")} ${past}`);
      done(result);
    } else {
      setState({ phase: "ended", count: fixed.length, result });
    }
  };
  const actions = {
    ask: html`<${Button} onClick=${close}>${dismiss}<//>
      <${Button} type="submit" kind=${isDanger ? "danger" : "primary"} disabled=${!isReady || fixed.length === 0}>${label}<//>`,
    running: html`<${Button} icon="stop" onClick=${() => control.current.abort()}>Stop<//>`,
    ended: html`<${Button} kind="primary" onClick=${close}>Close<//>`,
  }[state.phase];
  return html`<${Dialog} title=${title} size="small" onClose=${close} onSubmit=${run} actions=${actions}>
    ${state.phase === "ask" &&
    html`<p><b>${plural(fixed.length, "message")}</b>${others > 0 && html`; <span class="warn">${number(others)} of those chosen ${others === 1 ? "stays" : "stay"}: locked, or in another state</span>`}</p>
      <${Which} rows=${fixed} />
      ${children}`}
    ${state.phase === "running" && html`<${Progress} label=${title} done=${state.count} of=${fixed.length} note=${label} />`}
    ${state.result && html`<${Results} result=${state.result} past=${past} />`}
  <//>`;
}
