package main

import (
	"context"
	"reflect"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func subscriptions(ctx context.Context, b *broker) {
	topic := b.topic(ctx, "subscriptions", "left", "right")
	b.send(ctx, topic, text("news"))
	for _, subscription := range []string{"left", "right"} {
		receiver := must(b.client.NewReceiverForSubscription(topic, subscription, nil))
		message := receiveOne(ctx, receiver)
		expect(string(message.Body) == "news", "%s received %q", subscription, message.Body)
		check(receiver.DeadLetterMessage(ctx, message, nil))
		closeIt(ctx, receiver)

		deadLetters := must(b.client.NewReceiverForSubscription(topic, subscription, &azservicebus.ReceiverOptions{
			SubQueue: azservicebus.SubQueueDeadLetter,
		}))
		check(deadLetters.CompleteMessage(ctx, receiveOne(ctx, deadLetters), nil))
		closeIt(ctx, deadLetters)
	}
}

func rules(ctx context.Context, b *broker) {
	topic := b.topic(ctx, "rules")
	must(b.admin.CreateSubscription(ctx, topic, "expensive", &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{DefaultRule: &admin.RuleProperties{
			Name:   "by-price",
			Filter: &admin.SQLFilter{Expression: "price > @limit", Parameters: map[string]any{"@limit": 100}},
			Action: &admin.SQLAction{Expression: "SET class = 'expensive'; REMOVE internal"},
		}},
	}))
	must(b.admin.CreateSubscription(ctx, topic, "apples", &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{DefaultRule: &admin.RuleProperties{
			Name:   "by-subject",
			Filter: &admin.CorrelationFilter{Subject: to.Ptr("apple"), ApplicationProperties: map[string]any{"organic": true}},
		}},
	}))
	offer := func(subject string, price int32, organic bool) *azservicebus.Message {
		return &azservicebus.Message{
			Body: []byte(subject), Subject: to.Ptr(subject),
			ApplicationProperties: map[string]any{"price": price, "organic": organic, "internal": "yes"},
		}
	}
	b.send(ctx, topic, offer("apple", 2, true), offer("apple", 1, false), offer("car", 20_000, false))

	arrived := func(subscription string) *azservicebus.ReceivedMessage {
		receiver := must(b.client.NewReceiverForSubscription(topic, subscription, nil))
		defer closeIt(ctx, receiver)
		there := must(receiver.PeekMessages(ctx, 10, nil))
		expect(len(there) == 1, "%s has %v", subscription, bodies(there))
		message := receiveOne(ctx, receiver)
		check(receiver.CompleteMessage(ctx, message, nil))
		return message
	}
	expensive := arrived("expensive")
	expect(string(expensive.Body) == "car", "expensive is %q", expensive.Body)
	expect(reflect.DeepEqual(expensive.ApplicationProperties, map[string]any{"price": int32(20_000), "organic": false, "class": "expensive", "RuleName": "by-price"}),
		"the action left %v", expensive.ApplicationProperties)
	apple := arrived("apples")
	expect(string(apple.Body) == "apple" && apple.ApplicationProperties["price"] == int32(2), "the apple is %v", apple.ApplicationProperties)
}
