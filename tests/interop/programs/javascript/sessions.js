import assert from "node:assert/strict";
import { assertEmpty, codeOf, connect, newQueue, receive, sleep } from "./broker.js";

// A queue with sessions; each message's body is its number in its session.
async function filled(counts, queueOptions = {}) {
  const queue = await newQueue({ requiresSession: true, ...queueOptions });
  const client = connect();
  const most = Math.max(...Object.values(counts));
  const messages = [];
  for (let body = 0; body < most; body++) {
    for (const [sessionId, count] of Object.entries(counts)) if (body < count) messages.push({ body, sessionId });
  }
  await client.createSender(queue).sendMessages(messages);
  return { client, queue };
}

export const features = {
  session: async () => {
    const { client, queue } = await filled({ red: 3, blue: 3 });
    const red = await client.acceptSession(queue, "red");
    assert.equal(red.sessionId, "red");
    assert.equal(await codeOf(() => connect().acceptSession(queue, "red")), "SessionCannotBeLocked");
    const messages = await receive(red, 3);
    assert.deepEqual(messages.map((message) => [message.sessionId, message.body]), [["red", 0], ["red", 1], ["red", 2]]);
    for (const message of messages) await red.completeMessage(message);
    await assertEmpty(red);
    await red.close();
    const again = await client.acceptSession(queue, "red");
    await assertEmpty(again);
    assert.notEqual(await codeOf(() => client.createReceiver(queue).receiveMessages(1)), undefined);
  },

  "next-session": async () => {
    const { client, queue } = await filled({ red: 1, blue: 1 });
    const first = await client.acceptNextSession(queue);
    const second = await client.acceptNextSession(queue);
    assert.deepEqual([first.sessionId, second.sessionId], ["red", "blue"]);
    for (const receiver of [first, second]) await receiver.completeMessage((await receive(receiver, 1))[0]);
    const impatient = connect(undefined, { retryOptions: { maxRetries: 0, timeoutInMs: 2000 } });
    const began = Date.now();
    const code = await codeOf(() => impatient.acceptNextSession(queue));
    assert.ok(Date.now() - began < 8000);
    assert.equal(code, "ServiceTimeout");

    // One that waits gets the session that comes.
    const waiting = client.acceptNextSession(queue);
    await sleep(200);
    await client.createSender(queue).sendMessages({ body: "late", sessionId: "green" });
    assert.equal((await waiting).sessionId, "green");

    const { client: pumpClient, queue: pumped } = await filled({ green: 5 });
    const receiver = await pumpClient.acceptNextSession(pumped);
    const bodies = [];
    await new Promise((done, failed) => {
      receiver.subscribe({
        processMessage: async (message) => void (bodies.push(message.body) === 5 && done()),
        processError: async ({ error }) => failed(error),
      });
    });
    assert.deepEqual(bodies, [0, 1, 2, 3, 4]);
  },

  "session-state": async () => {
    const { client, queue } = await filled({ red: 1 });
    const receiver = await client.acceptSession(queue, "red");
    assert.equal(await receiver.getSessionState(), null);
    await receiver.setSessionState({ step: 2 });
    assert.deepEqual(await receiver.getSessionState(), { step: 2 });
    await receiver.close();
    const next = await client.acceptSession(queue, "red");
    assert.deepEqual(await next.getSessionState(), { step: 2 });
    await next.setSessionState(Buffer.from([0, 255]));
    assert.deepEqual(await next.getSessionState(), Buffer.from([0, 255]));
    await next.setSessionState(null);
    assert.equal(await next.getSessionState(), null);
  },

  "renew-session": async () => {
    const { client, queue } = await filled({ red: 1 }, { lockDuration: "PT5S" });
    const receiver = await client.acceptSession(queue, "red", { maxAutoLockRenewalDurationInMs: 0 });
    const firstEnd = receiver.sessionLockedUntilUtc;
    const [message] = await receive(receiver, 1);
    await sleep(2000);
    const end = await receiver.renewSessionLock();
    assert.ok(end - firstEnd >= 1900, `${end - firstEnd} ms longer`);
    await sleep(firstEnd - Date.now() + 300);
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },
};
