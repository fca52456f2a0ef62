// The broker that is tried, and what all features need of it: connections, links, requests, entities.
import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { once } from "node:events";
import rhea from "rhea";
import WebSocket from "ws";

const { message: codec, types } = rhea;

export const env = process.env;
// `Endpoint=sb://localhost:5671;...` in its parts.
export const parts = (text) => Object.fromEntries(text.split(";").map((part) => part.split(/=(.*)/s)));
const namespace = parts(env.PEEKLOCK_TEST_CONNECTION_STRING);
const endpoint = new URL(namespace.Endpoint.replace("sb://", "https://"));
export const { SharedAccessKeyName: keyName, SharedAccessKey: key } = namespace;
// The host, and the port where there is one.
export const { hostname: host, host: address } = endpoint;

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function refusal(error, otherwise) {
  const { condition, description } = error ?? {};
  return Object.assign(new Error(description ?? error?.message ?? otherwise), { condition: condition ?? otherwise });
}

// Waits for an event; any of the failing ones is thrown as what the peer said.
export async function event(emitter, name, ...failures) {
  const watch = new AbortController();
  const { signal } = watch;
  const failed = (failure) =>
    once(emitter, failure, { signal }).then(([context]) => {
      throw refusal(context.error ?? (context.receiver ?? context.sender ?? context.connection).error, failure);
    });
  const late = sleep(10_000).then(() => {
    throw new Error(`no ${name} after 10 s`);
  });
  try {
    const [context] = await Promise.race([once(emitter, name, { signal }), late, ...failures.map(failed)]);
    return context;
  } finally {
    watch.abort();
  }
}

// Connections

const opened = [];

// Connects by SASL PLAIN with a key; `transport` is "tls" or "tcp".
export async function connect(options = {}) {
  const container = rhea.create_container();
  container.on("error", () => {}); // what fails is seen where it is waited for
  container.on("disconnected", () => {});
  container.on("connection_error", () => {});
  const connection = container.connect({
    host,
    port: endpoint.port || 5671,
    transport: "tls",
    username: keyName,
    password: key,
    reconnect: false,
    ...options,
  });
  opened.push(connection);
  await event(connection, "connection_open", "connection_error", "disconnected");
  return connection;
}

export function connectByWebSocket() {
  const url = `wss://${address}/$servicebus/websocket`;
  const connection_details = rhea.websocket_connect(WebSocket)(url, ["AMQPWSB10"], {});
  return connect({ connection_details, transport: undefined });
}

export function closeAll() {
  for (const connection of opened.splice(0)) connection.close();
}

// Links

export async function openSender(connection, target, options = {}) {
  const sender = connection.open_sender({ target, ...options });
  await event(sender, "sendable", "sender_error");
  return sender;
}

// A receiver in peek-lock mode without credit: each delivery's lock is held until it is settled twice.
export async function openReceiver(connection, source, options = {}) {
  const receiver = connection.open_receiver({
    source, credit_window: 0, autoaccept: false, autosettle: false, rcv_settle_mode: 1, snd_settle_mode: 0, ...options,
  });
  await event(receiver, "receiver_open", "receiver_error");
  // A refusal is an attach without a source, and then a detach that says why (AMQP 2.6.3).
  if (!receiver.source?.address && !receiver.error) await event(receiver, "receiver_close", "receiver_error");
  if (receiver.error) throw refusal(receiver.error);
  return receiver;
}

// Sends a message (a Buffer with a format goes out as it is) and gives what became of it. A busy broker is asked again,
// as the official clients do by themselves.
export async function send(sender, message, format) {
  for (let pause = 100; ; pause *= 2) {
    try {
      return await sendOnce(sender, message, format);
    } catch (error) {
      if (error.condition !== "com.microsoft:server-busy" || pause > 5_000) throw error;
      await sleep(pause);
    }
  }
}

function sendOnce(sender, message, format) {
  const sent = format === undefined ? sender.send(message) : sender.send(message, undefined, format);
  return new Promise((done, failed) => {
    const outcomes = {
      accepted: () => done(),
      rejected: ({ delivery }) => {
        failed(refusal(delivery.remote_state.error));
      },
    };
    for (const [name, outcome] of Object.entries(outcomes)) {
      const listener = (context) => {
        if (context.delivery !== sent) return;
        for (const other of Object.keys(outcomes)) sender.removeAllListeners(other);
        outcome(context);
      };
      sender.on(name, listener);
    }
  });
}

export async function receive(receiver, count, waitMs = 5000) {
  const found = [];
  let take;
  const all = new Promise((done) => {
    take = (context) => found.push(context) === count && done();
    receiver.on("message", take);
  });
  receiver.add_credit(count);
  await Promise.race([all, sleep(waitMs)]);
  receiver.removeListener("message", take);
  if (found.length < count) throw new Error(`${found.length} of ${count} messages came`);
  return found;
}

// Makes sure that nothing comes, and takes the credit back.
export async function assertEmpty(receiver, waitMs = 300) {
  const found = [];
  const take = ({ message }) => found.push(message.body);
  receiver.on("message", take);
  receiver.add_credit(1);
  await sleep(waitMs);
  receiver.drain_credit();
  await event(receiver, "receiver_drained");
  receiver.drain = false;
  receiver.removeListener("message", take);
  assert.deepEqual(found, []);
}

// Settles a delivery, and waits for the broker to say that it is done: its refusal is thrown.
export async function settle(receiver, { delivery }, outcome) {
  const answer = event(receiver, "settled");
  delivery.update(false, outcome);
  await answer;
  const error = delivery.remote_state?.error;
  delivery.update(true);
  if (error?.condition) throw refusal(error);
}

export const ACCEPTED = codec.accepted().described();

export async function assertPassesOn(connection, queue) {
  const sender = await openSender(connection, queue);
  await send(sender, { message_id: "1", body: "hello" });
  const receiver = await openReceiver(connection, queue);
  const [found] = await receive(receiver, 1);
  assert.equal(found.message.body, "hello");
  assert.equal(found.message.message_id, "1");
  await settle(receiver, found, ACCEPTED);
  await assertEmpty(receiver);
}

// The condition of the error that `action` fails with.
export async function conditionOf(action) {
  try {
    await action();
  } catch (error) {
    if (error.condition) return error.condition;
    throw error;
  }
  return assert.fail("it was expected to fail");
}

// Requests to the management node of an entity

export async function manager(connection, entity) {
  const node = `${entity}/$management`;
  const replyTo = `replies-${randomBytes(4).toString("hex")}`;
  const sender = await openSender(connection, node);
  const receiver = connection.open_receiver({ name: replyTo, source: node, target: replyTo });
  await event(receiver, "receiver_open", "receiver_error");
  let last = 0;
  return async (operation, body) => {
    const id = `request-${++last}`;
    const answer = event(receiver, "message");
    sender.send({
      message_id: id, reply_to: replyTo, application_properties: { operation: `com.microsoft:${operation}` }, body,
    });
    const { message } = await answer;
    assert.equal(message.correlation_id, id);
    const { statusCode, statusDescription, errorCondition } = message.application_properties;
    if (statusCode >= 300) throw Object.assign(new Error(statusDescription), { condition: errorCondition });
    return { status: statusCode, body: message.body };
  };
}

export const longs = (...values) => types.wrap_array(values, 0x81);
export const uuids = (...values) => types.wrap_array(values, 0x98);

// A delivery tag is a GUID in .NET's order of bytes; requests name it in the order of RFC 4122.
export function lockToken(tag) {
  const order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
  return Buffer.from(order.map((place) => tag[place]));
}

export const encode = (message) => codec.encode(message);
export const decode = (buffer) => codec.decode(buffer);

// Entities, by plain HTTPS

export function signature(resource, secret = key) {
  const signed = encodeURIComponent(resource);
  const expiry = Math.floor(Date.now() / 1000) + 3600;
  const digest = createHmac("sha256", secret).update(`${signed}\n${expiry}`).digest("base64");
  return `SharedAccessSignature sr=${signed}&sig=${encodeURIComponent(digest)}&se=${expiry}&skn=${keyName}`;
}

const made = [];

// Removes what this run has made.
export async function removeEntities() {
  for (const path of made) await request("DELETE", path);
}

async function put(path, kind, settings) {
  const elements = Object.entries(settings).map(([name, value]) => `<${name}>${value}</${name}>`).join("");
  await request(
    "PUT",
    path,
    `<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">` +
      `<${kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">${elements}</${kind}>` +
      `</content></entry>`,
  );
  if (kind !== "SubscriptionDescription") made.push(path); // a subscription goes with its topic
  return path;
}

async function request(method, path, body) {
  const url = `https://${address}/${path}?api-version=2021-05`;
  const answer = await fetch(url, {
    method,
    headers: { authorization: signature(url), "content-type": "application/atom+xml;type=entry;charset=utf-8" },
    body,
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
}

const run = randomBytes(3).toString("hex");
let names = 0;

export const newName = (what) => `rhea-${what}-${run}-${++names}`;
export const newQueue = (settings = {}) => put(newName("queue"), "QueueDescription", settings);
export const newTopic = () => put(newName("topic"), "TopicDescription", {});
export const newSubscription = (topic, name) => put(`${topic}/Subscriptions/${name}`, "SubscriptionDescription", {});
