import assert from "node:assert/strict";
import rhea from "rhea";
import {
  ACCEPTED, assertEmpty, conditionOf, connect, encode, env, longs, manager, newQueue, openReceiver, openSender, receive,
  send, settle,
} from "./broker.js";

const { message: codec, types } = rhea;

const FOOTER = { sum: 7, "x-opt-footer": "footer" };
const BATCH_FORMAT = 0x80013700;

async function opened(settings) {
  const queue = await newQueue(settings);
  const connection = await connect();
  return {
    connection, queue, sender: await openSender(connection, queue), receiver: await openReceiver(connection, queue),
  };
}

export const features = {
  send: async () => {
    const { sender, receiver } = await opened();
    await send(sender, { message_id: "order-1", body: "hello" });
    const [{ message }] = await receive(receiver, 1);
    assert.equal(message.body, "hello");
    assert.equal(message.message_id, "order-1");
  },

  properties: async () => {
    const { sender, receiver } = await opened();
    const now = new Date("2026-02-03T04:05:06.789Z");
    const fields = {
      durable: true, priority: 7, message_id: "id", user_id: Buffer.from("user"), to: "to", subject: "subject",
      reply_to: "reply", correlation_id: "correlation", content_type: "text/plain", content_encoding: "gzip",
      creation_time: now, group_id: "group", group_sequence: 3, reply_to_group_id: "reply-group",
    };
    // A type of AMQP that JavaScript has no word for is told by a wrapper, and comes back as a plain value.
    const typed = {
      null: null, boolean: true, string: "häßlich 🐇", binary: Buffer.from([0, 255]), date: now,
      ubyte: types.wrap_ubyte(255), byte: types.wrap_byte(-128), ushort: types.wrap_ushort(65535),
      short: types.wrap_short(-32768), uint: types.wrap_uint(2 ** 32 - 1), int: types.wrap_int(-(2 ** 31)),
      ulong: types.wrap_ulong(2 ** 40), long: types.wrap_long(-(2 ** 40)), float: types.wrap_float(0.5),
      double: types.wrap_double(0.1), char: types.wrap_char("ß".codePointAt(0)), symbol: types.wrap_symbol("symbol"),
      uuid: types.wrap_uuid(Buffer.alloc(16, 7)),
    };
    const plain = Object.fromEntries(
      Object.entries(typed).map(([name, value]) => [name, value?.type ? value.value : value]),
    );
    const bodies = ["text", 7, null, { a: [1, 2.5, "x"], b: { c: true } }, Buffer.from("binary")];
    const sections = [codec.data_sections([Buffer.from("1"), Buffer.from("2")]), codec.sequence_section(["a", 1])];
    for (const body of [...bodies, ...sections]) {
      await send(sender, {
        ...fields, application_properties: typed, message_annotations: { "x-opt-own": "kept" }, footer: FOOTER, body,
      });
    }
    const found = await receive(receiver, bodies.length + sections.length);
    for (const [index, { message }] of found.entries()) {
      for (const [name, value] of Object.entries(fields)) assert.deepEqual(message[name], value, name);
      assert.deepEqual(message.application_properties, plain);
      assert.equal(message.message_annotations["x-opt-own"], "kept");
      assert.deepEqual(message.footer, FOOTER);
      assert.equal(message.delivery_count ?? 0, 0);
      assert.ok(message.message_annotations["x-opt-enqueued-time"] instanceof Date);
      assert.ok(message.message_annotations["x-opt-locked-until"] > message.message_annotations["x-opt-enqueued-time"]);
      if (index < bodies.length) assert.deepEqual(message.body, bodies[index]);
    }
    assert.equal(Buffer.concat(found.at(-2).message.body.content).toString(), "12");
    assert.deepEqual(found.at(-1).message.body.content, ["a", 1]);
  },

  "send-footers": async () => {
    const connection = await connect();
    for (const queue of env.PEEKLOCK_FOOTERS_TO.split(",")) {
      await send(await openSender(connection, queue), { body: "rhea", footer: FOOTER });
    }
  },

  "receive-footers": async () => {
    const receiver = await openReceiver(await connect(), env.PEEKLOCK_FOOTERS_OF);
    for (const { message } of await receive(receiver, env.PEEKLOCK_FOOTERS_TO.split(",").length)) {
      assert.deepEqual(message.footer, FOOTER, String(message.body));
    }
  },

  batch: async () => {
    const { sender, receiver } = await opened();
    const members = Array.from({ length: 100 }, (_, body) => encode({ message_id: `${body}`, body }));
    await send(sender, encode({ body: codec.data_sections(members) }), BATCH_FORMAT);
    const found = await receive(receiver, 100);
    assert.deepEqual(found.map(({ message }) => message.body), members.map((_, index) => index));
    return "It has no batch object: the program makes a transfer of format 0x80013700 itself.";
  },

  large: async () => {
    const { sender, receiver } = await opened();
    const body = Buffer.alloc(200 * 1024, "peeklock ");
    await send(sender, { body });
    const [found] = await receive(receiver, 1);
    assert.ok(body.equals(found.message.body));
    await settle(receiver, found, ACCEPTED);
    const refused = await conditionOf(() => send(sender, { body: Buffer.alloc(300 * 1024) }));
    assert.equal(refused, "amqp:link:message-size-exceeded");
    await send(sender, { body: "the sender goes on" });
    assert.equal((await receive(receiver, 1))[0].message.body, "the sender goes on");
  },

  schedule: async () => {
    const { connection, queue, sender, receiver } = await opened();
    const request = await manager(connection, queue);
    const due = new Date(Date.now() + 1500);
    const message_annotations = { "x-opt-scheduled-enqueue-time": due };
    const scheduled = await request("schedule-message", {
      messages: [{ "message-id": "2", message: encode({ message_id: "2", body: "cancelled", message_annotations }) }],
    });
    const [number] = scheduled.body["sequence-numbers"];
    await send(sender, { body: "kept", message_annotations });
    await request("cancel-scheduled-message", { "sequence-numbers": longs(number) });
    const again = () => request("cancel-scheduled-message", { "sequence-numbers": longs(number) });
    assert.equal(await conditionOf(again), "com.microsoft:message-not-found");
    const [{ message }] = await receive(receiver, 1);
    assert.ok(Date.now() >= due);
    assert.equal(message.body, "kept");
    await assertEmpty(receiver);
  },

  "time-to-live": async () => {
    const { connection, queue, sender, receiver } = await opened({ DeadLetteringOnMessageExpiration: true });
    await send(sender, { body: "late", ttl: 500 });
    const [{ message }] = await receive(await openReceiver(connection, `${queue}/$DeadLetterQueue`), 1);
    assert.equal(message.body, "late");
    assert.equal(message.application_properties.DeadLetterReason, "TTLExpiredException");
    await assertEmpty(receiver);
  },

  duplicates: async () => {
    const { sender, receiver } = await opened({ RequiresDuplicateDetection: true });
    for (const [message_id, body] of [["1", "first"], ["1", "second"], ["2", "third"]]) {
      await send(sender, { message_id, body });
    }
    assert.deepEqual((await receive(receiver, 2)).map(({ message }) => message.body), ["first", "third"]);
    await assertEmpty(receiver);
  },
};
