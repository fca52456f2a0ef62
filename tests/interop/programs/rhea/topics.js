import assert from "node:assert/strict";
import {
  ACCEPTED, assertEmpty, conditionOf, connect, manager, newSubscription, newTopic, openReceiver, openSender, receive, send,
  settle,
} from "./broker.js";

const SQL_FILTER = 0x1370000006;
const CORRELATION_FILTER = 0x1370000009;

async function opened(...names) {
  const topic = await newTopic();
  const connection = await connect();
  const subscriptions = [];
  for (const name of names) subscriptions.push(await newSubscription(topic, name));
  return { connection, sender: await openSender(connection, topic), subscriptions };
}

async function rulesOf(request) {
  const answer = await request("enumerate-rules", { top: 100, skip: 0 });
  return (answer.body.rules ?? []).map(({ "rule-description": rule }) => rule);
}

export const features = {
  subscriptions: async () => {
    const { connection, sender, subscriptions } = await opened("first", "second");
    for (const body of ["1", "2"]) await send(sender, { body });
    for (const subscription of subscriptions) {
      const receiver = await openReceiver(connection, subscription);
      const found = await receive(receiver, 2);
      assert.deepEqual(found.map(({ message }) => message.body), ["1", "2"]);
      for (const one of found) await settle(receiver, one, ACCEPTED);
      await assertEmpty(receiver);
    }
  },

  rules: async () => {
    const { connection, sender, subscriptions: [bySql, byCorrelation] } = await opened("sql", "correlation");
    const descriptions = {
      [bySql]: {
        "sql-filter": { expression: "amount > 100 AND sys.Label = 'order'" },
        "sql-rule-action": { expression: "SET size = 'large'; SET sys.Label = 'big ' + sys.Label" },
      },
      [byCorrelation]: { "correlation-filter": { label: "order", properties: { colour: "red" } } },
    };
    for (const [subscription, description] of Object.entries(descriptions)) {
      const request = await manager(connection, subscription);
      await request("remove-rule", { "rule-name": "$Default" });
      await request("add-rule", { "rule-name": "chosen", "rule-description": description });
    }
    const sent = [["1", "order", 101, "blue"], ["2", "order", 100, "red"], ["3", "offer", 500, "red"]];
    for (const [body, subject, amount, colour] of sent) {
      await send(sender, { body, subject, application_properties: { amount, colour } });
    }
    const large = await openReceiver(connection, bySql);
    const [{ message }] = await receive(large, 1);
    assert.equal(message.body, "1");
    assert.equal(message.subject, "big order");
    assert.equal(message.application_properties.size, "large");
    await assertEmpty(large);
    const red = await openReceiver(connection, byCorrelation);
    assert.equal((await receive(red, 1))[0].message.body, "2");
    await assertEmpty(red);
  },

  "rule-manager": async () => {
    const { connection, subscriptions: [only] } = await opened("only");
    const request = await manager(connection, only);
    await request("add-rule", {
      "rule-name": "sql", "rule-description": { "sql-filter": { expression: "amount > 100" } },
    });
    await request("add-rule", {
      "rule-name": "correlation", "rule-description": { "correlation-filter": { label: "order" } },
    });
    const found = {};
    for (const rule of await rulesOf(request)) found[rule.value[2].value] = rule.value[0];
    assert.deepEqual(Object.keys(found).sort(), ["$Default", "correlation", "sql"]);
    assert.equal(Number(found.sql.descriptor.value), SQL_FILTER);
    assert.equal(found.sql.value[0].value, "amount > 100");
    assert.equal(Number(found.correlation.descriptor.value), CORRELATION_FILTER);
    await request("remove-rule", { "rule-name": "sql" });
    assert.equal(await conditionOf(() => request("remove-rule", { "rule-name": "sql" })), "amqp:not-found");
    assert.equal((await rulesOf(request)).length, 2);
    return "It has no rule manager: the program makes requests to the subscription's `$management` itself.";
  },
};
