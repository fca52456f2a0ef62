// Send and receive one message, with a broker in a container of its own, or the one of the environment.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const config = `{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}`

// start
func startBroker(ctx context.Context) (testcontainers.Container, string, error) {
	broker, err := testcontainers.Run(ctx, "peeklock",
		testcontainers.WithExposedPorts("5672/tcp", "5300/tcp"),
		testcontainers.WithEnv(map[string]string{"CONFIG_JSON": config}),
		testcontainers.WithWaitStrategy(wait.ForHTTP("/health").WithPort("5300/tcp")))
	if err != nil {
		return broker, "", err
	}
	endpoint, err := broker.PortEndpoint(ctx, "5672/tcp", "sb")
	return broker, "Endpoint=" + endpoint + ";SharedAccessKeyName=RootManageSharedAccessKey;" +
		"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;", err
}

// end

func run(ctx context.Context, connectionString string) error {
	client, err := azservicebus.NewClientFromConnectionString(connectionString, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: -1},
	})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	sender, err := client.NewSender("orders", nil)
	if err != nil {
		return err
	}
	if err := sender.SendMessage(ctx, &azservicebus.Message{Body: []byte("hello")}, nil); err != nil {
		return err
	}
	receiver, err := client.NewReceiverForQueue("orders", nil)
	if err != nil {
		return err
	}
	messages, err := receiver.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		return err
	}
	fmt.Println("received:", string(messages[0].Body))
	return receiver.CompleteMessage(ctx, messages[0], nil)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	connectionString := os.Getenv("SERVICEBUS_CONNECTION_STRING")
	if connectionString == "" {
		broker, made, err := startBroker(ctx)
		defer testcontainers.TerminateContainer(broker)
		if err != nil {
			log.Fatal(err)
		}
		connectionString = made
	}
	if err := run(ctx, connectionString); err != nil {
		log.Fatal(err)
	}
}
