package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

var deletes = &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}

// A message of the largest size there is, from a queue in receive-and-delete mode, a subscription and a dead-letter
// queue, and again when it has grown.
func largest(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "largest", nil)
	sent := sendUpToLimit(ctx, b, queue)
	receiver := b.receiver(queue, deletes)
	defer closeIt(ctx, receiver)
	got := make([]int, len(sent))
	for i, message := range receive(ctx, receiver, len(sent)) {
		got[i] = len(message.Body)
	}
	expect(slices.Equal(got, sent), "sent %v bytes, received %v", sent, got)

	body := bytes.Repeat([]byte{'x'}, slices.Max(sent))
	topic := b.topic(ctx, "largest-topic", "all")
	for _, options := range []*azservicebus.ReceiverOptions{nil, deletes} {
		b.send(ctx, topic, &azservicebus.Message{Body: body})
		from := must(b.client.NewReceiverForSubscription(topic, "all", options))
		message := receiveOne(ctx, from)
		expect(bytes.Equal(message.Body, body), "%d bytes came from the subscription", len(message.Body))
		if options == nil {
			check(from.CompleteMessage(ctx, message, nil))
		}
		closeIt(ctx, from)
	}
	for _, options := range []*azservicebus.ReceiverOptions{nil, deletes} {
		growAndReceive(ctx, b, queue, body, options)
	}
}

// sendUpToLimit finds the largest body that can be sent, and gives the sizes of all that were.
func sendUpToLimit(ctx context.Context, b *broker, queue string) []int {
	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	var sent []int
	limit := 262_144
	if given := os.Getenv("PEEKLOCK_MESSAGE_BYTES_MAX"); given != "" {
		limit = must(strconv.Atoi(given))
	}
	least, most := limit-1_144, limit+1
	sort.Search(most-least, func(more int) bool {
		err := sender.SendMessage(ctx, &azservicebus.Message{Body: make([]byte, least+more)}, nil)
		if err == nil {
			sent = append(sent, least+more)
		} else {
			expect(errors.Is(err, azservicebus.ErrMessageTooLarge), "%d bytes: %v", least+more, err)
		}
		return err != nil
	})
	expect(len(sent) > 0 && slices.Max(sent) > limit-144, "the largest that could be sent: %v", sent)
	return sent
}

func growAndReceive(ctx context.Context, b *broker, queue string, body []byte, options *azservicebus.ReceiverOptions) {
	b.send(ctx, queue, &azservicebus.Message{Body: body})
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	check(receiver.AbandonMessage(ctx, receiveOne(ctx, receiver), &azservicebus.AbandonMessageOptions{
		PropertiesToModify: map[string]any{"grown": strings.Repeat("p", 4000)},
	}))
	message := receiveOne(ctx, receiver)
	expect(bytes.Equal(message.Body, body), "%d bytes came back", len(message.Body))
	expect(len(message.ApplicationProperties["grown"].(string)) == 4000, "the properties are %v", message.ApplicationProperties)
	check(receiver.DeadLetterMessage(ctx, message, &azservicebus.DeadLetterOptions{
		Reason: to.Ptr(strings.Repeat("r", 4000)), ErrorDescription: to.Ptr(strings.Repeat("d", 4000)),
	}))

	from := azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	if options != nil {
		from.ReceiveMode = options.ReceiveMode
	}
	dead := b.receiver(queue, &from)
	defer closeIt(ctx, dead)
	message = receiveOne(ctx, dead)
	expect(bytes.Equal(message.Body, body), "%d bytes came from the dead-letter queue", len(message.Body))
	if options == nil {
		check(dead.CompleteMessage(ctx, message, nil))
	}
	left := must(dead.PeekMessages(ctx, 1, &azservicebus.PeekMessagesOptions{FromSequenceNumber: to.Ptr(int64(0))}))
	expect(len(left) == 0, "%d are left", len(left))
}

// Eight messages of 250 kB, received by their numbers in one request.
func manyDeferred(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "many-deferred", nil)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	var numbers []int64
	for range 8 {
		b.send(ctx, queue, &azservicebus.Message{Body: make([]byte, 250_000)})
		message := receiveOne(ctx, receiver)
		check(receiver.DeferMessage(ctx, message, nil))
		numbers = append(numbers, *message.SequenceNumber)
	}
	found := must(receiver.ReceiveDeferredMessages(ctx, numbers, nil))
	expect(len(found) == 8, "%d came", len(found))
	for i, message := range found {
		expect(len(message.Body) == 250_000 && *message.SequenceNumber == numbers[i], "number %d has %d bytes", i, len(message.Body))
		check(receiver.CompleteMessage(ctx, message, nil))
	}
	b.expectEmpty(ctx, queue)
}

// 99 MiB, in both receive modes; for a Service Bus of the premium tier.
func huge(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "huge", &admin.QueueProperties{MaxMessageSizeInKilobytes: to.Ptr(int64(100 * 1024))})
	body := bytes.Repeat([]byte("0123456789abcdef"), 99*1024*1024/16)
	for _, options := range []*azservicebus.ReceiverOptions{deletes, nil} {
		b.send(ctx, queue, &azservicebus.Message{Body: body})
		receiver := b.receiver(queue, options)
		message := receiveOne(ctx, receiver)
		expect(bytes.Equal(message.Body, body), "%d bytes came", len(message.Body))
		if options == nil {
			check(receiver.CompleteMessage(ctx, message, nil))
		}
		closeIt(ctx, receiver)
	}
	b.expectEmpty(ctx, queue)
}
