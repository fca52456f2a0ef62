import assert from "node:assert/strict";
import { admin, assertEmpty, codeOf, connect, newName, receive } from "./broker.js";

async function newTopic(subscriptions, options = {}) {
  const { name } = await admin.createTopic(newName("topic"), options);
  for (const subscription of subscriptions) await admin.createSubscription(name, subscription);
  return name;
}

export const features = {
  subscriptions: async () => {
    const topic = await newTopic(["first", "second"]);
    const client = connect();
    await client.createSender(topic).sendMessages([{ body: "1" }, { body: "2" }]);
    for (const subscription of ["first", "second"]) {
      const receiver = client.createReceiver(topic, subscription);
      const messages = await receive(receiver, 2);
      assert.deepEqual(messages.map((message) => message.body), ["1", "2"]);
      await receiver.completeMessage(messages[0]);
      await receiver.deadLetterMessage(messages[1]);
      await assertEmpty(receiver);
      const dead = client.createReceiver(topic, subscription, { subQueueType: "deadLetter" });
      assert.equal((await receive(dead, 1))[0].body, "2");
    }
  },

  rules: async () => {
    const topic = await newTopic(["sql", "correlation"]);
    for (const subscription of ["sql", "correlation"]) await admin.deleteRule(topic, subscription, "$Default");
    await admin.createRule(
      topic, "sql", "large",
      { sqlExpression: "amount > @least AND sys.Label = 'order'", sqlParameters: { "@least": 100 } },
      { sqlExpression: "SET size = 'large'; SET sys.Label = 'big ' + sys.Label; REMOVE internal" },
    );
    await admin.createRule(topic, "correlation", "red", { subject: "order", applicationProperties: { colour: "red" } });
    const client = connect();
    await client.createSender(topic).sendMessages([
      { body: "1", subject: "order", applicationProperties: { amount: 101, colour: "blue", internal: true } },
      { body: "2", subject: "order", applicationProperties: { amount: 100, colour: "red" } },
      { body: "3", subject: "offer", applicationProperties: { amount: 500, colour: "red" } },
    ]);
    const bySql = client.createReceiver(topic, "sql");
    const [large] = await receive(bySql, 1);
    assert.equal(large.body, "1");
    assert.equal(large.subject, "big order");
    assert.deepEqual(large.applicationProperties, { amount: 101, colour: "blue", size: "large", RuleName: "large" });
    await assertEmpty(bySql);
    const byCorrelation = client.createReceiver(topic, "correlation");
    assert.equal((await receive(byCorrelation, 1))[0].body, "2");
    await assertEmpty(byCorrelation);
  },

  "rule-manager": async () => {
    const topic = await newTopic(["only"]);
    const client = connect();
    const rules = client.createRuleManager(topic, "only");
    await rules.createRule("sql", { sqlExpression: "amount > 100" }, { sqlExpression: "SET size = 'large'" });
    const properties = { colour: "red", count: 3, share: 0.5, fresh: true }; // each comes back in its type
    await rules.createRule("correlation", { subject: "order", applicationProperties: properties });
    assert.equal(await codeOf(() => rules.createRule("sql", { sqlExpression: "1=1" })), "MessagingEntityAlreadyExists");
    await rules.deleteRule("$Default");
    const listed = {};
    for await (const rule of rules.listRules()) listed[rule.name] = rule;
    assert.deepEqual(Object.keys(listed).sort(), ["correlation", "sql"]);
    assert.equal(listed.sql.filter.sqlExpression, "amount > 100");
    assert.equal(listed.sql.action.sqlExpression, "SET size = 'large'");
    assert.equal(listed.correlation.filter.subject, "order");
    assert.deepEqual({ ...listed.correlation.filter.applicationProperties }, properties);
    await rules.deleteRule("sql");
    assert.equal(await codeOf(() => rules.deleteRule("sql")), "MessagingEntityNotFound");
    await client.createSender(topic).sendMessages([
      { body: "1", applicationProperties: { amount: 101 } },
      { body: "2", subject: "order", applicationProperties: { Colour: "red", COUNT: 3, share: 0.5, fresh: true } },
    ]);
    const receiver = client.createReceiver(topic, "only");
    assert.equal((await receive(receiver, 1))[0].body, "2");
    await assertEmpty(receiver);
  },
};
