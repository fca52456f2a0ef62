import assert from "node:assert/strict";
import {
  ACCEPTED, assertEmpty, conditionOf, connect, manager, newQueue, openReceiver, openSender, receive, send, settle, sleep,
} from "./broker.js";

const FILTER = "com.microsoft:session-filter";

async function filled(counts, settings = {}) {
  const queue = await newQueue({ RequiresSession: true, ...settings });
  const connection = await connect();
  const sender = await openSender(connection, queue);
  for (const [group_id, count] of Object.entries(counts)) {
    for (let body = 0; body < count; body++) await send(sender, { group_id, body });
  }
  return { connection, queue, sender };
}

// A receiver of a named session, or of the next that has messages by null.
function accept(connection, queue, sessionId) {
  return openReceiver(connection, { address: queue, filter: { [FILTER]: sessionId } });
}

const sessionOf = (receiver) => receiver.source.filter[FILTER];

export const features = {
  session: async () => {
    const { connection, queue } = await filled({ red: 3, blue: 3 });
    const red = await accept(connection, queue, "red");
    assert.equal(sessionOf(red), "red");
    const taken = () => connect().then((other) => accept(other, queue, "red"));
    assert.equal(await conditionOf(taken), "com.microsoft:session-cannot-be-locked");
    const found = await receive(red, 3);
    assert.deepEqual(found.map(({ message }) => [message.group_id, message.body]), [["red", 0], ["red", 1], ["red", 2]]);
    for (const one of found) await settle(red, one, ACCEPTED);
    await assertEmpty(red);
    assert.equal(await conditionOf(() => openReceiver(connection, queue)), "amqp:not-allowed");
  },

  "next-session": async () => {
    const { connection, queue, sender } = await filled({ red: 1, blue: 1 });
    const first = await accept(connection, queue, null);
    const second = await accept(connection, queue, null);
    assert.deepEqual([sessionOf(first), sessionOf(second)], ["red", "blue"]);
    const waiting = accept(connection, queue, null);
    await sleep(100);
    await send(sender, { group_id: "green", body: 0 });
    assert.equal(sessionOf(await waiting), "green");
  },

  "session-state": async () => {
    const { connection, queue } = await filled({ red: 1 });
    const holder = await accept(connection, queue, "red");
    const request = await manager(connection, queue);
    const red = { "session-id": "red" };
    const state = async () => (await request("get-session-state", red)).body["session-state"];
    assert.equal(await state(), null);
    await request("set-session-state", { ...red, "session-state": Buffer.from("step 2") });
    assert.equal((await state()).toString(), "step 2");
    holder.close();
    await accept(connection, queue, "red");
    assert.equal((await state()).toString(), "step 2");
    await request("set-session-state", { ...red, "session-state": null });
    assert.equal(await state(), null);
  },

  "renew-session": async () => {
    const { connection, queue } = await filled({ red: 1 }, { LockDuration: "PT5S" });
    const receiver = await accept(connection, queue, "red");
    const request = await manager(connection, queue);
    const [found] = await receive(receiver, 1);
    const firstEnd = Date.now() + 5000;
    await sleep(2000);
    const { body } = await request("renew-session-lock", { "session-id": "red" });
    assert.ok(body.expiration - firstEnd >= 1500);
    await sleep(firstEnd - Date.now() + 300);
    await settle(receiver, found, ACCEPTED);
  },
};
