package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
)

func send(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "send", nil)
	b.send(ctx, queue, &azservicebus.Message{Body: []byte("one"), MessageID: to.Ptr("order 1")})
	message := receiveOne(ctx, b.receiver(queue, nil))
	expect(string(message.Body) == "one", "the body is %q", message.Body)
	expect(message.MessageID == "order 1", "the message id is %q", message.MessageID)
}

func properties(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "properties", nil)
	at := time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC) // AMQP has milliseconds
	values := map[string]any{
		"bool": true, "int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(-64),
		"uint8": uint8(8), "uint16": uint16(16), "uint32": uint32(32), "uint64": uint64(64),
		"float32": float32(0.5), "float64": 0.1, "string": "zażółć", "bytes": []byte{0, 255}, "time": at,
		"uuid": amqp.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, "nothing": nil,
	}
	sent := &azservicebus.Message{
		ApplicationProperties: values,
		Body:                  []byte("all that a message has"),
		ContentType:           to.Ptr("text/plain"),
		CorrelationID:         to.Ptr("correlation"),
		MessageID:             to.Ptr("id"),
		PartitionKey:          to.Ptr("session"), // has to be the session's id where there is one
		ReplyTo:               to.Ptr("reply-to"),
		ReplyToSessionID:      to.Ptr("reply-to-session"),
		SessionID:             to.Ptr("session"),
		Subject:               to.Ptr("subject"),
		TimeToLive:            to.Ptr(time.Hour),
		To:                    to.Ptr("to"),
	}
	b.send(ctx, queue, sent)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	got := receiveOne(ctx, receiver)
	check(receiver.CompleteMessage(ctx, got, nil))
	expect(got.ApplicationProperties["time"].(time.Time).Equal(at), "the property time is %v", got.ApplicationProperties["time"])
	got.ApplicationProperties["time"] = at // what the client gives is the same instant, in the local time zone
	for name, value := range values {
		expect(reflect.DeepEqual(got.ApplicationProperties[name], value), "the property %s is %#v", name, got.ApplicationProperties[name])
	}
	expect(reflect.DeepEqual(got.Message(), sent), "sent %+v, received %+v", sent, got.Message())
	expect(got.SequenceNumber != nil && got.EnqueuedTime != nil && got.LockedUntil != nil, "received %+v", got)
	expect(got.ExpiresAt != nil && got.ExpiresAt.Sub(*got.EnqueuedTime) == time.Hour, "it expires at %v", got.ExpiresAt)
	expect(time.Since(*got.EnqueuedTime).Abs() < time.Minute, "it was enqueued at %v", got.EnqueuedTime)

	annotatedProperties(ctx, b, queue, at)
}

func footerQueues() []string { return strings.Split(os.Getenv("PEEKLOCK_FOOTERS_TO"), ",") }

func sendFooters(ctx context.Context, b *broker) {
	for _, queue := range footerQueues() {
		sender := must(b.client.NewSender(queue, nil))
		check(sender.SendAMQPAnnotatedMessage(ctx, &azservicebus.AMQPAnnotatedMessage{
			Body:   azservicebus.AMQPAnnotatedMessageBody{Value: "go"},
			Footer: map[any]any{"sum": int64(7), "x-opt-footer": "footer"},
		}, nil))
		closeIt(ctx, sender)
	}
}

func receiveFooters(ctx context.Context, b *broker) {
	receiver := b.receiver(os.Getenv("PEEKLOCK_FOOTERS_OF"), nil)
	defer closeIt(ctx, receiver)
	for _, message := range receive(ctx, receiver, len(footerQueues())) {
		// Clients send the number in types of their own, and the client tells keys as they come.
		found := fmt.Sprint(message.RawAMQPMessage.Footer)
		expect(found == "map[sum:7 x-opt-footer:footer]", "the footer from %v is %s", message.RawAMQPMessage.Body.Value, found)
	}
}

// The whole of an AMQP message, by the types for it: each kind of body and of message id.
func annotatedProperties(ctx context.Context, b *broker, queue string, at time.Time) {
	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	bodies := []azservicebus.AMQPAnnotatedMessageBody{
		{Data: [][]byte{[]byte("two"), []byte("sections")}},
		{Sequence: [][]any{{int64(1), "two"}, {true}}},
		{Value: map[string]any{"a": int64(1), "list": []any{"x", 0.5}}},
		{Value: "a text"},
	}
	ids := []any{"text", uint64(12345678901), amqp.UUID{15: 1}, []byte{1, 2, 3}}
	for i := range bodies {
		sent := &azservicebus.AMQPAnnotatedMessage{
			ApplicationProperties: map[string]any{"number": int64(i)},
			Body:                  bodies[i],
			DeliveryAnnotations:   map[any]any{"x-opt-delivery": "delivery"},
			Footer:                map[any]any{"x-opt-footer": "footer"},
			Header:                &azservicebus.AMQPAnnotatedMessageHeader{Durable: true, Priority: 7, TTL: time.Hour},
			MessageAnnotations:    map[any]any{"x-opt-own": "annotation"},
			Properties: &azservicebus.AMQPAnnotatedMessageProperties{
				ContentEncoding: to.Ptr("utf-8"),
				CorrelationID:   ids[i],
				GroupID:         to.Ptr("group"),
				GroupSequence:   to.Ptr(uint32(3)),
				MessageID:       ids[i],
				UserID:          []byte("user"),
				CreationTime:    to.Ptr(at),
			},
		}
		check(sender.SendAMQPAnnotatedMessage(ctx, sent, nil))
		received := receiveOne(ctx, receiver)
		check(receiver.CompleteMessage(ctx, received, nil))
		got := received.RawAMQPMessage
		expect(reflect.DeepEqual(got.Body, sent.Body), "sent the body %#v, received %#v", sent.Body, got.Body)
		expect(reflect.DeepEqual(got.ApplicationProperties, sent.ApplicationProperties), "application properties: %v", got.ApplicationProperties)
		expect(got.Header.Priority == 7 && got.Header.Durable, "the header is %+v", got.Header)
		expect(got.MessageAnnotations["x-opt-own"] == "annotation", "the annotations are %v", got.MessageAnnotations)
		expect(reflect.DeepEqual(got.Footer, sent.Footer), "the footer is %v", got.Footer)
		for _, field := range []struct {
			name      string
			got, want any
		}{
			{"content encoding", *got.Properties.ContentEncoding, "utf-8"},
			{"correlation id", got.Properties.CorrelationID, ids[i]},
			{"group id", *got.Properties.GroupID, "group"},
			{"group sequence", *got.Properties.GroupSequence, uint32(3)},
			{"message id", got.Properties.MessageID, ids[i]},
			{"user id", got.Properties.UserID, []byte("user")},
		} {
			expect(reflect.DeepEqual(field.got, field.want), "the %s is %#v", field.name, field.got)
		}
	}
}

func batch(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "batch", nil)
	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	messages := must(sender.NewMessageBatch(ctx, nil))
	for i := range 100 {
		check(messages.AddMessage(text(fmt.Sprint(i)), nil))
	}
	check(sender.SendMessageBatch(ctx, messages, nil))

	for i, message := range receive(ctx, b.receiver(queue, nil), 100) {
		expect(string(message.Body) == fmt.Sprint(i), "message %d is %q", i, message.Body)
	}
}

func large(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "large", nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 200*1024/16)
	b.send(ctx, queue, &azservicebus.Message{Body: body})
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	message := receiveOne(ctx, receiver)
	expect(bytes.Equal(message.Body, body), "%d bytes arrived, not those that were sent", len(message.Body))
	check(receiver.CompleteMessage(ctx, message, nil))

	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	tooLarge := &azservicebus.Message{Body: make([]byte, 300*1024)}
	err := sender.SendMessage(ctx, tooLarge, nil)
	expect(errors.Is(err, azservicebus.ErrMessageTooLarge), "a send: %v", err)
	err = must(sender.NewMessageBatch(ctx, nil)).AddMessage(tooLarge, nil)
	expect(errors.Is(err, azservicebus.ErrMessageTooLarge), "a batch: %v", err)
	b.expectEmpty(ctx, queue)
}

func schedule(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "schedule", nil)
	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	due := time.Now().Add(2 * time.Second)
	numbers := must(sender.ScheduleMessages(ctx, []*azservicebus.Message{text("kept"), text("cancelled")}, due, nil))
	property := text("by its property")
	property.ScheduledEnqueueTime = &due
	check(sender.SendMessage(ctx, property, nil))

	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	waiting := must(receiver.PeekMessages(ctx, 10, nil))
	expect(len(waiting) == 3 && waiting[0].State == azservicebus.MessageStateScheduled, "waiting are %v", bodies(waiting))
	check(sender.CancelScheduledMessages(ctx, numbers[1:], nil))

	for range 2 {
		message := receiveOne(ctx, receiver)
		expect(string(message.Body) != "cancelled", "a cancelled message arrived")
		late := time.Since(due)
		expect(message.State == azservicebus.MessageStateScheduled, "the state is %v", message.State)
		expect(late > -50*time.Millisecond && late < 2*time.Second, "%q arrived %v after its time", message.Body, late)
		check(receiver.CompleteMessage(ctx, message, nil))
	}
	b.expectEmpty(ctx, queue)
}

func timeToLive(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "time-to-live", &admin.QueueProperties{DeadLetteringOnMessageExpiration: to.Ptr(true)})
	short := text("short")
	short.TimeToLive = to.Ptr(time.Second)
	b.send(ctx, queue, short)

	message := receiveOne(ctx, b.deadLetters(queue))
	expect(string(message.Body) == "short", "the dead letter is %q", message.Body)
	expect(message.DeadLetterReason != nil && *message.DeadLetterReason == "TTLExpiredException", "its reason: %+v", message)
	b.expectEmpty(ctx, queue)
}

func duplicates(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "duplicates", &admin.QueueProperties{RequiresDuplicateDetection: to.Ptr(true)})
	for _, body := range []string{"first", "second"} {
		b.send(ctx, queue, &azservicebus.Message{Body: []byte(body), MessageID: to.Ptr("the same")})
	}
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	there := must(receiver.PeekMessages(ctx, 10, nil))
	expect(len(there) == 1 && string(there[0].Body) == "first", "there are %v", bodies(there))
}
