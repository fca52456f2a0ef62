// Sending the messages of a JSON Lines file.
import { isCancelled } from "../api.js";
import { html, useRef, useState } from "../lib.js";
import { number, plural } from "../format.js";
import { Button, Progress, Refusal } from "../ui.js";
import { linesOf } from "./save.js";
import { LineFault, readLine, sendAll } from "./sending.js";

const FAULTS_SHOWN = 5;

/** Count the messages of a file and its lines that are none. */
async function survey(file) {
  const found = { file, count: 0, bad: 0, faults: [], scheduled: 0, sessions: 0 };
  let at = 0;
  for await (const line of linesOf(file)) {
    at += 1;
    if (!line.trim()) continue;
    try {
      const message = readLine(line);
      found.count += 1;
      if (message.scheduledEnqueueTime) found.scheduled += 1;
      if (message.sessionId !== undefined) found.sessions += 1;
    } catch (fault) {
      if (!(fault instanceof LineFault)) throw fault;
      found.bad += 1;
      if (found.faults.length < FAULTS_SHOWN) found.faults.push(`line ${at}: ${fault.message}`);
    }
  }
  return found;
}

async function* messagesOf(file) {
  for await (const line of linesOf(file)) {
    if (!line.trim()) continue;
    try {
      yield readLine(line);
    } catch (fault) {
      if (!(fault instanceof LineFault)) throw fault;
    }
  }
}

function Surveyed({ found }) {
  return html`<div class="note stack">
    <div><b>${plural(found.count, "message")}</b> will be sent.
      ${found.scheduled > 0 && html` ${number(found.scheduled)} of them are scheduled.`}
      ${found.sessions > 0 && html` ${number(found.sessions)} have a session.`}</div>
    ${found.bad > 0 &&
    html`<div class="stack">
      <div class="bad">${plural(found.bad, "line")} will be left out:</div>
      <ul class="plain">${found.faults.map((fault) => html`<li key=${fault} class="mono">${fault}</li>`)}${found.bad > found.faults.length && html`<li>…</li>`}</ul>
    </div>`}
  </div>`;
}

/** Choose a file, see what is in it, send it. `onSent()` after any was sent. */
export function SendFile({ entity, onSent }) {
  const [state, setState] = useState({ phase: "choose", found: null, sent: 0, problem: null });
  const control = useRef(null);
  const update = (part) => setState((before) => ({ ...before, ...part }));
  const choose = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    update({ phase: "reading", found: null, sent: 0, problem: null });
    try {
      update({ phase: "ready", found: await survey(file) });
    } catch (problem) {
      update({ phase: "choose", problem });
    }
  };
  const run = async () => {
    control.current = new AbortController();
    update({ phase: "sending", sent: 0, problem: null });
    try {
      await sendAll(entity, messagesOf(state.found.file), { onSent: (sent) => update({ sent }), signal: control.current.signal });
      update({ phase: "done" });
    } catch (problem) {
      update({ phase: "stopped", problem: isCancelled(problem) ? null : problem });
    }
    onSent();
  };
  const { phase, found, sent, problem } = state;
  return html`<div class="stack">
    <p class="faint">A file of JSON Lines, as the download of the explorer and <code>peeklock peek --json</code> write it: a message on each line, such as <code>${'{"body": "1 pizza", "subject": "pizza"}'}</code>.</p>
    <input class="input" type="file" accept=".jsonl,.ndjson,.json,application/x-ndjson" aria-label="File with messages" disabled=${phase === "sending"} onChange=${choose} />
    ${phase === "reading" && html`<${Progress} label="Reading the file" note="Reading" />`}
    ${found && (phase === "ready" || phase === "sending") && html`<${Surveyed} found=${found} />`}
    ${found && phase !== "ready" && phase !== "reading" && html`<${Progress} label="Sending" done=${sent} of=${found.count} note=${{ sending: "Sending", done: "All are sent", stopped: "Stopped: the messages so far are sent" }[phase]} />`}
    ${problem && html`<${Refusal} problem=${problem} />`}
    <div class="row-of">
      ${phase === "sending"
        ? html`<${Button} icon="stop" onClick=${() => control.current.abort()}>Stop<//>`
        : html`<${Button} kind="primary" icon="send" disabled=${phase !== "ready" || found.count === 0} onClick=${run}>${found && phase === "ready" ? `Send ${plural(found.count, "message")}` : "Send"}<//>`}
    </div>
  </div>`;
}
