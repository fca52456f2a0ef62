import assert from "node:assert/strict";
import { env } from "node:process";
import { admin, codeOf, connect, newName, newQueue, receive } from "./broker.js";

const LIMIT = Number(env.PEEKLOCK_MESSAGE_BYTES_MAX ?? 262_144);
const MODES = ["peekLock", "receiveAndDelete"];
const isEmpty = async (receiver) => assert.deepEqual(await receiver.peekMessages(1), []); // of one that has not peeked

// Finds the largest body that can be sent, and receives all that were, in receive-and-delete mode.
async function largestBody(client, queue) {
  const sender = client.createSender(queue);
  const sent = [];
  let [least, most] = [LIMIT - 1_144, LIMIT + 1];
  while (most - least > 1) {
    const size = Math.floor((least + most) / 2);
    const send = async () => {
      await sender.sendMessages({ body: Buffer.alloc(size) });
      sent.push(size);
      throw Object.assign(new Error(), { code: "sent" });
    };
    const code = await codeOf(send);
    assert.ok(["sent", "MessageSizeExceeded"].includes(code), code);
    if (code === "sent") least = size;
    else most = size;
  }
  const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual((await receive(receiver, sent.length)).map((message) => message.body.length), sent);
  await receiver.close();
  assert.ok(least > LIMIT - 144);
  return Buffer.alloc(least, "x");
}

async function takeWhole(receiver, body, receiveMode) {
  const [message] = await receive(receiver, 1);
  assert.ok(body.equals(message.body));
  if (receiveMode === "peekLock") await receiver.completeMessage(message);
}

export const features = {
  largest: async () => {
    const queue = await newQueue();
    const client = connect();
    const body = await largestBody(client, queue);
    const topic = newName("topic");
    await admin.createTopic(topic);
    await admin.createSubscription(topic, "all");
    for (const receiveMode of MODES) {
      await client.createSender(topic).sendMessages({ body });
      const subscribed = client.createReceiver(topic, "all", { receiveMode });
      await takeWhole(subscribed, body, receiveMode);
      await subscribed.close();

      await client.createSender(queue).sendMessages({ body });
      const receiver = client.createReceiver(queue);
      const grown = { grown: "p".repeat(4000) };
      await receiver.abandonMessage((await receive(receiver, 1))[0], grown);
      const [message] = await receive(receiver, 1);
      assert.ok(body.equals(message.body));
      assert.deepEqual(message.applicationProperties, grown);
      const texts = { deadLetterReason: "r".repeat(4000), deadLetterErrorDescription: "d".repeat(4000) };
      await receiver.deadLetterMessage(message, texts);
      await receiver.close();
      const dead = client.createReceiver(queue, { subQueueType: "deadLetter", receiveMode });
      await takeWhole(dead, body, receiveMode);
      await isEmpty(dead);
      await dead.close();
    }
  },

  "many-deferred": async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    const numbers = [];
    for (let number = 0; number < 8; number += 1) {
      await sender.sendMessages({ body: Buffer.alloc(250_000) });
      const [message] = await receive(receiver, 1);
      await receiver.deferMessage(message);
      numbers.push(message.sequenceNumber);
    }
    const found = await receiver.receiveDeferredMessages(numbers);
    assert.deepEqual(found.map((message) => message.sequenceNumber.toNumber()), numbers.map((number) => number.toNumber()));
    for (const message of found) {
      assert.equal(message.body.length, 250_000);
      await receiver.completeMessage(message);
    }
    await isEmpty(receiver);
  },
};
