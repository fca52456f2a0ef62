// The shared access keys of the namespace: hidden until asked for, copied, rotated, made and removed.
import { html, useState } from "../lib.js";
import { page } from "../api.js";
import { connectionString } from "../connection_string.js";
import { useLoad } from "../hooks.js";
import { keyInUse, session, use } from "../session.js";
import { Badge, Button, Confirm, Copy, Dialog, Empty, Field, IconButton, Loading, Page, Refusal, Text, toast, useShortcuts } from "../ui.js";
import { useCommands } from "../ui/palette.js";

const KEYS = "$api/v1/keys";
const RIGHTS = ["Send", "Listen", "Manage"];
const HIDDEN = "•".repeat(24);

const pathOf = (name) => `${KEYS}/${encodeURIComponent(name)}`;
const isOwn = (name) => keyInUse()?.keyName === name;

function Secret({ label, name, value }) {
  const [isShown, setShown] = useState(false);
  return html`<div class="key-line">
    <div class="faint">${label}</div>
    <code class="mono">${isShown ? value : HIDDEN}</code>
    <div class="row-of tight">
      <${IconButton} icon=${isShown ? "hidden" : "eye"} label=${`${isShown ? "Hide" : "Show"} the ${label.toLowerCase()} of ${name}`} onClick=${() => setShown(!isShown)} />
      <${Copy} text=${value} label=${`Copy the ${label.toLowerCase()} of ${name}`} />
      <${Copy} text=${() => connectionString(name, value)} label=${`Copy the connection string with the ${label.toLowerCase()} of ${name}`}>Connection string<//>
    </div>
  </div>`;
}

function Rule({ rule, onAct }) {
  return html`<section class="card" aria-label=${`Key ${rule.name}`}>
    <div class="card-head">
      <h2><${Text} value=${rule.name} /></h2>
      ${rule.rights.map((right) => html`<${Badge} key=${right} tone=${right === "Manage" ? "accent" : "plain"}>${right}<//>`)}
      ${isOwn(rule.name) && html`<${Badge} tone="good">you use it<//>`}
      <div class="spread"></div>
      <${Button} small icon="refresh" onClick=${() => onAct("rotate", rule)}>Rotate<//>
      <${Button} small kind="danger" icon="trash" onClick=${() => onAct("remove", rule)}>Remove<//>
    </div>
    <${Secret} label="Primary key" name=${rule.name} value=${rule.primaryKey} />
    <${Secret} label="Secondary key" name=${rule.name} value=${rule.secondaryKey} />
  </section>`;
}

function Rotate({ rule, onClose, onDone }) {
  const [revokes, setRevokes] = useState(false);
  const run = async () => {
    const { primaryKey } = await page("POST", pathOf(rule.name), { query: { revoke: revokes || undefined } });
    if (isOwn(rule.name)) use({ ...keyInUse(), key: primaryKey }); // else the page is signed out at the next rotation
    toast(revokes ? "Both keys are new" : "The primary key is new; the old one is the secondary key");
    onDone();
  };
  return html`<${Confirm} title="Rotate the key" label=${revokes ? "Replace both keys" : "Rotate"} isDanger=${revokes} run=${run} onClose=${onClose}>
    <p><b><${Text} value=${rule.name} /></b> gets a new primary key. The primary key of now becomes the secondary key, and works on until the next rotation. The secondary key of now is refused from now on.</p>
    <${Field} type="checkbox" label="Replace both keys" help="Both keys of now are refused at once, and links that they have opened are detached." value=${revokes} onInput=${setRevokes} />
    ${isOwn(rule.name) && html`<p class="note">You are signed in with this key. The page goes on with the new one; programs need it too.</p>`}
  <//>`;
}

function Remove({ rule, rules, onClose, onDone }) {
  const isLast = rule.rights.includes("Manage") && !rules.some((one) => one !== rule && one.rights.includes("Manage"));
  const run = async () => {
    await page("DELETE", pathOf(rule.name));
    toast(`The key ${rule.name} is removed`);
    onDone();
  };
  return html`<${Confirm} title="Remove the key" label="Remove" isDanger typed=${rule.name} run=${run} onClose=${onClose}>
    <p>Both keys of <b><${Text} value=${rule.name} /></b> are refused at once. Links that they have opened are detached.</p>
    ${isLast && html`<p class="note warn">It is the last key with Manage: only the command <code>peeklock keys add</code> on the broker's machine makes another one.</p>`}
    ${isOwn(rule.name) && html`<p class="note warn">You are signed in with this key: the page signs you out.</p>`}
  <//>`;
}

function Add({ onClose, onDone }) {
  const [name, setName] = useState("");
  const [rights, setRights] = useState(new Set(["Send", "Listen"]));
  const [state, setState] = useState({ isBusy: false, problem: null });
  const isReady = name !== "" && rights.size > 0;
  const toggle = (right, isOn) => {
    const next = new Set(rights);
    if (isOn) next.add(right);
    else next.delete(right);
    setRights(next.has("Manage") ? new Set(RIGHTS) : next);
  };
  const add = async () => {
    if (!isReady || state.isBusy) return;
    setState({ isBusy: true, problem: null });
    try {
      await page("PUT", pathOf(name), { query: { rights: RIGHTS.filter((right) => rights.has(right)).join(",") } });
      toast(`The key ${name} is made`);
      onDone();
      onClose();
    } catch (problem) {
      setState({ isBusy: false, problem });
    }
  };
  const actions = html`<${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind="primary" disabled=${!isReady} isBusy=${state.isBusy}>Make the key<//>`;
  return html`<${Dialog} title="New key" size="small" onClose=${onClose} onSubmit=${add} actions=${actions}>
    <${Field} label="Name" mono value=${name} onInput=${setName} autofocus autocomplete="off" spellcheck=${false} help="Programs name it in their connection string." />
    <fieldset class="fieldset">
      <legend>Rights</legend>
      <${Field} type="checkbox" label="Send" value=${rights.has("Send")} disabled=${rights.has("Manage")} onInput=${(isOn) => toggle("Send", isOn)} help="Send and schedule messages." />
      <${Field} type="checkbox" label="Listen" value=${rights.has("Listen")} disabled=${rights.has("Manage")} onInput=${(isOn) => toggle("Listen", isOn)} help="Receive, peek and settle messages." />
      <${Field} type="checkbox" label="Manage" value=${rights.has("Manage")} onInput=${(isOn) => toggle("Manage", isOn)} help="Create, change and delete entities, keys and rules. It includes the other two." />
    </fieldset>
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
  <//>`;
}

function Kept() {
  const { value, problem, reload } = useLoad((signal) => page("GET", KEYS, { signal }), [], { everyMs: 15_000 });
  const [act, setAct] = useState(null); // {name: "add" | "rotate" | "remove", rule}
  const close = () => setAct(null);
  const add = () => setAct({ name: "add" });
  const isChangeable = value !== undefined;
  useShortcuts(isChangeable ? [{ keys: "n", name: "New key", run: add }] : [], [isChangeable]);
  useCommands(isChangeable ? [{ name: "New key", icon: "plus", run: add }] : [], [isChangeable]);
  const hasNone = problem?.status === 409 && value === undefined;
  const actions = isChangeable && html`<${Button} kind="primary" icon="plus" onClick=${add}>New key<//>`;
  return html`<${Page} title="Keys" lead=${html`Shared access keys of the namespace <b><${Text} value=${session.value.me.namespace} /></b>.`} actions=${actions}>
    ${hasNone && html`<${Empty} title="No keys of its own" icon="keys"><${Text} value=${problem.detail} /><//>`}
    ${problem && !hasNone && html`<${Refusal} problem=${problem} onRetry=${reload} />`}
    ${!value && !problem && html`<${Loading} />`}
    ${value && html`<div class="stack keys">${value.keys.map((rule) => html`<${Rule} key=${rule.name} rule=${rule} onAct=${(name) => setAct({ name, rule })} />`)}</div>`}
    ${act?.name === "add" && html`<${Add} onClose=${close} onDone=${reload} />`}
    ${act?.name === "rotate" && html`<${Rotate} rule=${act.rule} onClose=${close} onDone=${reload} />`}
    ${act?.name === "remove" && html`<${Remove} rule=${act.rule} rules=${value.keys} onClose=${close} onDone=${reload} />`}
  <//>`;
}

export default function Keys() {
  if (!session.value.me.isDevelopment) return html`<${Kept} />`;
  return html`<${Page} title="Keys"><${Empty} title="No keys here" icon="keys">In development mode clients need no secret. Start the broker with <code>--auth sas</code> for keys of its own.<//><//>`;
}
