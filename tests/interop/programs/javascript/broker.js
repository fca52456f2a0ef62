// The broker that is tried, and what all features need of it.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

export const env = process.env;
// `Endpoint=sb://localhost:5671;...` in its parts.
const parts = (text) => Object.fromEntries(text.split(";").map((part) => part.split(/=(.*)/s)));

export const tls = env.PEEKLOCK_TEST_CONNECTION_STRING;
const namespace = parts(tls);
const endpoint = new URL(namespace.Endpoint.replace("sb://", "https://"));
export const { SharedAccessKeyName: keyName, SharedAccessKey: key } = namespace;
// The host, and the port where there is one.
export const { hostname: host, host: address } = endpoint;

// Azure's defaults wait 30 s before the second try.
const retryOptions = { maxRetries: 3, retryDelayInMs: 500, timeoutInMs: 10_000 };

export function connectionString(name, secret, entity = "") {
  return `Endpoint=sb://${address};SharedAccessKeyName=${name};SharedAccessKey=${secret};${entity && `EntityPath=${entity}`}`;
}

const opened = [];

// A client that is closed when its feature is over.
export function connect(text = tls, options = {}) {
  const client = new ServiceBusClient(text, { retryOptions, ...options });
  opened.push(client);
  return client;
}

export async function closeAll() {
  await Promise.allSettled(opened.splice(0).map((client) => client.close()));
}

export const admin = new ServiceBusAdministrationClient(tls);

const run = randomBytes(3).toString("hex");
const given = [];

export function newName(what) {
  given.push(`javascript-${what}-${run}-${given.length + 1}`);
  return given.at(-1);
}

// Removes what this run has made; a topic goes by the same request as a queue.
export async function removeEntities() {
  for (const name of given) {
    await admin.deleteQueue(name).catch((error) => {
      if (error.statusCode !== 404) throw error; // the feature has removed it, or never made it
    });
  }
}

export async function newQueue(options = {}) {
  return (await admin.createQueue(newName("queue"), options)).name;
}

// Receives a number of messages, in as many calls as it takes.
export async function receive(receiver, count, waitMs = 5000) {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: waitMs });
    if (!more.length) throw new Error(`${messages.length} of ${count} messages came`);
    messages.push(...more);
  }
  return messages;
}

// Makes sure that there is nothing to receive; half a second is ample for a broker beside us.
export async function assertEmpty(receiver, waitMs = 500) {
  const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs: waitMs });
  assert.deepEqual(messages.map((message) => message.body), []);
}

export async function assertPassesOn(client, queue) {
  await client.createSender(queue).sendMessages({ body: "hello", messageId: "1" });
  const receiver = client.createReceiver(queue);
  const [message] = await receive(receiver, 1);
  assert.equal(message.body, "hello");
  assert.equal(message.messageId, "1");
  await receiver.completeMessage(message);
  await assertEmpty(receiver);
}

// The code of the error that `action` fails with.
export async function codeOf(action) {
  try {
    await action();
  } catch (error) {
    return error.code;
  }
  return assert.fail("it was expected to fail");
}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
