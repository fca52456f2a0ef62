import assert from "node:assert/strict";
import { env } from "node:process";
import rhea from "rhea";
import {
  ACCEPTED, conditionOf, connect, decode, longs, manager, newQueue, newSubscription, newTopic, openReceiver, openSender,
  receive, send, settle, uuids,
} from "./broker.js";

const { message: codec, types } = rhea;

const LIMIT = Number(env.PEEKLOCK_MESSAGE_BYTES_MAX ?? 262_144);
const PEEK_LOCK = {};
const RECEIVE_AND_DELETE = { rcv_settle_mode: 0, snd_settle_mode: 1 };

// Finds the largest body that can be sent, and receives all that were, in receive-and-delete mode.
async function largestBody(connection, queue) {
  const sender = await openSender(connection, queue);
  const sent = [];
  let [least, most] = [LIMIT - 1_144, LIMIT + 1];
  while (most - least > 1) {
    const size = Math.floor((least + most) / 2);
    const code = await conditionOf(async () => {
      await send(sender, { body: Buffer.alloc(size) });
      sent.push(size);
      throw Object.assign(new Error(), { condition: "sent" });
    });
    assert.ok(["sent", "amqp:link:message-size-exceeded"].includes(code), code);
    if (code === "sent") least = size;
    else most = size;
  }
  const receiver = await openReceiver(connection, queue, RECEIVE_AND_DELETE);
  assert.deepEqual((await receive(receiver, sent.length)).map(({ message }) => message.body.length), sent);
  receiver.close();
  assert.ok(least > LIMIT - 144);
  return Buffer.alloc(least, "x");
}

async function takeWhole(connection, source, body, mode) {
  const receiver = await openReceiver(connection, source, mode);
  const [found] = await receive(receiver, 1);
  assert.ok(body.equals(found.message.body));
  if (mode === PEEK_LOCK) await settle(receiver, found, ACCEPTED);
  receiver.close();
}

export const features = {
  largest: async () => {
    const queue = await newQueue();
    const connection = await connect();
    const body = await largestBody(connection, queue);
    const topic = await newTopic();
    await newSubscription(topic, "all");
    const toTopic = await openSender(connection, topic);
    const toQueue = await openSender(connection, queue);
    for (const mode of [PEEK_LOCK, RECEIVE_AND_DELETE]) {
      await send(toTopic, { body });
      await takeWhole(connection, `${topic}/Subscriptions/all`, body, mode);

      await send(toQueue, { body });
      const receiver = await openReceiver(connection, queue);
      const grown = { delivery_failed: true, message_annotations: { grown: "p".repeat(4000) } };
      await settle(receiver, (await receive(receiver, 1))[0], codec.modified(grown).described());
      const [found] = await receive(receiver, 1);
      assert.ok(body.equals(found.message.body));
      assert.equal(found.message.application_properties.grown.length, 4000);
      const info = { DeadLetterReason: "r".repeat(4000), DeadLetterErrorDescription: "d".repeat(4000) };
      const error = { condition: "com.microsoft:dead-letter", info };
      await settle(receiver, found, codec.rejected({ error }).described());
      receiver.close();
      await takeWhole(connection, `${queue}/$DeadLetterQueue`, body, mode);
    }
  },

  "many-deferred": async () => {
    const queue = await newQueue();
    const connection = await connect();
    const sender = await openSender(connection, queue);
    const receiver = await openReceiver(connection, queue);
    const numbers = [];
    for (let number = 0; number < 8; number += 1) {
      await send(sender, { body: Buffer.alloc(250_000) });
      const [found] = await receive(receiver, 1);
      numbers.push(found.message.message_annotations["x-opt-sequence-number"]);
      await settle(receiver, found, codec.modified({ undeliverable_here: true }).described());
    }
    const request = await manager(connection, queue);
    const wanted = { "sequence-numbers": longs(...numbers), "receiver-settle-mode": types.wrap_uint(1) };
    const { messages } = (await request("receive-by-sequence-number", wanted)).body;
    assert.deepEqual(messages.map(({ message }) => decode(message).body.length), Array(8).fill(250_000));
    const tokens = uuids(...messages.map((found) => found["lock-token"]));
    await request("update-disposition", { "disposition-status": "completed", "lock-tokens": tokens });
  },
};
