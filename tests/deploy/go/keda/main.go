// Reads the numbers of waiting messages as KEDA's scaler `azure-servicebus` does: the same calls of the same client.
//
// Arguments: a connection string, a queue, a topic and a subscription. Standard output: a JSON object with the numbers
// that the scaler would see. KEDA's own code is not compiled: it needs a thousand packages of Kubernetes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func main() {
	connection, queue, topic, subscription := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := must(admin.NewClientFromConnectionString(connection, nil))
	counts := map[string]int32{}

	counts["queue"] = must(client.GetQueueRuntimeProperties(ctx, queue, nil)).ActiveMessageCount
	counts["subscription"] = must(client.GetSubscriptionRuntimeProperties(ctx, topic, subscription, nil)).ActiveMessageCount
	queues := client.NewListQueuesRuntimePropertiesPager(nil)
	for queues.More() {
		for _, found := range must(queues.NextPage(ctx)).QueueRuntimeProperties {
			counts["queue "+found.QueueName] = found.ActiveMessageCount
		}
	}
	subscriptions := client.NewListSubscriptionsRuntimePropertiesPager(topic, nil)
	for subscriptions.More() {
		for _, found := range must(subscriptions.NextPage(ctx)).SubscriptionRuntimeProperties {
			counts["subscription "+found.SubscriptionName] = found.ActiveMessageCount
		}
	}
	// The scaler reports a queue that is missing, by this answer without an error.
	if must(client.GetQueueRuntimeProperties(ctx, queue+"-missing", nil)) != nil {
		fail(fmt.Errorf("a missing queue has properties"))
	}
	if err := json.NewEncoder(os.Stdout).Encode(counts); err != nil {
		fail(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		fail(err)
	}
	return value
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
