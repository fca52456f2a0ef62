// Sending messages: in batches that the API takes, with progress.
import { api, entityPath, page } from "../api.js";
import { SETTABLE, bodyBytes } from "./model.js";
import { parseExact, writeExact } from "./exact_json.js";

const BATCH = 200; // messages
const BATCH_CHARACTERS = 500_000;
const ALONE_CHARACTERS = 900_000; // a larger one goes to the interface for messages, which takes it whole

const size = (text) => new TextEncoder().encode(text).length;

/** Names of BrokerProperties by member. */
const BROKER_PROPERTIES = {
  messageId: "MessageId", subject: "Label", sessionId: "SessionId", correlationId: "CorrelationId", partitionKey: "PartitionKey",
  to: "To", replyTo: "ReplyTo", replyToSessionId: "ReplyToSessionId", timeToLive: "TimeToLive",
};

/** Send one large message by `POST /{entity}/messages`. */
async function sendLarge(entity, message, signal) {
  const known = {};
  for (const [member, name] of Object.entries(BROKER_PROPERTIES)) if (message[member] !== undefined) known[name] = message[member];
  if (message.scheduledEnqueueTime) known.ScheduledEnqueueTimeUtc = message.scheduledEnqueueTime;
  const ascii = (text) => text.replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const headers = { BrokerProperties: ascii(JSON.stringify(known)), "Content-Type": message.contentType ?? "" };
  for (const [name, value] of Object.entries(message.properties ?? {})) headers[name] = typeof value === "string" ? `"${value.replace(/["\\]/g, "\\$&")}"` : String(value);
  const path = entity.split("/").map(encodeURIComponent).join("/");
  await page("POST", `${path}/messages`, { content: new Blob([bodyBytes(message)]), headers, signal });
  return [];
}

const post = async (entity, texts, signal) =>
  (await api.post(entityPath(entity, "messages"), { content: `[${texts.join(",")}]`, headers: { "Content-Type": "application/json" }, signal })).sequenceNumbers;

/**
 * Send messages, in their order. `messages`: an iterable, or an asynchronous one, of messages as the API takes them.
 * `onSent(count)` is called after each batch. Returns the sequence numbers that are known.
 * Throws: Problem; `sent` of it is how many were sent before.
 */
export async function sendAll(entity, messages, { onSent = () => {}, signal } = {}) {
  const numbers = [];
  let sent = 0;
  let texts = [];
  let characters = 0;
  const flush = async () => {
    if (texts.length === 0) return;
    const batch = texts;
    [texts, characters] = [[], 0];
    numbers.push(...(await post(entity, batch, signal)));
    sent += batch.length;
    onSent(sent);
  };
  try {
    for await (const message of messages) {
      const text = writeExact(message);
      const length = size(text);
      if (length > ALONE_CHARACTERS) {
        await flush();
        await sendLarge(entity, message, signal);
        sent += 1;
        onSent(sent);
        continue;
      }
      if (texts.length >= BATCH || characters + length > BATCH_CHARACTERS) await flush();
      texts.push(text);
      characters += length;
    }
    await flush();
  } catch (problem) {
    problem.sent = sent;
    throw problem;
  }
  return numbers;
}

const SET_BY_THE_BROKER = new Set([
  "sequenceNumber", "enqueuedSequenceNumber", "enqueuedTime", "lockedUntil", "expiresAt", "state", "deliveryCount",
  "sizeBytes", "deadLetterSource", "viaPartitionKey", "entity", "heldByCursor", "bodySizeBytes",
]);
const TAKEN = new Set([...SETTABLE, "body", "bodyBase64", "properties"]);

/** A line of a file is no message that can be sent from here. */
export class LineFault extends Error {}

/** Return the message of a line of JSON Lines, without what the broker sets. Throws: LineFault. */
export function readLine(text) {
  let row;
  try {
    row = parseExact(text);
  } catch (error) {
    throw new LineFault(`it is not JSON: ${error.message}`);
  }
  if (row === null || typeof row !== "object" || Array.isArray(row)) throw new LineFault('it is no object such as {"body": "hello"}');
  if (row.bodyTruncated) throw new LineFault("its body is cut");
  if (row.bodyValue !== undefined || row.bodyType === "sequence") throw new LineFault("its body is an AMQP value, which only the command `peeklock send` sends");
  const message = {};
  for (const [name, value] of Object.entries(row)) {
    if (SET_BY_THE_BROKER.has(name) || name === "bodyType" || value === null) continue;
    if (!TAKEN.has(name)) throw new LineFault(`'${name}' is no member of a message`);
    message[name] = name === "timeToLive" ? Number(String(value)) : value;
  }
  return message;
}

