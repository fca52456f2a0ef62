package main

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// The shortest lock that Service Bus allows.
var shortLock = &admin.QueueProperties{LockDuration: to.Ptr("PT5S")}

func receiveAndDelete(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "receive-and-delete", nil)
	b.send(ctx, queue, text("gone"))
	receiver := b.receiver(queue, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	defer closeIt(ctx, receiver)
	message := receiveOne(ctx, receiver)
	expect(string(message.Body) == "gone", "received %q", message.Body)
	b.expectEmpty(ctx, queue)
}

func complete(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "complete", nil)
	b.send(ctx, queue, text("done"), text("done by its token"))
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	check(receiver.CompleteMessage(ctx, receiveOne(ctx, receiver), nil))
	// The lock token alone is enough, to another receiver as well.
	token := receiveOne(ctx, receiver).LockToken
	other := b.receiver(queue, nil)
	defer closeIt(ctx, other)
	check(other.CompleteMessage(ctx, &azservicebus.ReceivedMessage{LockToken: token}, nil))
	b.expectEmpty(ctx, queue)
}

func abandon(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "abandon", nil)
	message := text("again")
	message.ApplicationProperties = map[string]any{"kept": "as it was", "changed": "before"}
	b.send(ctx, queue, message)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	first := receiveOne(ctx, receiver)
	check(receiver.AbandonMessage(ctx, first, &azservicebus.AbandonMessageOptions{
		PropertiesToModify: map[string]any{"changed": "after", "added": int64(1)},
	}))
	second := receiveOne(ctx, receiver)
	expect(second.DeliveryCount == first.DeliveryCount+1, "the delivery count was %d and is %d", first.DeliveryCount, second.DeliveryCount)
	expect(reflect.DeepEqual(second.ApplicationProperties, map[string]any{"kept": "as it was", "changed": "after", "added": int64(1)}),
		"the properties are %v", second.ApplicationProperties)
	check(receiver.CompleteMessage(ctx, second, nil))
}

func deadLetter(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "dead-letter", nil)
	b.send(ctx, queue, text("bad"))
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	check(receiver.DeadLetterMessage(ctx, receiveOne(ctx, receiver), &azservicebus.DeadLetterOptions{
		Reason:             to.Ptr("unreadable"),
		ErrorDescription:   to.Ptr("it is in no language"),
		PropertiesToModify: map[string]any{"seen": true},
	}))
	b.expectEmpty(ctx, queue)

	deadLetters := b.deadLetters(queue)
	defer closeIt(ctx, deadLetters)
	found := receiveOne(ctx, deadLetters)
	expect(string(found.Body) == "bad", "found %q", found.Body)
	expect(found.DeadLetterReason != nil && *found.DeadLetterReason == "unreadable", "its reason: %v", found.DeadLetterReason)
	expect(found.DeadLetterErrorDescription != nil && *found.DeadLetterErrorDescription == "it is in no language",
		"its description: %v", found.DeadLetterErrorDescription)
	expect(found.ApplicationProperties["seen"] == true, "its properties: %v", found.ApplicationProperties)
	check(deadLetters.CompleteMessage(ctx, found, nil))
	left := must(deadLetters.PeekMessages(ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: to.Ptr(int64(0))}))
	expect(len(left) == 0, "left are %v", bodies(left))
}

func deferMessage(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "defer", nil)
	b.send(ctx, queue, text("later"))
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	message := receiveOne(ctx, receiver)
	check(receiver.DeferMessage(ctx, message, &azservicebus.DeferMessageOptions{PropertiesToModify: map[string]any{"put": "aside"}}))

	aside := must(receiver.PeekMessages(ctx, 1, nil))
	expect(len(aside) == 1 && aside[0].State == azservicebus.MessageStateDeferred, "put aside: %v", bodies(aside))
	found := must(receiver.ReceiveDeferredMessages(ctx, []int64{*message.SequenceNumber}, nil))
	expect(len(found) == 1 && string(found[0].Body) == "later", "found %v", bodies(found))
	expect(found[0].ApplicationProperties["put"] == "aside", "its properties: %v", found[0].ApplicationProperties)
	// The client adds one to what stands in the header: 0 there, then 1.
	counts := []uint32{message.DeliveryCount, found[0].DeliveryCount}
	expect(reflect.DeepEqual(counts, []uint32{1, 2}), "the delivery counts were %v", counts)
	check(receiver.CompleteMessage(ctx, found[0], nil))
	b.expectEmpty(ctx, queue)
	_, err := receiver.ReceiveDeferredMessages(ctx, []int64{*message.SequenceNumber}, nil)
	expect(code(err) == azservicebus.CodeNotFound, "to ask for it again: %v", err)
}

func renewLock(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "renew-lock", shortLock)
	b.send(ctx, queue, text("held"))
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	message := receiveOne(ctx, receiver)
	firstEnd := *message.LockedUntil
	time.Sleep(2 * time.Second)
	check(receiver.RenewMessageLock(ctx, message, nil))
	moved := message.LockedUntil.Sub(firstEnd)
	expect(moved > time.Second && moved < 4*time.Second, "after 2 s its end moved on by %v", moved)
	time.Sleep(time.Until(firstEnd) + 200*time.Millisecond)
	check(receiver.CompleteMessage(ctx, message, nil))
	b.expectEmpty(ctx, queue)
}

func lockLost(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "lock-lost", shortLock)
	b.send(ctx, queue, text("slow"))
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	message := receiveOne(ctx, receiver)
	time.Sleep(time.Until(*message.LockedUntil) + 200*time.Millisecond)
	err := receiver.CompleteMessage(ctx, message, nil)
	expect(code(err) == azservicebus.CodeLockLost, "completing it: %v", err)
	err = receiver.RenewMessageLock(ctx, message, nil)
	expect(code(err) == azservicebus.CodeLockLost, "renewing it: %v", err)
	again := receiveOne(ctx, receiver)
	expect(again.DeliveryCount == message.DeliveryCount+1, "the delivery count was %d and is %d", message.DeliveryCount, again.DeliveryCount)
	check(receiver.CompleteMessage(ctx, again, nil))
}

func peek(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "peek", nil)
	for i := range 5 {
		b.send(ctx, queue, text(fmt.Sprint(i)))
	}
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	locked := receiveOne(ctx, receiver)
	// The receiver goes on where its last peek ended, unless it is told where to begin.
	first := must(receiver.PeekMessages(ctx, 3, nil))
	expect(reflect.DeepEqual(bodies(first), []string{"0", "1", "2"}), "the first peek gave %v", bodies(first))
	rest := must(receiver.PeekMessages(ctx, 3, nil))
	expect(reflect.DeepEqual(bodies(rest), []string{"3", "4"}), "the second peek gave %v", bodies(rest))
	from := must(receiver.PeekMessages(ctx, 2, &azservicebus.PeekMessagesOptions{FromSequenceNumber: first[1].SequenceNumber}))
	expect(reflect.DeepEqual(bodies(from), []string{"1", "2"}), "from the second on there are %v", bodies(from))
	check(receiver.AbandonMessage(ctx, locked, nil))
	expect(len(receive(ctx, receiver, 5)) == 5, "peeking took something away")
}
