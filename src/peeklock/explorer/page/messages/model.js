// What the page knows of a message as the API shows it.

export const STATES = ["active", "deferred", "scheduled"];
const PREVIEW_MAX = 160; // characters of a body in a list

/** What a queue or subscription keeps: the end of the entity's name, and its title. */
export const SUB_QUEUES = [
  ["", "Messages"],
  ["$deadletterqueue", "Dead letters"],
  ["$transfer/$deadletterqueue", "Transfer dead letters"],
];

/** Members that a sender may set, besides the body and `properties`. */
export const SETTABLE = [
  "messageId", "subject", "sessionId", "correlationId", "contentType", "partitionKey", "to", "replyTo",
  "replyToSessionId", "timeToLive", "scheduledEnqueueTime",
];

/** Properties of a dead letter that say why it is one. */
export const DEATH = ["DeadLetterReason", "DeadLetterErrorDescription"];

/** Return the bytes of base64. */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Return base64 of bytes. */
export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

/** Return the bytes of a body. */
export function bodyBytes(message) {
  if (message.bodyBase64 !== undefined) return fromBase64(message.bodyBase64);
  return new TextEncoder().encode(message.body ?? "");
}

/** Return whether there is more of the body than the answer has. */
export const isCut = (message) => message.bodyTruncated === true || message.bodyCut === true;

function previewOf(message) {
  if (message.bodyValue !== undefined) return JSON.stringify(message.bodyValue).slice(0, PREVIEW_MAX);
  if (message.body !== undefined) return message.body.slice(0, PREVIEW_MAX).replace(/\s+/g, " ");
  if (message.bodyBase64 === undefined) return "";
  const bytes = fromBase64(message.bodyBase64.slice(0, 64));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** Return what a list keeps of a message: without its body and properties, so that many fit. */
export function rowOf(message, entity = message.entity) {
  const { DeadLetterReason: reason } = message.properties ?? {};
  return {
    entity,
    number: message.sequenceNumber,
    state: message.state,
    isLocked: message.lockedUntil !== undefined || message.heldByCursor !== undefined,
    enqueuedTime: message.enqueuedTime,
    scheduledEnqueueTime: message.scheduledEnqueueTime,
    messageId: message.messageId,
    subject: message.subject,
    sessionId: message.sessionId,
    deliveryCount: message.deliveryCount,
    sizeBytes: message.sizeBytes,
    reason: reason === undefined || reason === null ? undefined : String(reason),
    isText: message.bodyBase64 === undefined,
    preview: previewOf(message),
    left: null,
  };
}

/** Return the row of a message that left, of an entry of the history. `isOld`: it left before the list was opened. */
export const leftRowOf = (entry, entity, isOld) => ({
  ...rowOf(entry.message, entity),
  isLocked: false,
  left: { outcome: entry.outcome, at: entry.leftAt, reason: entry.reason, movedTo: entry.movedTo, isOld },
});

/** Return the row of a message that left meanwhile. `outcome`: "gone" = unknown. */
export const goneRowOf = (row, outcome = "gone") => ({ ...row, isLocked: false, left: { outcome, at: new Date().toISOString() } });

/** Return the name of an outcome for people: "received-and-deleted" is "received and deleted". */
export const outcomeText = (outcome) => (outcome === "gone" ? "left" : outcome.replaceAll("-", " "));
