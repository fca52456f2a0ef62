// Publishes and receives through Dapr's components for Service Bus, as the sidecar of an application does.
//
// Argument: a connection string. The components make their entities by the administration API, at the port that the
// connection string names. Standard output: a line for each component that worked. A failure ends the program.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dapr/components-contrib/bindings"
	"github.com/dapr/components-contrib/bindings/azure/servicebusqueues"
	"github.com/dapr/components-contrib/metadata"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/queues"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/topics"
	"github.com/dapr/kit/logger"
)

func main() {
	connection := os.Args[1]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	log := logger.NewLogger("dapr")
	log.SetOutput(os.Stderr)
	pubSub(ctx, "pubsub.azure.servicebus.topics", topics.NewAzureServiceBusTopics(log), "news", map[string]string{
		"connectionString": connection, "consumerID": "worker", "maxDeliveryCount": "3",
	})
	pubSub(ctx, "pubsub.azure.servicebus.queues", queues.NewAzureServiceBusQueues(log), "jobs", map[string]string{
		"connectionString": connection,
	})
	binding(ctx, servicebusqueues.NewAzureServiceBusQueues(log), map[string]string{
		"connectionString": connection, "queueName": "bound",
	})
}

func pubSub(ctx context.Context, name string, component pubsub.PubSub, entity string, properties map[string]string) {
	check(name, component.Init(ctx, pubsub.Metadata{Base: metadata.Base{Properties: properties}}))
	received, failed := make(chan *pubsub.NewMessage, 10), false
	check(name, component.Subscribe(ctx, pubsub.SubscribeRequest{Topic: entity},
		func(_ context.Context, message *pubsub.NewMessage) error {
			if !failed { // abandoned, and delivered again
				failed = true
				return fmt.Errorf("not now")
			}
			received <- message
			return nil
		}))
	check(name, component.Publish(ctx, &pubsub.PublishRequest{Topic: entity, Data: []byte(name)}))
	select {
	case message := <-received:
		if string(message.Data) != name {
			check(name, fmt.Errorf("received %q", message.Data))
		}
	case <-ctx.Done():
		check(name, ctx.Err())
	}
	check(name, component.Close())
	fmt.Println(name)
}

func binding(ctx context.Context, component bindings.InputOutputBinding, properties map[string]string) {
	const name = "bindings.azure.servicebusqueues"
	check(name, component.Init(ctx, bindings.Metadata{Base: metadata.Base{Properties: properties}}))
	received := make(chan []byte, 10)
	check(name, component.Read(ctx, func(_ context.Context, response *bindings.ReadResponse) ([]byte, error) {
		received <- response.Data
		return nil, nil
	}))
	_, err := component.Invoke(ctx, &bindings.InvokeRequest{Operation: bindings.CreateOperation, Data: []byte("bound")})
	check(name, err)
	select {
	case data := <-received:
		if string(data) != "bound" {
			check(name, fmt.Errorf("received %q", data))
		}
	case <-ctx.Done():
		check(name, ctx.Err())
	}
	check(name, component.Close())
	fmt.Println(name)
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}
