import assert from "node:assert/strict";
import { admin, assertEmpty, codeOf, connect, newQueue, receive, sleep } from "./broker.js";

// A queue with one message for each body, a sender of it and a receiver.
async function filled(bodies, { queueOptions, receiverOptions } = {}) {
  const queue = await newQueue(queueOptions);
  const client = connect();
  const sender = client.createSender(queue);
  await sender.sendMessages(bodies.map((body) => ({ body })));
  const receiver = client.createReceiver(queue, receiverOptions);
  return { client, queue, receiver, sender };
}

// The shortest lock that there is, and no renewal behind the program's back.
const SHORT_LOCK = {
  queueOptions: { lockDuration: "PT5S" }, receiverOptions: { maxAutoLockRenewalDurationInMs: 0 },
};

export const features = {
  "receive-and-delete": async () => {
    const { queue, receiver } = await filled(["1", "2"], { receiverOptions: { receiveMode: "receiveAndDelete" } });
    assert.deepEqual((await receive(receiver, 2)).map((message) => message.body), ["1", "2"]);
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
    await assertEmpty(receiver);
  },

  complete: async () => {
    const { queue, receiver } = await filled(["1"]);
    const [message] = await receive(receiver, 1);
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 1);
    await receiver.completeMessage(message);
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
    await assert.rejects(receiver.completeMessage(message), /already settled/);
  },

  abandon: async () => {
    const { receiver } = await filled(["1"]);
    const [first] = await receive(receiver, 1);
    assert.equal(first.deliveryCount, 0);
    await receiver.abandonMessage(first, { tried: "once", times: 1, again: true });
    const [second] = await receive(receiver, 1);
    assert.equal(second.deliveryCount, 1);
    assert.equal(second.messageId, first.messageId);
    assert.deepEqual(second.applicationProperties, { tried: "once", times: 1, again: true });
    await receiver.completeMessage(second);
  },

  "dead-letter": async () => {
    const { client, queue, receiver } = await filled(["1"]);
    const [message] = await receive(receiver, 1);
    await receiver.deadLetterMessage(message, {
      deadLetterReason: "bad", deadLetterErrorDescription: "very bad", checked: "yes",
    });
    await assertEmpty(receiver);
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const [found] = await receive(dead, 1);
    assert.equal(found.body, "1");
    assert.equal(found.deadLetterReason, "bad");
    assert.equal(found.deadLetterErrorDescription, "very bad");
    assert.equal(found.applicationProperties.checked, "yes");
    await dead.completeMessage(found);
    await assertEmpty(dead);
  },

  defer: async () => {
    const { receiver } = await filled(["1", "2"]);
    const [message] = await receive(receiver, 1);
    assert.equal(message.deliveryCount, 0);
    await receiver.deferMessage(message, { why: "later" });
    const [next] = await receive(receiver, 1);
    assert.equal(next.body, "2");
    await receiver.completeMessage(next);
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.equal(deferred.body, "1");
    assert.equal(deferred.state, "deferred");
    assert.equal(deferred.deliveryCount, 1);
    assert.equal(deferred.applicationProperties.why, "later");
    await receiver.renewMessageLock(deferred);
    await receiver.completeMessage(deferred);
    assert.equal(
      await codeOf(() => receiver.receiveDeferredMessages(message.sequenceNumber)), "MessageNotFound",
    );
  },

  "renew-lock": async () => {
    const { receiver } = await filled(["1"], SHORT_LOCK);
    const [message] = await receive(receiver, 1);
    const firstEnd = message.lockedUntilUtc;
    await sleep(2000);
    const end = await receiver.renewMessageLock(message);
    assert.ok(end - firstEnd >= 1900, `${end - firstEnd} ms longer`);
    await sleep(firstEnd - Date.now() + 300);
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },

  "lock-lost": async () => {
    const { receiver } = await filled(["1"], SHORT_LOCK);
    const [message] = await receive(receiver, 1);
    await sleep(message.lockedUntilUtc - Date.now() + 300);
    assert.equal(await codeOf(() => receiver.completeMessage(message)), "MessageLockLost");
    assert.equal(await codeOf(() => receiver.renewMessageLock(message)), "MessageLockLost");
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    await receiver.completeMessage(again);
  },

  peek: async () => {
    const { receiver } = await filled(["1", "2", "3", "4"]);
    const bodies = (messages) => messages.map((message) => message.body);
    const first = await receiver.peekMessages(2);
    assert.deepEqual(bodies(first), ["1", "2"]);
    assert.equal(first[0].lockToken, undefined);
    assert.deepEqual(bodies(await receiver.peekMessages(10)), ["3", "4"]);
    const from = { fromSequenceNumber: first[1].sequenceNumber };
    assert.deepEqual(bodies(await receiver.peekMessages(2, from)), ["2", "3"]);
    const slim = await receiver.peekMessages(1, { ...from, omitMessageBody: true });
    assert.equal(slim[0].sequenceNumber.toNumber(), 2);
    assert.equal(slim[0].body, undefined);
    assert.equal((await receive(receiver, 4))[0].deliveryCount, 0);
  },

  purge: "Only a prerelease, 7.10.0-beta.2, has `deleteMessages` and `purgeMessages`.",

  push: async () => {
    const { receiver } = await filled(Array.from({ length: 20 }, (_, index) => index));
    const seen = [];
    let running = 0;
    let most = 0;
    await new Promise((done, failed) => {
      receiver.subscribe(
        {
          processMessage: async (message) => {
            most = Math.max(most, ++running);
            await sleep(50);
            running--;
            if (seen.push(message.body) === 20) done();
          },
          processError: async ({ error }) => failed(error),
        },
        { maxConcurrentCalls: 5 },
      );
    });
    assert.equal(new Set(seen).size, 20);
    assert.equal(most, 5);
    await sleep(100); // the last completions are under way
    assert.deepEqual(await receiver.peekMessages(1), []);

    // The other way to be handed messages.
    const { receiver: iterated } = await filled(["1", "2", "3"]);
    const bodies = [];
    for await (const message of iterated.getMessageIterator()) {
      bodies.push(message.body);
      await iterated.completeMessage(message);
      if (bodies.length === 3) break;
    }
    assert.deepEqual(bodies, ["1", "2", "3"]);
  },
};
