// A message that is written: what its form holds, and what is sent of it.
import { DEATH, SETTABLE, fromBase64 } from "./model.js";
import { Decimal } from "./exact_json.js";

/** Types of an application property, and their names. Others cannot be sent as JSON. */
export const TYPES = [
  ["text", "text"],
  ["whole", "whole number"],
  ["decimal", "decimal number"],
  ["boolean", "true / false"],
  ["null", "null"],
];

const WHOLE = /^-?\d{1,19}$/;
const DECIMAL = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
const BASE64 = /^[A-Za-z0-9+/\s]*={0,2}\s*$/;

/** An empty form. */
export const blank = () => ({ body: "", form: "text", fields: {}, properties: [], copies: 1 });

const typeOf = (value) => {
  if (value === null) return "null";
  if (typeof value === "boolean") return "boolean";
  if (value instanceof Decimal) return "decimal";
  if (typeof value === "bigint") return "whole";
  return typeof value === "number" ? (Number.isInteger(value) ? "whole" : "decimal") : "text";
};

/** Return the form for a message, such that it can be edited and sent again. */
export function formOf(message) {
  const { properties = {}, body, bodyBase64, ...rest } = message;
  const fields = {};
  for (const name of SETTABLE) if (rest[name] !== undefined) fields[name] = String(rest[name]);
  if (message.state !== "scheduled" && message.state !== undefined) delete fields.scheduledEnqueueTime;
  if (fields.scheduledEnqueueTime) fields.scheduledEnqueueTime = localTime(fields.scheduledEnqueueTime);
  return {
    body: bodyBase64 ?? body ?? "",
    form: bodyBase64 === undefined ? "text" : "base64",
    fields,
    properties: Object.entries(properties)
      .filter(([name]) => !DEATH.includes(name))
      .map(([name, value]) => ({ name, type: typeOf(value), value: value === null ? "" : String(value) })),
    copies: 1,
  };
}

/** Return an instant as a control of the type datetime-local has it: in the reader's zone. */
export function localTime(instant) {
  const at = new Date(instant);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function valueOf({ type, value }) {
  if (type === "whole") return BigInt(value);
  if (type === "decimal") return new Decimal(value);
  if (type === "boolean") return value === "true";
  return type === "null" ? null : value;
}

/** Return what is wrong with a property; "" = nothing. */
export function faultOf({ name, type, value }, all) {
  if (!name) return "It has no name.";
  if (all.filter((one) => one.name === name).length > 1) return "There are two with this name.";
  if (type === "whole" && !(WHOLE.test(value) && BigInt.asIntN(64, BigInt(value)) === BigInt(value))) return "No whole number of 64 bits.";
  if (type === "decimal" && !DECIMAL.test(value)) return "No number.";
  if (type === "boolean" && !/^(true|false)$/.test(value)) return "true or false.";
  return "";
}

/** Return what is wrong with a form, by member; empty = it can be sent. */
export function faultsOf(form) {
  const faults = {};
  if (form.form === "base64" && !isBase64(form.body)) faults.body = "This is not base64.";
  if (form.form === "json") {
    try {
      JSON.parse(form.body);
    } catch (error) {
      faults.body = `This is not JSON: ${error.message}`;
    }
  }
  const { timeToLive, contentType } = form.fields;
  if (timeToLive && !(Number(timeToLive) > 0)) faults.timeToLive = "A number of seconds above 0.";
  if (contentType && !/^[ -~]*$/.test(contentType)) faults.contentType = "Only characters of ASCII.";
  if (form.properties.some((one) => faultOf(one, form.properties))) faults.properties = "A property is not right.";
  if (!(Number.isInteger(form.copies) && form.copies >= 1 && form.copies <= 10_000)) faults.copies = "From 1 to 10,000.";
  return faults;
}

function isBase64(text) {
  if (!BASE64.test(text)) return false;
  try {
    fromBase64(text.replace(/\s/g, ""));
    return true;
  } catch {
    return false;
  }
}

/** Return the message of a form, as the API takes it. */
export function messageOf(form) {
  const { timeToLive, scheduledEnqueueTime, ...texts } = form.fields;
  const message = {};
  if (form.form === "base64") message.bodyBase64 = form.body.replace(/\s/g, "");
  else message.body = form.body;
  for (const [name, value] of Object.entries(texts)) if (value !== "") message[name] = value;
  if (form.form === "json" && !message.contentType) message.contentType = "application/json";
  if (timeToLive) message.timeToLive = Number(timeToLive);
  if (scheduledEnqueueTime) message.scheduledEnqueueTime = new Date(scheduledEnqueueTime).toISOString();
  if (form.properties.length) message.properties = Object.fromEntries(form.properties.map((one) => [one.name, valueOf(one)]));
  return message;
}

/** Yield the copies of a message. Several with a message id get different ones, or they would be duplicates. */
export function* copiesOf(message, copies) {
  for (let copy = 1; copy <= copies; copy += 1) {
    yield copies > 1 && message.messageId !== undefined ? { ...message, messageId: `${message.messageId}-${copy}` } : message;
  }
}
