import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import dns from "node:dns";
import WebSocket from "ws";
import { ServiceBusClient } from "@azure/service-bus";
import {
  admin, assertEmpty, assertPassesOn, codeOf, connect, connectionString, env, host, key, keyName, newName, newQueue, address,
  receive, tls,
} from "./broker.js";
import { ask } from "./lines.js";

const STRANGE_NAME = "not-in-the-certificate.example";

// Leads a name that the certificate does not have to the broker.
async function withStrangeName(action) {
  const { lookup } = dns;
  dns.lookup = (name, ...rest) => lookup(name === STRANGE_NAME ? host : name, ...rest);
  try {
    return await action();
  } finally {
    dns.lookup = lookup;
  }
}

// A connection string with a token instead of a key: with it the client leaves SASL out.
function signedString(secret) {
  const resource = encodeURIComponent(`sb://${address}/`);
  const expires = Math.floor(Date.now() / 1000) + 3600;
  const signature = encodeURIComponent(createHmac("sha256", secret).update(`${resource}\n${expires}`).digest("base64"));
  const token = `sr=${resource}&sig=${signature}&se=${expires}&skn=${keyName}`;
  return `Endpoint=sb://${address};SharedAccessSignature=SharedAccessSignature ${token}`;
}

export const features = {
  "amqp-plain": async () => {
    await assertPassesOn(connect(`${tls};UseDevelopmentEmulator=true`), await newQueue());
  },

  "amqp-tls": async () => {
    const queue = await newQueue();
    await assertPassesOn(connect(), queue);
    await assertPassesOn(connect(signedString(key)), queue);
    await withStrangeName(async () => {
      const client = connect(tls.replace(`//${host}`, `//${STRANGE_NAME}`), {
        retryOptions: { maxRetries: 0 },
      });
      await assert.rejects(client.createSender(queue).sendMessages({ body: "never" }), /altnames/);
    });
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
  },

  websocket: async () => {
    await assertPassesOn(connect(tls, { webSocketOptions: { webSocket: WebSocket } }), await newQueue());
  },

  "wrong-key": async () => {
    const queue = await newQueue();
    const client = connect(connectionString(keyName, "d3Jvbmc="), { retryOptions: { maxRetries: 0 } });
    assert.equal(await codeOf(() => client.createSender(queue).sendMessages({ body: "never" })), "UnauthorizedAccess");
    assert.equal(await codeOf(() => client.createReceiver(queue).receiveMessages(1)), "UnauthorizedAccess");
    const signed = connect(signedString("d3Jvbmc="), { retryOptions: { maxRetries: 0 } });
    assert.equal(await codeOf(() => signed.createSender(queue).sendMessages({ body: "never" })), "UnauthorizedAccess");
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
  },

  "missing-entity": async () => {
    const client = connect();
    const missing = newName("missing");
    const codes = await Promise.all([
      codeOf(() => client.createSender(missing).sendMessages({ body: "never" })),
      codeOf(() => client.createReceiver(missing).receiveMessages(1)),
      codeOf(() => client.acceptSession(missing, "1")),
      codeOf(() => client.createReceiver(missing).peekMessages(1)),
    ]);
    assert.deepEqual(new Set(codes), new Set(["MessagingEntityNotFound"]));
  },

  "missing-right": async () => {
    const queue = await newQueue();
    await connect().createSender(queue).sendMessages({ body: "hello" });
    const listener = connect(env.PEEKLOCK_LISTEN_CONNECTION_STRING, {
      retryOptions: { maxRetries: 0 },
    });
    assert.equal((await receive(listener.createReceiver(queue), 1))[0].body, "hello");
    assert.equal(await codeOf(() => listener.createSender(queue).sendMessages({ body: "no" })), "UnauthorizedAccess");
  },

  reconnect: async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    const pumped = [];
    const pumpQueue = await newQueue();
    const pump = client.createReceiver(pumpQueue);
    const pumpSender = client.createSender(pumpQueue);
    pump.subscribe({
      processMessage: async (message) => void pumped.push(message.body),
      processError: async () => {},
    });
    await sender.sendMessages({ body: "before" });
    await pumpSender.sendMessages({ body: "before" });
    await receiver.completeMessage((await receive(receiver, 1))[0]);

    await ask("restart");

    await sender.sendMessages({ body: "after" });
    const [message] = await receive(receiver, 1);
    assert.equal(message.body, "after");
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
    await pumpSender.sendMessages({ body: "after" });
    while (!pumped.includes("after")) await new Promise((done) => setTimeout(done, 50));
  },
};
