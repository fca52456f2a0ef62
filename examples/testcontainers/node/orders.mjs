// Send and receive one message, with a broker in a container of its own, or the one of the environment.
import { ServiceBusClient } from "@azure/service-bus";
import { GenericContainer, Wait } from "testcontainers";

const config = JSON.stringify({
  UserConfig: { Namespaces: [{ Name: "sbemulatorns", Queues: [{ Name: "orders" }] }] },
});

// start
async function startBroker() {
  const broker = await new GenericContainer("peeklock")
    .withExposedPorts(5672, 5300)
    .withEnvironment({ CONFIG_JSON: config })
    .withWaitStrategy(Wait.forHttp("/health", 5300))
    .start();
  const connectionString =
    `Endpoint=sb://${broker.getHost()}:${broker.getMappedPort(5672)};` +
    "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;";
  return { connectionString, stop: () => broker.stop() };
}
// end

const given = process.env.SERVICEBUS_CONNECTION_STRING;
const { connectionString, stop } = given ? { connectionString: given, stop: () => {} } : await startBroker();
const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 10000 } });
try {
  await client.createSender("orders").sendMessages({ body: "hello" });
  const receiver = client.createReceiver("orders");
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 10000 });
  console.log("received:", message.body);
  await receiver.completeMessage(message);
} finally {
  await client.close();
  await stop();
}
