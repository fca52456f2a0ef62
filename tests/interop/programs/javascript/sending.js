import assert from "node:assert/strict";
import { env } from "node:process";
import { admin, assertEmpty, codeOf, connect, newQueue, receive } from "./broker.js";

const FOOTER = { sum: 7, "x-opt-footer": "footer" };

export const features = {
  send: async () => {
    const queue = await newQueue();
    const client = connect();
    await client.createSender(queue).sendMessages({ body: "hello", messageId: "order-1" });
    const [message] = await receive(client.createReceiver(queue), 1);
    assert.equal(message.body, "hello");
    assert.equal(message.messageId, "order-1");
  },

  properties: async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue, { skipConvertingDate: true }); // else dates come as numbers
    const fields = {
      contentType: "application/json",
      correlationId: "correlation",
      messageId: "message",
      partitionKey: "partition",
      replyTo: "reply",
      replyToSessionId: "reply-session",
      subject: "subject",
      timeToLive: 60_000,
      to: "to",
      applicationProperties: {
        boolean: true,
        date: new Date("2026-02-03T04:05:06.789Z"),
        empty: "",
        float: 0.1,
        integer: 7,
        large: 2 ** 40,
        negative: -1,
        nothing: null,
        string: "häßlich 🐇",
      },
    };
    const bodies = [{ name: "object", list: [1, 2.5, null] }, "text", 7, null, Buffer.from([0, 255])];
    await sender.sendMessages(bodies.map((body) => ({ ...fields, body })));
    const sent = Date.now();
    const messages = await receive(receiver, bodies.length);
    for (const [index, message] of messages.entries()) {
      assert.deepEqual(message.body, bodies[index]);
      for (const [name, value] of Object.entries(fields)) assert.deepEqual(message[name], value, name);
      assert.equal(message.deliveryCount, 0);
      assert.equal(message.state, "active");
      assert.equal(message.sequenceNumber.toNumber(), index + 1);
      assert.ok(Math.abs(message.enqueuedTimeUtc - sent) < 10_000);
      assert.equal(message.expiresAtUtc - message.enqueuedTimeUtc, 60_000);
      assert.ok(message.lockedUntilUtc > message.enqueuedTimeUtc);
      await receiver.completeMessage(message);
    }

    // Ids need not be text, and a body can be an AMQP value or sequence.
    const uuid = Buffer.from("c0ffee00c0ffee00c0ffee00c0ffee00", "hex"); // what the client makes of any Buffer
    await sender.sendMessages({ body: "", messageId: 7, correlationId: uuid });
    await sender.sendMessages([
      { bodyType: "value", body: { answer: 42 }, header: { durable: true }, footer: { checked: true } },
      { bodyType: "sequence", body: [["first", 2]], deliveryAnnotations: { path: "x" } },
    ]);
    const [ids, value, sequence] = await receive(receiver, 3);
    assert.equal(ids.messageId, 7);
    assert.deepEqual(ids.correlationId, uuid);
    assert.deepEqual(value.body, { answer: 42 });
    assert.equal(value._rawAmqpMessage.bodyType, "value");
    assert.equal(value._rawAmqpMessage.footer.checked, true);
    assert.deepEqual(sequence.body, [["first", 2]]);
    assert.equal(sequence._rawAmqpMessage.bodyType, "sequence");
  },

  "send-footers": async () => {
    const client = connect();
    for (const queue of env.PEEKLOCK_FOOTERS_TO.split(",")) {
      await client.createSender(queue).sendMessages({ bodyType: "value", body: "javascript", footer: FOOTER });
    }
  },

  "receive-footers": async () => {
    const receiver = connect().createReceiver(env.PEEKLOCK_FOOTERS_OF, { receiveMode: "receiveAndDelete" });
    for (const message of await receive(receiver, env.PEEKLOCK_FOOTERS_TO.split(",").length)) {
      assert.deepEqual(message._rawAmqpMessage.footer, FOOTER, String(message.body));
    }
  },

  batch: async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 256 * 1024);
    const bodies = Array.from({ length: 100 }, (_, index) => index);
    for (const body of bodies) assert.ok(batch.tryAddMessage({ body, applicationProperties: { body } }));
    assert.equal(batch.count, 100);
    await sender.sendMessages(batch);
    const messages = await receive(client.createReceiver(queue), 100);
    assert.deepEqual(messages.map((message) => message.body), bodies);
    assert.deepEqual(messages.map((message) => message.applicationProperties.body), bodies);
  },

  large: async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const body = Buffer.alloc(200 * 1024, "peeklock ");
    await sender.sendMessages({ body });
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.ok(body.equals((await receive(receiver, 1))[0].body));
    assert.equal(
      await codeOf(() => sender.sendMessages({ body: Buffer.alloc(300 * 1024) })), "MessageSizeExceeded",
    );
    const batch = await sender.createMessageBatch();
    assert.equal(batch.tryAddMessage({ body: Buffer.alloc(300 * 1024) }), false);
    await sender.sendMessages({ body: "the sender goes on" });
    assert.equal((await receive(receiver, 1))[0].body, "the sender goes on");
  },

  schedule: async () => {
    const queue = await newQueue();
    const client = connect();
    const sender = client.createSender(queue);
    const due = new Date(Date.now() + 1500);
    const [, cancelled] = await sender.scheduleMessages([{ body: "kept" }, { body: "cancelled" }], due);
    await sender.cancelScheduledMessages(cancelled);
    assert.equal(await codeOf(() => sender.cancelScheduledMessages(cancelled)), "MessageNotFound");
    await sender.sendMessages({ body: "by its own field", scheduledEnqueueTimeUtc: new Date(due.getTime() + 200) });
    assert.equal((await admin.getQueueRuntimeProperties(queue)).scheduledMessageCount, 2);
    const messages = await receive(client.createReceiver(queue), 2);
    assert.ok(Date.now() >= due);
    assert.deepEqual(messages.map((message) => message.body), ["kept", "by its own field"]);
    assert.deepEqual(messages[0].scheduledEnqueueTimeUtc, due);
    assert.deepEqual(messages.map((message) => message.state), ["scheduled", "scheduled"]);
    await assertEmpty(client.createReceiver(queue));
  },

  "time-to-live": async () => {
    const queue = await newQueue({ deadLetteringOnMessageExpiration: true });
    const client = connect();
    await client.createSender(queue).sendMessages({ body: "late", timeToLive: 500 });
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const [message] = await receive(dead, 1);
    assert.equal(message.body, "late");
    assert.equal(message.deadLetterReason, "TTLExpiredException");
    await dead.completeMessage(message);
    await assertEmpty(client.createReceiver(queue));

    // A queue's shorter one caps it; a message that was scheduled keeps its own.
    const brief = await newQueue({ defaultMessageTimeToLive: "PT1M" });
    const sender = client.createSender(brief);
    await sender.sendMessages({ body: "capped", timeToLive: 3_600_000 });
    await sender.scheduleMessages({ body: "own", timeToLive: 30_000 }, new Date(Date.now() + 200));
    const [capped, own] = await receive(client.createReceiver(brief, { receiveMode: "receiveAndDelete" }), 2);
    assert.deepEqual([capped.body, capped.timeToLive], ["capped", 60_000]);
    assert.deepEqual([own.body, own.timeToLive], ["own", 30_000]);
  },

  duplicates: async () => {
    const queue = await newQueue({
      requiresDuplicateDetection: true, duplicateDetectionHistoryTimeWindow: "PT1M",
    });
    const client = connect();
    const sender = client.createSender(queue);
    await sender.sendMessages({ body: "first", messageId: "1" });
    await sender.sendMessages({ body: "second", messageId: "1" });
    await sender.sendMessages({ body: "third", messageId: "2" });
    const messages = await receive(client.createReceiver(queue), 2);
    assert.deepEqual(messages.map((message) => message.body), ["first", "third"]);
    await assertEmpty(client.createReceiver(queue));
  },
};
