// The list of an entity's messages: read page by page, followed live, with those that left meanwhile.
import { api, entityPath, isCancelled } from "../api.js";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { makeStore, useStore } from "../store.js";
import { readThese } from "./loading.js";
import { goneRowOf, leftRowOf, rowOf } from "./model.js";

const PAGE = 250;
const ROWS_MAX = 50_000; // in the memory of the tab
const PARTITIONS = 16;
const PARTITION = 2 ** 48; // numbers of one
const FOLLOW_MS = 2000;
const HIDDEN_MS = 20_000; // while the tab is not shown
const BODY_BYTES = 160; // of each: a list shows no more
const KEPT = 6; // lists, for the way back
const CHANGING = ["state", "isLocked", "deliveryCount", "scheduledEnqueueTime"];

/** The messages of an entity from a number on. `store.value`: {rows, isEnd, isLoading, problem, reached}. */
class Listing {
  /** `filters`: {state, session, from, isPartitioned, hasHistory}. */
  constructor(entity, filters) {
    this.entity = entity;
    this.filters = filters;
    this.store = makeStore({ rows: [], isEnd: false, isFull: false, isLoading: false, problem: null, reached: 0 });
    this.numbers = new Map(); // number -> place in rows
    this.next = filters.from ?? 0; // the number to go on from
    this.isShown = false;
    this.lanes = null; // where new ones are looked for, once the end was reached: [{from, end}]
    this.left = new Map(); // number -> entry of the history, not in rows yet
    this.seen = undefined; // the newest number of the history
    this.opened = Infinity; // the newest number of the history when the list was opened
    this.scrollTop = 0;
  }

  path() {
    const { session } = this.filters;
    return session === undefined
      ? entityPath(this.entity, "messages")
      : entityPath(this.entity, "sessions", session, "messages");
  }

  peek(from, limit, signal, state) {
    return api.get(this.path(), { query: { from, limit, state, bodyBytesMax: BODY_BYTES }, signal });
  }

  /** Read the next page. */
  async more(signal) {
    const { isLoading, isEnd, isFull, problem } = this.store.value;
    if (isLoading || isEnd || isFull || problem) return;
    this.store.update({ isLoading: true });
    try {
      if (this.seen === undefined && this.filters.hasHistory) await this.readHistory(signal);
      await this.readPage(signal);
    } catch (failure) {
      if (!isCancelled(failure)) this.store.update({ problem: failure });
    }
    this.store.update({ isLoading: false });
  }

  /** Read on until there are enough for a screen: of one state an answer may have few, or none. */
  async readPage(signal) {
    for (let count = 0; this.isShown && count <= PAGE / 2; ) {
      const first = this.next;
      const { messages, nextNumber } = await this.peek(first, PAGE, signal, this.filters.state);
      if (nextNumber === undefined) {
        this.end();
        this.add([], first, Infinity);
        return;
      }
      count += messages.length;
      this.next = nextNumber;
      this.store.update({ reached: nextNumber });
      this.add(this.rows(messages), first, nextNumber);
    }
  }

  end() {
    const { isPartitioned } = this.filters;
    const lanes = isPartitioned ? Array.from({ length: PARTITIONS }, (_, at) => ({ from: at * PARTITION, end: (at + 1) * PARTITION })) : [{ from: this.next, end: Infinity }];
    for (const { number } of isPartitioned ? this.store.value.rows : []) {
      const lane = lanes[Math.floor(number / PARTITION)];
      if (lane) lane.from = Math.max(lane.from, number + 1);
    }
    this.lanes = lanes;
    this.store.update({ isEnd: true });
  }

  /** Add rows at the end, and those that left with numbers between `first` and `next`. */
  add(rows, first, next) {
    const gone = [];
    for (const [number, entry] of this.left) {
      if (number < first || number >= next) continue;
      this.left.delete(number);
      if (this.isWanted(entry.message)) gone.push(this.leftRow(entry));
    }
    const fresh = [...rows, ...gone].filter((row) => !this.numbers.has(row.number)).sort((a, b) => a.number - b.number);
    if (fresh.length === 0) return;
    const all = this.store.value.rows.concat(fresh);
    for (let at = all.length - fresh.length; at < all.length; at += 1) this.numbers.set(all[at].number, at);
    this.store.update({ rows: all, isFull: all.length >= ROWS_MAX });
  }

  isWanted(message) {
    const { session, from = 0, state } = this.filters;
    if (message.sequenceNumber < from || (state && message.state !== state)) return false;
    return session === undefined || message.sessionId === session;
  }

  /** Put changed rows in the places of the old ones. */
  change(rows) {
    if (rows.length === 0) return;
    const all = this.store.value.rows.slice();
    for (const row of rows) {
      const at = this.numbers.get(row.number);
      if (at !== undefined) all[at] = row;
    }
    this.store.update({ rows: all });
  }

  /** Note that messages left: by an action of this page, which knows the outcome. */
  leave(numbers, outcome) {
    this.change(numbers.map((number) => goneRowOf(this.row(number), outcome)));
  }

  /** Compare some rows with what the entity has now: after something was done to them that does not say how it ended. */
  async look(numbers) {
    const rows = numbers.map((number) => this.row(number)).filter((row) => row?.left === null);
    this.compare(rows, await readThese(this.path(), numbers));
  }

  /** Change rows to what is there of them now: `there` has the messages by number. */
  compare(rows, there) {
    const changed = [];
    for (const row of rows) {
      const message = there.get(row.number);
      if (message) {
        const fresh = rowOf(message, this.entity);
        if (CHANGING.some((name) => fresh[name] !== row[name])) changed.push(fresh);
      } else if (this.row(row.number)?.left === null) {
        changed.push(goneRowOf(row));
      }
    }
    this.change(changed);
  }

  leftRow(entry) {
    return leftRowOf(entry, this.entity, entry.number <= this.opened);
  }

  rows(messages) {
    return messages.map((message) => rowOf(message, this.entity));
  }

  row(number) {
    return this.store.value.rows[this.numbers.get(number)];
  }

  /** Look once for what is new, changed and gone; `seen`: the rows in sight. */
  async follow(seen, signal) {
    if (this.filters.hasHistory) await this.readHistory(signal);
    if (this.lanes) await this.readTail(signal);
    await this.readSeen(seen.filter((row) => this.row(row.number)?.left === null), signal);
    if (this.store.value.problem) this.store.update({ problem: null });
  }

  async readTail(signal) {
    for (const lane of this.lanes) {
      const { messages } = await this.peek(lane.from, PAGE, signal, this.filters.state);
      const own = messages.filter((message) => message.sequenceNumber < lane.end);
      if (own.length) lane.from = own.at(-1).sequenceNumber + 1;
      this.next = Math.max(this.next, lane.from);
      this.add(this.rows(own.filter((message) => this.isWanted(message))), 0, Infinity);
    }
  }

  /** Compare the rows in sight with what the entity has now. A dead letter keeps its number: it may come between. */
  async readSeen(rows, signal) {
    if (rows.length === 0) return;
    const numbers = rows.map((row) => row.number).sort((a, b) => a - b);
    // An active message that is deferred keeps its number, and is shown as such: so look at all states.
    const state = this.filters.state === "active" ? undefined : this.filters.state;
    const there = new Map();
    let from = rows.includes(this.store.value.rows[0]) ? (this.filters.from ?? 0) : numbers[0];
    const last = numbers.at(-1);
    for (let turn = 0; turn < 4 && from <= last; turn += 1) {
      const { messages, nextNumber } = await this.peek(from, Math.min(PAGE, rows.length + 20), signal, state);
      for (const message of messages) there.set(message.sequenceNumber, message);
      from = nextNumber ?? Infinity;
    }
    this.compare(rows.filter((row) => row.number < from), there);
    this.add(this.rows([...there.values()].filter((message) => this.isWanted(message))), 0, 0);
  }

  /** Read the newest entries of the history. */
  async readHistory(signal) {
    let cursor;
    const fresh = [];
    do {
      const found = await api.get("history", { query: { entity: this.entity, limit: PAGE, cursor }, signal });
      const entries = found.entries.filter((entry) => this.seen === undefined || entry.number > this.seen);
      fresh.push(...entries);
      cursor = entries.length < found.entries.length || found.entries.length === 0 ? undefined : found.next;
    } while (cursor && fresh.length < 1000);
    this.seen = Math.max(this.seen ?? 0, ...fresh.map((entry) => entry.number));
    if (this.opened === Infinity) this.opened = this.seen;
    const changed = [];
    for (const entry of fresh.reverse()) {
      const number = entry.message.sequenceNumber;
      if (!this.numbers.has(number)) {
        this.left.set(number, entry);
        continue;
      }
      const before = this.row(number);
      // The history may lack what it did not see the message with, such as the subject of a deferred one.
      const after = { ...before, isLocked: false, left: this.leftRow(entry).left };
      // The history says of what a person completes that it was purged: this page knows better.
      if (before.left && before.left.outcome !== "gone") after.left.outcome = before.left.outcome;
      changed.push(after);
    }
    this.change(changed);
    if (this.lanes) this.add([], 0, Infinity);
  }
}

const kept = new Map(); // the lists that were shown last, by entity and filters

const generation = makeStore(0);

/** Read all lists again, after something changed them as a whole. */
export function forgetListings() {
  kept.clear();
  generation.set(generation.value + 1);
}

/** Return the list for an entity and filters; the one that was shown before, if it is still kept. */
export function useListing(entity, filters, isFollowing) {
  const key = JSON.stringify([entity, filters]);
  const [turn, setTurn] = useState(0);
  const seen = useRef([]); // rows
  useStore(generation);
  let listing = kept.get(key);
  if (!listing) listing = new Listing(entity, filters);
  kept.delete(key);
  kept.set(key, listing);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  const state = useStore(listing.store);

  useLayoutEffect(() => {
    listing.isShown = true; // before the table asks for more
    return () => {
      listing.isShown = false;
    };
  }, [listing]);
  useEffect(() => {
    if (listing.store.value.rows.length === 0) listing.more();
  }, [listing]);
  useEffect(() => {
    if (!isFollowing) return undefined;
    const control = new AbortController();
    let timer = 0;
    const run = async () => {
      try {
        if (!listing.store.value.isLoading) await listing.follow(seen.current, control.signal);
      } catch (problem) {
        if (isCancelled(problem)) return;
        listing.store.update({ problem });
      }
      if (!control.signal.aborted) timer = setTimeout(run, document.hidden ? HIDDEN_MS : FOLLOW_MS);
    };
    timer = setTimeout(run, 500);
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [listing, isFollowing]);

  const reload = () => {
    kept.delete(key);
    setTurn(turn + 1);
  };
  const onSee = useCallback((rows) => {
    seen.current = rows;
  }, []);
  return { listing, state, reload, onSee };
}

/** Return the number of the last message of an entity in a state, or in any, found by halving; undefined = there is none. */
export async function lastNumber(path, state) {
  const from = async (number) => {
    const { messages, nextNumber } = await api.get(path, { query: { from: number, limit: 1, state, bodyBytesMax: 0 } });
    if (messages.length === 0 && nextNumber !== undefined) return from(nextNumber);
    return messages[0]?.sequenceNumber;
  };
  let low = await from(0);
  if (low === undefined) return undefined;
  let step = 1024;
  let high = Infinity;
  for (;;) {
    const probe = high === Infinity ? low + step : low + Math.ceil((high - low) / 2);
    if (probe >= high || probe > Number.MAX_SAFE_INTEGER) return low;
    const found = await from(probe);
    if (found === undefined) high = probe;
    else low = found;
    step *= 4;
  }
}
