// The counts of all entities, asked for while a view shows them. Rates are made of counters that never fall.
import { api, isCancelled } from "./api.js";
import { useEffect } from "./lib.js";
import { session } from "./session.js";
import { makeStore, useStore } from "./store.js";

const EVERY_MS = 2000;
const HIDDEN_MS = 20_000; // while the tab is not shown
export const SAMPLES = 60; // of a rate
export const TRAIL = 30; // of those of an entity
const NO_TRAIL = []; // of all that are idle
const NO_RATES = { received: 0, delivered: 0, completed: 0 }; // of all that are new

const empty = () => ({ list: null, totals: null, rates: { received: [], delivered: [], completed: [] }, problem: null });

/** `list`: an entry for each entity, with `rates`, and a `trail` of what came and left; null = not known yet. `rates`: of the namespace, newest last. */
const counts = makeStore(empty());

let users = 0;
let timer = 0;
let control = null; // of the request under way
let isAhead = false; // asked before a view has used the counts
let version;
let atMs = 0;
let entries = new Map();

const byName = (a, b) => (a.name < b.name ? -1 : 1);

const rateOf = (now, before, seconds) => (seconds > 0 && before !== undefined ? Math.max(0, now - before) / seconds : 0);

function noted(next, before, seconds) {
  if (before === undefined) return Object.assign(next, { rates: NO_RATES, trail: NO_TRAIL });
  const rates = {};
  for (const name of ["received", "delivered", "completed"]) rates[name] = rateOf(next[name], before[name], seconds);
  const busy = rates.received + rates.delivered;
  const trail = busy || before.trail.some(Boolean) ? [...before.trail, busy].slice(-TRAIL) : NO_TRAIL;
  return { ...next, rates, trail };
}

function take(answer) {
  const readMs = Date.parse(answer.at);
  const seconds = atMs ? (readMs - atMs) / 1000 : 0;
  if (version !== undefined && answer.version === version && seconds <= 0) return;
  const next = new Map(answer.isWhole ? [] : entries);
  for (const [name, entry] of next) {
    if (entry.trail.length || entry.rates.completed) next.set(name, noted(entry, entry, seconds));
  }
  for (const entry of answer.entities) next.set(entry.name, noted(entry, entries.get(entry.name), seconds));
  for (const name of answer.removed ?? []) next.delete(name);
  const rates = { ...counts.value.rates };
  if (seconds > 0) {
    for (const [name, before] of Object.entries(rates)) {
      const now = rateOf(answer.totals[name], counts.value.totals?.[name], seconds);
      rates[name] = [...before, now].slice(-SAMPLES);
    }
  }
  entries = next;
  version = answer.version;
  atMs = readMs;
  counts.set({ list: [...entries.values()].sort(byName), totals: answer.totals, rates, problem: null });
}

async function ask() {
  const own = new AbortController();
  control = own;
  try {
    take(await api.get("counts", { query: { since: version }, signal: own.signal }));
  } catch (problem) {
    if (isCancelled(problem)) return;
    counts.update({ problem });
  }
  control = null;
  if (users > 0) timer = setTimeout(ask, document.hidden ? HIDDEN_MS : EVERY_MS);
}

function stop() {
  clearTimeout(timer);
  control?.abort();
  control = null;
  isAhead = false;
}

/** Ask already, before a view that uses the counts is drawn. */
export function askAhead() {
  isAhead = true;
  ask();
}

function follow() {
  if (!isAhead) ask();
  else if (control === null) timer = setTimeout(ask, EVERY_MS);
  isAhead = false;
}

session.subscribe(({ phase }) => {
  if (phase === "in") return;
  stop();
  [version, atMs, entries] = [undefined, 0, new Map()];
  counts.set(empty());
});

/** Ask at once: after something was changed. */
export function refreshCounts() {
  if (users === 0) return;
  stop();
  ask();
}

/** Return the counts, and follow them while `isOn`. */
export function useCounts(isOn = true) {
  useEffect(() => {
    if (!isOn) return undefined;
    users += 1;
    if (users === 1) follow();
    return () => {
      users -= 1;
      if (users === 0) stop();
    };
  }, [isOn]);
  return useStore(counts);
}
