import assert from "node:assert/strict";
import dns from "node:dns";
import {
  address, assertPassesOn, conditionOf, connect, connectByWebSocket, env, event, host, newName, newQueue, openReceiver,
  openSender, parts, receive, send, settle, signature, ACCEPTED,
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

// Shows a token to the connection, as clients of Service Bus do after SASL ANONYMOUS.
async function putToken(connection, audience, token) {
  const sender = await openSender(connection, "$cbs");
  const receiver = connection.open_receiver({ source: "$cbs" });
  await event(receiver, "receiver_open", "receiver_error");
  const answer = event(receiver, "message");
  sender.send({
    message_id: "1",
    reply_to: "$cbs",
    application_properties: { operation: "put-token", type: "servicebus.windows.net:sastoken", name: audience },
    body: token,
  });
  return (await answer).message.application_properties["status-code"];
}

export const features = {
  "amqp-plain": async () => {
    await assertPassesOn(await connect({ transport: "tcp" }), await newQueue());
  },

  "amqp-tls": async () => {
    await assertPassesOn(await connect(), await newQueue());
    await withStrangeName(() => assert.rejects(connect({ host: STRANGE_NAME }), /altnames|disconnected/));
  },

  websocket: async () => {
    await assertPassesOn(await connectByWebSocket(), await newQueue());
  },

  "wrong-key": async () => {
    assert.equal(await conditionOf(() => connect({ password: "d3Jvbmc=" })), "amqp:unauthorized-access");
    const queue = await newQueue();
    const audience = `sb://${address}/${queue}`;
    const anonymous = { username: "anyone", password: undefined };
    const stranger = await connect(anonymous);
    assert.equal(await putToken(stranger, audience, signature(audience, "d3Jvbmc=")), 401);
    assert.equal(await conditionOf(() => openSender(stranger, queue)), "amqp:unauthorized-access");
    const known = await connect(anonymous);
    assert.equal(await putToken(known, audience, signature(audience)), 202);
    await assertPassesOn(known, queue);
  },

  "missing-entity": async () => {
    const connection = await connect();
    assert.equal(await conditionOf(() => openSender(connection, newName("missing"))), "amqp:not-found");
    assert.equal(await conditionOf(() => openReceiver(connection, newName("missing"))), "amqp:not-found");
  },

  "missing-right": async () => {
    const queue = await newQueue();
    await send(await openSender(await connect(), queue), { body: "hello" });
    const { SharedAccessKeyName, SharedAccessKey } = parts(env.PEEKLOCK_LISTEN_CONNECTION_STRING);
    const connection = await connect({ username: SharedAccessKeyName, password: SharedAccessKey });
    const [{ message }] = await receive(await openReceiver(connection, queue), 1);
    assert.equal(message.body, "hello");
    assert.equal(await conditionOf(() => openSender(connection, queue)), "amqp:unauthorized-access");
  },

  reconnect: async () => {
    const queue = await newQueue();
    const connection = await connect({ reconnect: true, initial_reconnect_delay: 100 });
    const sender = await openSender(connection, queue);
    const receiver = await openReceiver(connection, queue);
    await send(sender, { body: "before" });
    await settle(receiver, (await receive(receiver, 1))[0], ACCEPTED);

    const back = event(sender, "sendable");
    const attached = event(receiver, "receiver_open");
    await ask("restart");
    await Promise.all([back, attached]);

    await send(sender, { body: "after" });
    const [found] = await receive(receiver, 1);
    assert.equal(found.message.body, "after");
    await settle(receiver, found, ACCEPTED);
  },
};
