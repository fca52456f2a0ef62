// One message: as the entity has it, or as the history does once it left.
import { api, entityPath } from "../api.js";
import { parseExact } from "./exact_json.js";

const PAGES_MAX = 20; // of the history

const exactly = async (path, options) => parseExact(await (await api.blob("GET", path, options)).text());

/** Return the entry of the history for a message that left; null = there is none. */
async function entryOf(entity, number, signal) {
  let cursor;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const found = await exactly("history", { query: { entity, limit: 250, cursor }, signal });
    const entry = found.entries.find((one) => one.message.sequenceNumber === number);
    if (entry) return entry;
    cursor = found.next;
    if (!cursor) return null;
  }
  return null;
}

/** Return {message, entry}: `entry` is of the history, null while the message is there. Throws: Problem. */
export async function loadMessage(entity, number, { bodyBytesMax, hasHistory, signal }) {
  try {
    const message = await exactly(entityPath(entity, "messages", number), { query: { bodyBytesMax, sections: true }, signal });
    return { message, entry: null };
  } catch (problem) {
    if (problem.status !== 404 || !hasHistory) throw problem;
    const entry = await entryOf(entity, number, signal);
    if (entry === null) throw problem;
    return { message: { ...entry.message, bodyCut: entry.bodyCut }, entry };
  }
}

/** Return the message without its body: its state, lock and deliveries of now; undefined = it is not there. */
export async function statusOf(entity, number, signal) {
  const { messages } = await api.get(entityPath(entity, "messages"), { query: { from: number, limit: 1, bodyBytesMax: 0 }, signal });
  return messages[0]?.sequenceNumber === number ? messages[0] : undefined;
}

/** Return those of some messages that are there, by their numbers; others may be among them. */
export async function readThese(path, numbers, options) {
  const there = new Map();
  let wanted = numbers.toSorted((a, b) => a - b);
  while (wanted.length > 0) {
    const { messages } = await api.get(path, { ...options, query: { from: wanted[0], limit: 250, bodyBytesMax: 160 } });
    for (const message of messages) there.set(message.sequenceNumber, message);
    const last = messages.at(-1)?.sequenceNumber ?? Infinity;
    wanted = wanted.filter((number) => number > last);
  }
  return there;
}

/** Return the number of the next message (`by` = 1) or of the one before (-1); undefined = there is none. */
export async function neighbour(entity, number, by) {
  const path = entityPath(entity, "messages");
  if (by > 0) return (await api.get(path, { query: { from: number + 1, limit: 1, bodyBytesMax: 0 } })).messages[0]?.sequenceNumber;
  for (let span = 16; ; span *= 8) {
    const from = Math.max(0, number - span);
    const { messages } = await api.get(path, { query: { from, limit: 250, bodyBytesMax: 0 } });
    const before = messages.filter((one) => one.sequenceNumber < number);
    if (before.length === 250) return lastBefore(path, before.at(-1).sequenceNumber, number);
    if (before.length) return before.at(-1).sequenceNumber;
    if (from === 0) return undefined;
  }
}

/** Go on page by page to the last message before a number. */
async function lastBefore(path, known, number) {
  for (;;) {
    const { messages } = await api.get(path, { query: { from: known + 1, limit: 250, bodyBytesMax: 0 } });
    const before = messages.filter((one) => one.sequenceNumber < number);
    if (before.length) known = before.at(-1).sequenceNumber;
    if (before.length < 250) return known;
  }
}
