// The namespaces of the broker: made, used up by tests, reset, deleted.
import { html, useState } from "../lib.js";
import { page } from "../api.js";
import { instant, plural } from "../format.js";
import { useLoad } from "../hooks.js";
import { session } from "../session.js";
import { Badge, Button, Code, Confirm, Copy, Dialog, Facts, Field, Loading, Page, Refusal, Text, toast, useShortcuts } from "../ui.js";
import { DurationField } from "../ui/duration.js";
import { useCommands } from "../ui/palette.js";

const NAMESPACES = "$api/v1/namespaces";
const KINDS = {
  default: "default",
  configured: "from the configuration file",
  dropped: "no longer in the configuration file",
  created: "created",
  "throw-away": "for tests",
};
const LEASE_S = 600;

const pathOf = (name, ...rest) => [`${NAMESPACES}/${encodeURIComponent(name)}`, ...rest].join("/");
const isForTests = (one) => session.value.me.isDevelopment || one.kind === "throw-away";
const isDeletable = (one) => one.kind !== "default" && one.kind !== "configured";

function Card({ one, isMaker, onAct }) {
  const isOwn = one.name === session.value.me.namespace;
  const limits = Object.entries(one.properties).map(([name, value]) => [
    name.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase().replace(/^./, (first) => first.toUpperCase()),
    html`<${Text} value=${Array.isArray(value) ? value.join(", ") : value} />`,
  ]);
  const items = [
    ["Durability", one.durability],
    ["Tier", one.tier],
    ["Connections", String(one.connections)],
    ["Lease", one.lease && html`<code>${one.lease}</code> <span class="faint">it ends so long after its last use</span>`],
    ...limits.filter(([name]) => name !== "Tier"),
  ];
  return html`<section class="card" aria-label=${`Namespace ${one.name}`}>
    <div class="card-head">
      <h2><${Text} value=${one.name} /></h2>
      <${Badge} tone=${one.kind === "throw-away" ? "warn" : "plain"}>${KINDS[one.kind] ?? one.kind}<//>
      ${isOwn && html`<${Badge} tone="good">shown here<//>`}
      <div class="spread"></div>
      ${isForTests(one) && html`<${Button} small icon="clock" onClick=${() => onAct("clock", one)}>Move the clock<//><${Button} small icon="refresh" onClick=${() => onAct("reset", one)}>Reset<//>`}
      ${isDeletable(one) && (isMaker || isOwn) && html`<${Button} small kind="danger" icon="trash" onClick=${() => onAct("delete", one)}>Delete<//>`}
    </div>
    <${Facts} items=${items} />
  </section>`;
}

function readConfig(text) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The configuration is not JSON: ${error.message}.`);
  }
}

/** What a new namespace is reached by; it is shown once. */
function Made({ made, onClose }) {
  const actions = html`<${Button} kind="primary" onClick=${onClose}>Done<//>`;
  return html`<${Dialog} title=${`The namespace ${made.name} is there`} onClose=${onClose} actions=${actions}>
    ${made.connectionString
      ? html`<p>Programs reach it by this connection string. Copy it now: the page does not show it again.</p>
          <${Code} text=${made.connectionString} label="Connection string" isPlain />`
      : html`<p>Programs reach it by its name, as the host part of their connection string.</p>`}
  <//>`;
}

function Create({ onClose, onMade }) {
  const [isThrowAway, setThrowAway] = useState(false);
  const [name, setName] = useState("");
  const [lease, setLease] = useState(LEASE_S);
  const [config, setConfig] = useState("");
  const [state, setState] = useState({ isBusy: false, problem: null });
  const isReady = isThrowAway ? lease > 0 : name !== "";
  const create = async () => {
    if (!isReady || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      const body = readConfig(config);
      const made = isThrowAway
        ? await page("POST", NAMESPACES, { query: { name, lease: `PT${lease}S` }, body })
        : await page("PUT", pathOf(name), { body });
      onMade(made);
    } catch (problem) {
      setState({ isBusy: false, problem: problem.status === undefined ? { title: "Not created", detail: problem.message } : problem });
    }
  };
  const actions = html`<${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind="primary" disabled=${!isReady} isBusy=${state.isBusy}>Create<//>`;
  return html`<${Dialog} title="New namespace" onClose=${onClose} onSubmit=${create} actions=${actions}>
    <div class="chips" role="group" aria-label="Kind">
      <button type="button" class="chip" aria-pressed=${isThrowAway ? "false" : "true"} onClick=${() => setThrowAway(false)}>It stays</button>
      <button type="button" class="chip" aria-pressed=${isThrowAway ? "true" : "false"} onClick=${() => setThrowAway(true)}>Throw-away, for tests</button>
    </div>
    <p class="faint">${isThrowAway ? "It is in memory alone, and ends when nobody has used it for the time of its lease." : "It has a store and keys of its own, and is there after a restart."}</p>
    <${Field} label="Name" mono value=${name} onInput=${setName} autofocus autocomplete="off" spellcheck=${false} help=${isThrowAway ? "Letters, digits and -. Empty: the broker makes one up." : "Letters, digits and -: it is part of host names."} />
    ${isThrowAway && html`<${DurationField} label="Lease" value=${lease} onInput=${setLease} help="How long it stays without being used." />`}
    <${Field} type="textarea" label="Configuration (optional)" mono value=${config} onInput=${setConfig} spellcheck=${false} placeholder='{"UserConfig": {"Namespaces": [{"Name": "…", "Queues": [{"Name": "orders"}]}]}}' help="A Config.json, of which the first namespace counts." />
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}

function Reset({ one, onClose, onDone }) {
  const [keeps, setKeeps] = useState(true);
  const run = async () => {
    await page("POST", pathOf(one.name, "reset"), { query: { keep: keeps ? "entities" : undefined } });
    toast(`${one.name} is reset`);
    onDone();
  };
  return html`<${Confirm} title="Reset the namespace" label="Reset" isDanger run=${run} onClose=${onClose}>
    <p>All messages, session states, schedules and remembered message ids of <b><${Text} value=${one.name} /></b> go. Links stay, held locks are lost, sequence numbers go on.</p>
    <${Field} type="checkbox" label="Keep the entities" help="Else entities and rules become what they were when it was made." value=${keeps} onInput=${setKeeps} />
  <//>`;
}

function Clock({ one, onClose }) {
  const [seconds, setSeconds] = useState(300);
  const run = async () => {
    const { nowMs } = await page("POST", pathOf(one.name, "clock"), { body: { advance: `PT${seconds}S` } });
    toast(`Its clock shows ${instant(nowMs)}`);
  };
  return html`<${Confirm} title="Move the clock forwards" label="Move it" isReady=${seconds > 0} run=${run} onClose=${onClose}>
    <p>What falls due in <b><${Text} value=${one.name} /></b> happens in order: locks lapse, scheduled messages are enqueued, messages expire. The clock does not go back.</p>
    <${DurationField} label="By" value=${seconds} onInput=${setSeconds} autofocus />
  <//>`;
}

function Delete({ one, onClose, onDone }) {
  const run = async () => {
    await page("DELETE", pathOf(one.name));
    toast(`The namespace ${one.name} is deleted`);
    onDone();
  };
  return html`<${Confirm} title="Delete the namespace" label="Delete it for good" isDanger typed=${one.name} run=${run} onClose=${onClose}>
    <p><b><${Text} value=${one.name} /></b> goes with all its entities, messages and keys. ${one.connections > 0 ? `${plural(one.connections, "connection")} will be closed.` : "Nobody is connected to it."}</p>
    <p class="note warn">Nothing brings it back.</p>
  <//>`;
}

export default function Namespaces() {
  const { value, problem, reload } = useLoad((signal) => page("GET", NAMESPACES, { signal }), [], { everyMs: 5000 });
  const [act, setAct] = useState(null); // {name, one}
  const close = () => setAct(null);
  const all = value?.namespaces ?? [];
  const isMaker = all.some((one) => one.kind === "default" && one.name === session.value.me.namespace);
  const create = () => setAct({ name: "create" });
  useShortcuts(isMaker ? [{ keys: "n", name: "New namespace", run: create }] : [], [isMaker]);
  useCommands(isMaker ? [{ name: "New namespace", icon: "plus", run: create }] : [], [isMaker]);
  const dialogs = {
    create: () => html`<${Create} onClose=${close} onMade=${(made) => (setAct({ name: "made", made }), reload())} />`,
    made: () => html`<${Made} made=${act.made} onClose=${close} />`,
    reset: () => html`<${Reset} one=${act.one} onClose=${close} onDone=${reload} />`,
    clock: () => html`<${Clock} one=${act.one} onClose=${close} />`,
    delete: () => html`<${Delete} one=${act.one} onClose=${close} onDone=${reload} />`,
  };
  const actions = isMaker && html`<${Button} kind="primary" icon="plus" onClick=${create}>New namespace<//>`;
  return html`<${Page} title="Namespaces" lead="Each has its own entities, its own store and its own keys." actions=${actions}>
    ${problem && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${!value && !problem && html`<${Loading} />`}
    <div class="stack cards-of">${all.map((one) => html`<${Card} key=${one.name} one=${one} isMaker=${isMaker} onAct=${(name, chosen) => setAct({ name, one: chosen })} />`)}</div>
    ${act && dialogs[act.name]()}
  <//>`;
}
