// Sends, receives and completes with @azure/service-bus: worker.mjs BUILD CONNECTION-STRING QUEUE
//
// Prints a JSON line for each action. The line `quiet` on standard input ends the sending; its end ends all.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [build, connectionString, queue] = process.argv.slice(2);
const { ServiceBusClient } = createRequire(`${build}/`)("@azure/service-bus");

const RETRY_MS = 100;
const BATCH = 20;
let sends = true;
let runs = true;
let count = 0;

const say = (action, id, number) => console.log(JSON.stringify({ action, id, number }));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Does a step with a new client again and again: each ends with the first failure.
async function again(step) {
  while (runs) {
    const retryOptions = { maxRetries: 0, timeoutInMs: 10_000 };
    const client = new ServiceBusClient(connectionString, { retryOptions });
    try {
      await step(client);
    } catch {
      // Meant: nodes and servers are killed.
    }
    await Promise.race([client.close().catch(() => {}), sleep(1000)]);
    await sleep(RETRY_MS);
  }
}

async function send(client) {
  const sender = client.createSender(queue);
  while (sends && runs) {
    const id = `javascript-${++count}`;
    try {
      await sender.sendMessages({ body: id, messageId: id });
    } catch (error) {
      say("send_unknown", id);
      throw error;
    }
    say("sent", id);
  }
}

async function work(client) {
  const receiver = client.createReceiver(queue);
  while (runs) {
    for (const message of await receiver.receiveMessages(BATCH, { maxWaitTimeInMs: 1000 })) {
      const number = message.sequenceNumber.toNumber();
      say("received", message.messageId, number);
      await receiver.completeMessage(message);
      say("completed", message.messageId, number);
    }
  }
}

createInterface({ input: process.stdin })
  .on("line", () => (sends = false))
  .on("close", () => (runs = false));

await Promise.all([again(send), again(work)]);
process.exit(0);
