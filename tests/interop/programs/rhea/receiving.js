import assert from "node:assert/strict";
import rhea from "rhea";
import {
  ACCEPTED, assertEmpty, conditionOf, connect, decode, lockToken, longs, manager, newQueue, openReceiver, openSender,
  receive, send, settle, sleep, uuids,
} from "./broker.js";

const { message: codec, types } = rhea;

const SHORT_LOCK = { LockDuration: "PT5S" };

async function filled(bodies, { settings, options } = {}) {
  const queue = await newQueue(settings);
  const connection = await connect();
  const sender = await openSender(connection, queue);
  for (const body of bodies) await send(sender, { body });
  return { connection, queue, receiver: await openReceiver(connection, queue, options) };
}

export const features = {
  "receive-and-delete": async () => {
    const { connection, queue, receiver } = await filled(["1", "2"], {
      options: { snd_settle_mode: 1, rcv_settle_mode: 0 },
    });
    const found = await receive(receiver, 2);
    assert.deepEqual(found.map(({ message }) => message.body), ["1", "2"]);
    assert.ok(found.every(({ delivery }) => delivery.remote_settled));
    const request = await manager(connection, queue);
    assert.equal((await request("peek-message", { "from-sequence-number": 0, "message-count": 1 })).status, 204);
  },

  complete: async () => {
    const { connection, queue, receiver } = await filled(["1"]);
    const [found] = await receive(receiver, 1);
    await settle(receiver, found, ACCEPTED);
    const request = await manager(connection, queue);
    assert.equal((await request("peek-message", { "from-sequence-number": 0, "message-count": 1 })).status, 204);
  },

  abandon: async () => {
    const { receiver } = await filled(["1"]);
    const [first] = await receive(receiver, 1);
    const modified = codec.modified({ delivery_failed: true, message_annotations: { tried: "once" } }).described();
    await settle(receiver, first, modified);
    const [second] = await receive(receiver, 1);
    assert.equal(second.message.delivery_count, 1);
    assert.equal(second.message.message_id, first.message.message_id);
    assert.equal(second.message.application_properties.tried, "once");
    await settle(receiver, second, codec.released().described());
    assert.equal((await receive(receiver, 1))[0].message.delivery_count, 1); // released is not abandoned
  },

  "dead-letter": async () => {
    const { connection, queue, receiver } = await filled(["1"]);
    const [found] = await receive(receiver, 1);
    const error = {
      condition: "com.microsoft:dead-letter",
      info: { DeadLetterReason: "bad", DeadLetterErrorDescription: "very bad" },
    };
    await settle(receiver, found, codec.rejected({ error }).described());
    await assertEmpty(receiver);
    const dead = await openReceiver(connection, `${queue}/$DeadLetterQueue`);
    const [letter] = await receive(dead, 1);
    assert.equal(letter.message.application_properties.DeadLetterReason, "bad");
    assert.equal(letter.message.application_properties.DeadLetterErrorDescription, "very bad");
    await settle(dead, letter, ACCEPTED);
    await assertEmpty(dead);
  },

  defer: async () => {
    const { connection, queue, receiver } = await filled(["1"]);
    const [found] = await receive(receiver, 1);
    assert.equal(found.message.delivery_count ?? 0, 0);
    const number = found.message.message_annotations["x-opt-sequence-number"];
    await settle(receiver, found, codec.modified({ undeliverable_here: true }).described());
    await assertEmpty(receiver);
    const request = await manager(connection, queue);
    const wanted = { "sequence-numbers": longs(number), "receiver-settle-mode": types.wrap_uint(1) };
    const { body } = await request("receive-by-sequence-number", wanted);
    const [{ message, "lock-token": token }] = body.messages;
    assert.equal(decode(message).body, "1");
    assert.equal(decode(message).delivery_count, 1); // to defer it was a delivery
    await request("update-disposition", { "disposition-status": "completed", "lock-tokens": uuids(token) });
    const again = () => request("receive-by-sequence-number", wanted);
    assert.equal(await conditionOf(again), "com.microsoft:message-not-found");
  },

  "renew-lock": async () => {
    const { connection, queue, receiver } = await filled(["1"], { settings: SHORT_LOCK });
    const [found] = await receive(receiver, 1);
    const firstEnd = found.message.message_annotations["x-opt-locked-until"];
    const request = await manager(connection, queue);
    await sleep(2000);
    const { body } = await request("renew-lock", { "lock-tokens": uuids(lockToken(found.delivery.tag)) });
    assert.ok(body.expirations[0] - firstEnd >= 1900);
    await sleep(firstEnd - Date.now() + 300);
    await settle(receiver, found, ACCEPTED);
  },

  "lock-lost": async () => {
    const { receiver } = await filled(["1"], { settings: SHORT_LOCK });
    const [found] = await receive(receiver, 1);
    await sleep(found.message.message_annotations["x-opt-locked-until"] - Date.now() + 300);
    assert.equal(await conditionOf(() => settle(receiver, found, ACCEPTED)), "com.microsoft:message-lock-lost");
    assert.equal((await receive(receiver, 1))[0].message.delivery_count, 1);
  },

  peek: async () => {
    const { connection, queue, receiver } = await filled(["1", "2", "3"]);
    const request = await manager(connection, queue);
    const peek = async (from, count) => {
      const { body } = await request("peek-message", { "from-sequence-number": from, "message-count": count });
      return body.messages.map(({ message }) => decode(message).body);
    };
    assert.deepEqual(await peek(0, 2), ["1", "2"]);
    assert.deepEqual(await peek(3, 10), ["3"]);
    assert.equal((await receive(receiver, 3))[0].message.delivery_count ?? 0, 0);
  },

  purge: async () => {
    const { connection, queue, receiver } = await filled(["1", "2", "3"]);
    const request = await manager(connection, queue);
    const all = { "message-count": 100, "enqueued-time-utc": new Date(Date.now() + 60_000) };
    assert.equal((await request("batch-delete-messages", all)).body["message-count"], 3);
    await assertEmpty(receiver);
  },

  push: async () => {
    const { connection, queue } = await filled(Array.from({ length: 20 }, (_, index) => index));
    const pump = await openReceiver(connection, queue, { autosettle: true, rcv_settle_mode: 0 });
    const seen = new Set();
    let running = 0;
    let most = 0;
    await new Promise((done) => {
      pump.on("message", async ({ message, delivery }) => {
        most = Math.max(most, ++running);
        await sleep(50);
        running--;
        delivery.accept();
        pump.add_credit(1);
        if (seen.add(message.body).size === 20) done();
      });
      pump.add_credit(5);
    });
    assert.equal(most, 5);
    pump.close();
    await assertEmpty(await openReceiver(connection, queue));
  },
};
