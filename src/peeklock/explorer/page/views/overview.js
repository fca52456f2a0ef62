import { html, useMemo, useState } from "../lib.js";
import { health } from "../api.js";
import { SAMPLES, useCounts } from "../counts.js";
import { EntityTable } from "../entity_table.js";
import { age, bytes, duration, number, rate, short } from "../format.js";
import { useLoad, useSettled } from "../hooks.js";
import { go, href } from "../router.js";
import { can, session } from "../session.js";
import { Badge, Button, Chart, Empty, Field, LinkButton, Loading, Page, Refusal, Stat, useShortcuts } from "../ui.js";

const KINDS = [
  ["all", "All"],
  ["queue", "Queues"],
  ["topic", "Topics"],
  ["subscription", "Subscriptions"],
  ["dead", "With dead letters"],
];

/** Return the sum, the oldest, ... of all entities, where the broker did not. */
function sumOf(list) {
  const sum = { active: 0, scheduled: 0, dead: 0, sizeBytes: 0, oldest: "" };
  for (const one of list) {
    sum.active += one.active;
    sum.scheduled += one.scheduled;
    sum.dead += one.deadLetter + one.transferDeadLetter;
    sum.sizeBytes += one.sizeBytes;
    const { oldestEnqueuedTime: oldest } = one;
    if (oldest && (!sum.oldest || oldest < sum.oldest)) sum.oldest = oldest;
  }
  return sum;
}

function Health() {
  const { value, problem } = useLoad(health, [], { everyMs: 10_000 });
  if (!value) return html`<div class="health">${problem && html`<${Badge} tone="bad">not reached<//>`}</div>`;
  const isGood = value.status === "ok" && !problem;
  return html`<div class="health" aria-label="Health" role="group">
    <${Badge} tone=${isGood ? "good" : "bad"}>${problem ? "not reached" : value.status}<//>
    ${value.lag_ms !== undefined && html`<span>loop lag <b>${number(value.lag_ms)} ms</b></span>`}
    ${value.free_bytes != null && html`<span>disk free <b>${bytes(value.free_bytes)}</b></span>`}
    ${value.durability && html`<span>durability <b>${value.durability}</b></span>`}
    ${value.connections !== undefined && html`<span><a href=${href(["connections"])}>connections</a> <b>${number(value.connections)}</b></span>`}
    ${value.up_ms !== undefined && html`<span>up <b>${duration(value.up_ms / 1000)}</b></span>`}
    <span>version <b>${value.version}</b></span>
  </div>`;
}

function Chips({ kind, onKind, counts }) {
  return html`<div class="chips" role="group" aria-label="Kinds">
    ${KINDS.map(
      ([key, text]) => html`<button
        key=${key}
        type="button"
        class="chip"
        aria-pressed=${kind === key ? "true" : "false"}
        onClick=${() => onKind(key)}
      >
        ${text} <span class="faint">${number(counts[key])}</span>
      </button>`,
    )}
  </div>`;
}

const hasDead = (one) => one.deadLetter + one.transferDeadLetter > 0;

function Entities({ list }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("all");
  const wanted = useSettled(text.trim().toLowerCase(), 80);
  const counts = useMemo(() => {
    const found = { all: list.length, queue: 0, topic: 0, subscription: 0, dead: 0 };
    for (const one of list) {
      found[one.kind] += 1;
      if (hasDead(one)) found.dead += 1;
    }
    return found;
  }, [list]);
  const rows = useMemo(
    () =>
      list.filter(
        (one) =>
          (kind === "all" || (kind === "dead" ? hasDead(one) : one.kind === kind)) &&
          (!wanted || one.name.toLowerCase().includes(wanted)),
      ),
    [list, kind, wanted],
  );
  useShortcuts([{ keys: "/", name: "Search the table", run: () => document.getElementById("entity-search").focus() }]);
  const none = wanted || kind !== "all"
    ? html`<${Empty} title="No entity matches" icon="search"><button type="button" class="link" onClick=${() => (setText(""), setKind("all"))}>Show all</button><//>`
    : html`<${Empty} title="No entities yet" icon="queue">
        ${can("Manage") ? html`<${LinkButton} kind="primary" icon="plus" href=${href(["create"])}>Create the first<//>` : ""}
      <//>`;
  return html`<div class="toolbar">
      <input
        id="entity-search"
        class="input search"
        type="search"
        placeholder="Search by name  /"
        aria-label="Search by name"
        autocomplete="off"
        spellcheck="false"
        value=${text}
        onInput=${(event) => setText(event.target.value)}
      />
      <${Chips} kind=${kind} onKind=${setKind} counts=${counts} />
    </div>
    <${EntityTable} rows=${rows} label="Queues, topics and subscriptions" empty=${none} />`;
}

function Figures({ list, rates }) {
  const sum = useMemo(() => sumOf(list), [list]);
  const series = [
    { name: "in", values: rates.received, tone: "accent" },
    { name: "out", values: rates.delivered, tone: "good" },
  ];
  const done = [{ name: "completed", values: rates.completed, tone: "good" }];
  return html`<section class="figures" aria-label="Figures of the namespace">
    <${Stat} label="Dead letters" value=${short(sum.dead)} tone=${sum.dead ? "bad" : ""} />
    <${Stat} label="Active" value=${short(sum.active)} />
    <${Stat} label="Scheduled" value=${short(sum.scheduled)} />
    <${Stat} label="Oldest message" value=${sum.oldest ? age(sum.oldest) : "–"} />
    <${Stat} label="Size" value=${bytes(sum.sizeBytes)} />
    <div class="figure-chart"><${Chart} label="Messages" series=${series} count=${SAMPLES} format=${rate} span="2 min" height=${60} /></div>
    <div class="figure-chart"><${Chart} label="Settled" series=${done} count=${SAMPLES} format=${rate} span="2 min" height=${60} /></div>
  </section>`;
}

/** For a key of one entity, or one without Manage: which entity to open. */
function OneEntity() {
  const { me } = session.value;
  const [name, setName] = useState(me.path);
  const open = (event) => {
    event.preventDefault();
    if (name.trim()) go(["entities", name.trim()]);
  };
  return html`<${Page} title="Overview">
    <form class="card narrow" onSubmit=${open}>
      <p>${me.path ? "This key is for one entity." : "The list of all entities needs a key with Manage on the namespace."}</p>
      <${Field} label="Entity" mono value=${name} onInput=${setName} placeholder="orders, or events/subscriptions/audit" />
      <${Button} type="submit" kind="primary" disabled=${!name.trim()}>Open<//>
    </form>
  <//>`;
}

export default function Overview() {
  const isWhole = can("Manage");
  const { list, rates, problem } = useCounts(isWhole);
  if (!isWhole) return html`<${OneEntity} />`;
  const actions = html`<${LinkButton} icon="plus" href=${href(["create"])}>Create<//>`;
  return html`<${Page} title="Overview" isFull actions=${actions}>
    <${Health} />
    ${problem && html`<${Refusal} problem=${problem} />`}
    ${list ? html`<${Figures} list=${list} rates=${rates} /><${Entities} list=${list} />` : !problem && html`<${Loading} />`}
  <//>`;
}
