// Programs that send a message and receive it, in each language. `tests/interop` runs all but the one for .NET.
const PYTHON = `import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

client = ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"])
with client:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("a coffee, please"))
    with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
        for message in receiver:
            print(message)
            receiver.complete_message(message)
            break
`;

const DOTNET = `using Azure.Messaging.ServiceBus;

var text = Environment.GetEnvironmentVariable("SERVICEBUS_CONNECTION_STRING");
await using var client = new ServiceBusClient(text);

var sender = client.CreateSender("orders");
await sender.SendMessageAsync(new ServiceBusMessage("a coffee, please"));

var receiver = client.CreateReceiver("orders");
var message = await receiver.ReceiveMessageAsync(TimeSpan.FromSeconds(5));
Console.WriteLine(message.Body);
await receiver.CompleteMessageAsync(message);
`;

const JAVA = `import com.azure.messaging.servicebus.*;

public class Orders {
    public static void main(String[] args) {
        var builder = new ServiceBusClientBuilder()
            .connectionString(System.getenv("SERVICEBUS_CONNECTION_STRING"));

        try (var sender = builder.sender().queueName("orders").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("a coffee, please"));
        }
        try (var receiver = builder.receiver().queueName("orders").buildClient()) {
            for (var message : receiver.receiveMessages(1)) {
                System.out.println(message.getBody());
                receiver.complete(message);
            }
        }
    }
}
`;

const JAVASCRIPT = `import { ServiceBusClient } from "@azure/service-bus";

const client = new ServiceBusClient(process.env.SERVICEBUS_CONNECTION_STRING);

const sender = client.createSender("orders");
await sender.sendMessages({ body: "a coffee, please" });

const receiver = client.createReceiver("orders");
const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 });
console.log(message.body);
await receiver.completeMessage(message);
await client.close();
`;

const GO = `package main

import (
	"context"
	"fmt"
	"os"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	client, err := azservicebus.NewClientFromConnectionString(os.Getenv("SERVICEBUS_CONNECTION_STRING"), nil)
	check(err)
	defer client.Close(ctx)

	sender, err := client.NewSender("orders", nil)
	check(err)
	check(sender.SendMessage(ctx, &azservicebus.Message{Body: []byte("a coffee, please")}, nil))

	receiver, err := client.NewReceiverForQueue("orders", nil)
	check(err)
	messages, err := receiver.ReceiveMessages(ctx, 1, nil)
	check(err)
	fmt.Println(string(messages[0].Body))
	check(receiver.CompleteMessage(ctx, messages[0], nil))
}
`;

export const SNIPPETS = [
  { id: "python", label: "Python", install: "pip install azure-servicebus", code: PYTHON },
  { id: "dotnet", label: ".NET", install: "dotnet add package Azure.Messaging.ServiceBus", code: DOTNET },
  {
    id: "java",
    label: "Java",
    install:
      "<dependency>\n  <groupId>com.azure</groupId>\n  <artifactId>azure-messaging-servicebus</artifactId>\n  <version>7.17.20</version>\n</dependency>",
    code: JAVA,
  },
  { id: "javascript", label: "JavaScript", install: "npm install @azure/service-bus", code: JAVASCRIPT },
  { id: "go", label: "Go", install: "go get github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus", code: GO },
];
