import assert from "node:assert/strict";
import {
  admin, assertPassesOn, codeOf, connect, connectionString, newName, newQueue, address as namespace, receive,
} from "./broker.js";

const EXISTS = "MessageEntityAlreadyExistsError";
const NOT_FOUND = "MessageEntityNotFoundError";

const SEND_RULE = {
  claimType: "SharedAccessKey",
  keyName: "sender",
  accessRights: ["Send"],
  primaryKey: "cHJpbWFyeSBrZXkgb2YgYSBydWxlIGluIGEgdGVzdCE=",
  secondaryKey: "c2Vjb25kYXJ5IGtleSBvZiBhIHJ1bGUgaW4gYSB0ZXM=",
};

// Makes sure that an answer has all that was asked for.
function assertHas(answer, settings) {
  for (const [name, value] of Object.entries(settings)) assert.deepEqual(answer[name], value, name);
}

// The forms in which an address comes back.
const address = (queue) => `sb://${namespace}/${queue}`;

async function all(pages) {
  const found = [];
  for await (const one of pages) found.push(one);
  return found;
}

export const features = {
  "admin-queues": async () => {
    const target = await newQueue();
    const settings = {
      lockDuration: "PT30S",
      maxSizeInMegabytes: 2048,
      requiresDuplicateDetection: true,
      requiresSession: true,
      defaultMessageTimeToLive: "P2DT3H",
      deadLetteringOnMessageExpiration: true,
      duplicateDetectionHistoryTimeWindow: "PT5M",
      maxDeliveryCount: 7,
      enableBatchedOperations: false,
      status: "ReceiveDisabled",
      userMetadata: "häßlich <&>",
      autoDeleteOnIdle: "PT10M",
    };
    const name = newName("queue");
    assertHas(await admin.createQueue(name, settings), { name, ...settings });
    assert.equal(await codeOf(() => admin.createQueue(name)), EXISTS);
    const queue = await admin.getQueue(name);
    assertHas(queue, settings);
    assert.equal(queue.availabilityStatus, "Available");

    const changes = {
      lockDuration: "PT1M", maxDeliveryCount: 3, status: "Active", userMetadata: "changed",
      defaultMessageTimeToLive: "PT1H", enableBatchedOperations: true, deadLetteringOnMessageExpiration: false,
      duplicateDetectionHistoryTimeWindow: "PT1M", autoDeleteOnIdle: "PT5M", maxSizeInMegabytes: 1024,
    };
    assertHas(await admin.updateQueue({ ...queue, ...changes }), { ...settings, ...changes });
    assertHas(await admin.getQueue(name), { ...settings, ...changes });
    await assert.rejects(admin.updateQueue({ ...queue, requiresSession: false }), { statusCode: 400 });
    await assert.rejects(admin.createQueue(newName("queue"), { lockDuration: "PT1H" }), { statusCode: 400 });

    const forwarding = await newQueue({ forwardTo: target, forwardDeadLetteredMessagesTo: target, enablePartitioning: true });
    assertHas(await admin.getQueue(forwarding), {
      forwardTo: address(target), forwardDeadLetteredMessagesTo: address(target), enablePartitioning: true,
    });
    assert.ok((await all(admin.listQueues())).some((one) => one.name === name));
    assert.equal(await admin.queueExists(name), true);
    await admin.deleteQueue(name);
    assert.equal(await admin.queueExists(name), false);
    assert.equal(await codeOf(() => admin.getQueue(name)), NOT_FOUND);
    assert.equal(await codeOf(() => admin.deleteQueue(name)), NOT_FOUND);
    assert.equal(await codeOf(() => admin.updateQueue(queue)), NOT_FOUND);

    const nested = `${newName("queue")}/with/slashes`;
    assert.equal((await admin.createQueue(nested)).name, nested);
    assert.equal((await admin.getQueue(nested)).name, nested);
    await admin.deleteQueue(nested);
  },

  "admin-topics": async () => {
    const settings = {
      maxSizeInMegabytes: 2048,
      requiresDuplicateDetection: true,
      defaultMessageTimeToLive: "P2DT3H",
      duplicateDetectionHistoryTimeWindow: "PT5M",
      enableBatchedOperations: false,
      status: "SendDisabled",
      userMetadata: "häßlich <&>",
      autoDeleteOnIdle: "PT10M",
      supportOrdering: true,
    };
    const name = newName("topic");
    assertHas(await admin.createTopic(name, settings), { name, ...settings });
    assert.equal(await codeOf(() => admin.createTopic(name)), EXISTS);
    assert.equal(await codeOf(() => admin.createQueue(name)), EXISTS);
    const topic = await admin.getTopic(name);
    assertHas(topic, { ...settings, enablePartitioning: false, availabilityStatus: "Available" });
    const changes = {
      status: "Active", userMetadata: "changed", defaultMessageTimeToLive: "PT1H", autoDeleteOnIdle: "PT5M",
      enableBatchedOperations: true, duplicateDetectionHistoryTimeWindow: "PT1M",
    };
    assertHas(await admin.updateTopic({ ...topic, ...changes }), { ...settings, ...changes });
    assertHas(await admin.getTopic(name), { ...settings, ...changes });
    await assert.rejects(admin.updateTopic({ ...topic, requiresDuplicateDetection: false }), { statusCode: 400 });
    assert.ok((await all(admin.listTopics())).some((one) => one.name === name));
    assert.equal(await admin.topicExists(name), true);
    await admin.deleteTopic(name);
    assert.equal(await admin.topicExists(name), false);
    assert.equal(await codeOf(() => admin.getTopic(name)), NOT_FOUND);
    assert.equal(await codeOf(() => admin.deleteTopic(name)), NOT_FOUND);
    assert.equal(await codeOf(() => admin.updateTopic(topic)), NOT_FOUND);
  },

  "admin-subscriptions": async () => {
    const target = await newQueue();
    const { name: topic } = await admin.createTopic(newName("topic"));
    const settings = {
      lockDuration: "PT30S",
      requiresSession: true,
      defaultMessageTimeToLive: "P2DT3H",
      deadLetteringOnMessageExpiration: true,
      deadLetteringOnFilterEvaluationExceptions: false,
      maxDeliveryCount: 7,
      enableBatchedOperations: false,
      status: "ReceiveDisabled",
      userMetadata: "häßlich <&>",
      autoDeleteOnIdle: "PT10M",
    };
    const made = await admin.createSubscription(topic, "first", {
      ...settings, defaultRuleOptions: { name: "red", filter: { subject: "red" } },
    });
    assertHas(made, { topicName: topic, subscriptionName: "first", ...settings });
    assert.deepEqual((await all(admin.listRules(topic, "first"))).map((rule) => rule.name), ["red"]);
    assert.equal(await codeOf(() => admin.createSubscription(topic, "first")), EXISTS);
    const subscription = await admin.getSubscription(topic, "first");
    assertHas(subscription, { topicName: topic, subscriptionName: "first", ...settings });
    const changes = {
      lockDuration: "PT1M", maxDeliveryCount: 3, status: "Active", userMetadata: "changed", autoDeleteOnIdle: "PT5M",
      defaultMessageTimeToLive: "PT1H", deadLetteringOnFilterEvaluationExceptions: true,
    };
    assertHas(await admin.updateSubscription({ ...subscription, ...changes }), { ...settings, ...changes });
    await assert.rejects(admin.updateSubscription({ ...subscription, requiresSession: false }), { statusCode: 400 });
    await admin.createSubscription(topic, "second", { forwardTo: target, forwardDeadLetteredMessagesTo: target });
    assertHas(await admin.getSubscription(topic, "second"), {
      forwardTo: address(target), forwardDeadLetteredMessagesTo: address(target),
    });
    const names = (await all(admin.listSubscriptions(topic))).map((one) => one.subscriptionName);
    assert.deepEqual(names, ["first", "second"]);
    assert.equal(await admin.subscriptionExists(topic, "first"), true);
    await admin.deleteSubscription(topic, "first");
    assert.equal(await admin.subscriptionExists(topic, "first"), false);
    assert.equal(await codeOf(() => admin.getSubscription(topic, "first")), NOT_FOUND);
    assert.equal(await codeOf(() => admin.deleteSubscription(topic, "first")), NOT_FOUND);
    assert.equal(await codeOf(() => admin.updateSubscription(subscription)), NOT_FOUND);
    assert.equal(await codeOf(() => admin.createSubscription(newName("missing"), "first")), NOT_FOUND);
  },

  "admin-rules": async () => {
    const { name: topic } = await admin.createTopic(newName("topic"));
    await admin.createSubscription(topic, "only");
    const date = new Date("2026-02-03T04:05:06.789Z");
    const filters = {
      sql: { sqlExpression: "a = @text AND b > @number AND c = @flag", sqlParameters: { "@text": "t", "@number": 1.5, "@flag": true } },
      correlation: {
        correlationId: "1", messageId: "2", to: "3", replyTo: "4", subject: "5 <&>", sessionId: "6", replyToSessionId: "7",
        contentType: "8", applicationProperties: { text: "t", integer: 7, float: 1.5, flag: false, date },
      },
      true: { sqlExpression: "1=1" },
      false: { sqlExpression: "1=0" },
    };
    const action = { sqlExpression: "SET size = @size; REMOVE x", sqlParameters: { "@size": "large" } };
    for (const [name, filter] of Object.entries(filters)) {
      const made = await admin.createRule(topic, "only", name, filter, action);
      const found = await admin.getRule(topic, "only", name);
      for (const rule of [made, found]) {
        assert.equal(rule.name, name);
        assertHas(rule.filter, filter);
        assertHas(rule.action, action);
      }
    }
    assert.equal(await codeOf(() => admin.createRule(topic, "only", "sql", filters.true)), EXISTS);
    const rule = await admin.getRule(topic, "only", "sql");
    const changed = await admin.updateRule(topic, "only", { ...rule, filter: { subject: "red" }, action: {} });
    assert.equal(changed.filter.subject, "red");
    assert.equal(changed.action.sqlExpression, undefined);
    const broken = { sqlExpression: "a = = b" };
    await assert.rejects(admin.createRule(topic, "only", "broken", broken), { statusCode: 400 });
    const names = (await all(admin.listRules(topic, "only"))).map((one) => one.name);
    assert.deepEqual(names, ["$Default", "correlation", "false", "sql", "true"]);
    assert.equal((await admin.getRule(topic, "only", "$Default")).filter.sqlExpression, "1=1");
    assert.equal(await admin.ruleExists(topic, "only", "sql"), true);
    await admin.deleteRule(topic, "only", "sql");
    assert.equal(await admin.ruleExists(topic, "only", "sql"), false);
    assert.equal(await codeOf(() => admin.getRule(topic, "only", "sql")), NOT_FOUND);
    assert.equal(await codeOf(() => admin.deleteRule(topic, "only", "sql")), NOT_FOUND);
    assert.equal(await codeOf(() => admin.updateRule(topic, "only", rule)), NOT_FOUND);
  },

  "admin-runtime": async () => {
    const began = Date.now();
    const client = connect();
    const later = new Date(began + 600_000);
    const queue = await newQueue();
    const fresh = await admin.getQueueRuntimeProperties(queue);
    assertHas(fresh, { totalMessageCount: 0, activeMessageCount: 0, sizeInBytes: 0 });
    const sender = client.createSender(queue);
    await sender.sendMessages([{ body: "1" }, { body: "2" }, { body: "3" }]);
    await sender.scheduleMessages({ body: "4" }, later);
    const receiver = client.createReceiver(queue);
    await receiver.deadLetterMessage((await receive(receiver, 1))[0]);
    const figures = await admin.getQueueRuntimeProperties(queue);
    assertHas(figures, {
      name: queue, totalMessageCount: 4, activeMessageCount: 2, scheduledMessageCount: 1, deadLetterMessageCount: 1,
      transferMessageCount: 0, transferDeadLetterMessageCount: 0,
    });
    assert.ok(figures.sizeInBytes > 4);
    for (const time of [figures.createdAt, figures.modifiedAt, figures.accessedAt]) {
      assert.ok(time >= began - 1000 && time <= Date.now() + 1000, time);
    }

    const { name: topic } = await admin.createTopic(newName("topic"));
    await admin.createSubscription(topic, "only");
    const topicSender = client.createSender(topic);
    await topicSender.sendMessages([{ body: "1" }, { body: "2" }]);
    await topicSender.scheduleMessages({ body: "3" }, later);
    const copies = client.createReceiver(topic, "only");
    await copies.deadLetterMessage((await receive(copies, 1))[0]);
    const ofTopic = await admin.getTopicRuntimeProperties(topic);
    assertHas(ofTopic, { name: topic, subscriptionCount: 1, scheduledMessageCount: 1 });
    assert.ok(ofTopic.sizeInBytes > 0);
    assert.ok(ofTopic.createdAt >= began - 1000);
    const ofSubscription = await admin.getSubscriptionRuntimeProperties(topic, "only");
    assertHas(ofSubscription, {
      topicName: topic, subscriptionName: "only", totalMessageCount: 2, activeMessageCount: 1, deadLetterMessageCount: 1,
      transferMessageCount: 0, transferDeadLetterMessageCount: 0,
    });
    assert.ok(ofSubscription.accessedAt >= began - 1000);
    const listed = await all(admin.listQueuesRuntimeProperties());
    assertHas(listed.find((one) => one.name === queue), { totalMessageCount: 4 });
    assert.equal((await all(admin.listTopicsRuntimeProperties())).find((one) => one.name === topic).subscriptionCount, 1);
    assert.equal((await all(admin.listSubscriptionsRuntimeProperties(topic)))[0].activeMessageCount, 1);
  },

  "admin-paging": async () => {
    const prefix = newName("page");
    const names = Array.from({ length: 250 }, (_, index) => `${prefix}-${String(index).padStart(3, "0")}`);
    for (let start = 0; start < names.length; start += 25) {
      await Promise.all(names.slice(start, start + 25).map((name) => admin.createQueue(name)));
    }
    const listed = (await all(admin.listQueues())).map((queue) => queue.name);
    assert.equal(new Set(listed).size, listed.length);
    assert.deepEqual(listed.filter((name) => name.startsWith(prefix)), names);
    const pages = [];
    for await (const page of admin.listQueues().byPage({ maxPageSize: 60 })) pages.push(...page.map((queue) => queue.name));
    assert.deepEqual(pages, listed);
    for (let start = 0; start < names.length; start += 25) {
      await Promise.all(names.slice(start, start + 25).map((name) => admin.deleteQueue(name)));
    }
  },

  "admin-authorization": async () => {
    const queue = await newQueue({ authorizationRules: [SEND_RULE] });
    assert.deepEqual((await admin.getQueue(queue)).authorizationRules, [SEND_RULE]);
    for (const key of [SEND_RULE.primaryKey, SEND_RULE.secondaryKey]) {
      const client = connect(connectionString(SEND_RULE.keyName, key), { retryOptions: { maxRetries: 0 } });
      await client.createSender(queue).sendMessages({ body: "hello" });
      assert.equal(await codeOf(() => client.createReceiver(queue).receiveMessages(1)), "UnauthorizedAccess");
    }
    const receiver = connect().createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.equal((await receive(receiver, 2)).length, 2);
    const properties = await admin.getQueue(queue);
    properties.authorizationRules[0].accessRights = ["Manage", "Send", "Listen"];
    await admin.updateQueue(properties);
    await assertPassesOn(connect(connectionString(SEND_RULE.keyName, SEND_RULE.primaryKey)), queue);
  },

  "admin-namespace": async () => {
    const namespace = await admin.getNamespaceProperties();
    assert.ok(namespace.name);
    assert.equal(namespace.messagingSku, "Standard");
    assert.ok(namespace.createdAt instanceof Date && namespace.modifiedAt >= namespace.createdAt);
  },
};
