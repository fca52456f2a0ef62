package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func (b *broker) sessionQueue(ctx context.Context, what string) string {
	return b.queue(ctx, what, &admin.QueueProperties{RequiresSession: to.Ptr(true), LockDuration: to.Ptr("PT5S")})
}

func session(ctx context.Context, b *broker) {
	queue := b.sessionQueue(ctx, "session")
	for i := range 3 {
		b.send(ctx, queue, inSession("red", fmt.Sprint("red ", i)), inSession("blue", fmt.Sprint("blue ", i)))
	}
	listed := must(b.client.NewListSessionsForQueuePager(queue, nil).NextPage(ctx)).Sessions
	slices.Sort(listed)
	expect(reflect.DeepEqual(listed, []string{"blue", "red"}), "the sessions are %v", listed)

	// The client names no session when it peeks or asks for deferred messages, but its link.
	b.send(ctx, queue, inSession("green", "green 0"))
	green := must(b.client.AcceptSessionForQueue(ctx, queue, "green", nil))
	seen := must(green.PeekMessages(ctx, 10, nil))
	expect(reflect.DeepEqual(bodies(seen), []string{"green 0"}), "the session green has %v", bodies(seen))
	deferred := receiveOne(ctx, green)
	check(green.DeferMessage(ctx, deferred, nil))
	back := must(green.ReceiveDeferredMessages(ctx, []int64{*deferred.SequenceNumber}, nil))
	expect(reflect.DeepEqual(bodies(back), []string{"green 0"}), "deferred were %v", bodies(back))
	check(green.CompleteMessage(ctx, back[0], nil))
	closeIt(ctx, green)

	for _, id := range []string{"blue", "red"} {
		receiver := must(b.client.AcceptSessionForQueue(ctx, queue, id, nil))
		expect(receiver.SessionID() == id, "asked for %s, got %s", id, receiver.SessionID())
		got := receive(ctx, receiver, 3)
		expect(reflect.DeepEqual(bodies(got), []string{id + " 0", id + " 1", id + " 2"}), "received %v", bodies(got))
		check(receiver.CompleteMessage(ctx, got[0], nil))
		check(receiver.CompleteMessage(ctx, got[1], nil))
		check(receiver.AbandonMessage(ctx, got[2], nil))
		check(receiver.CompleteMessage(ctx, receiveOne(ctx, receiver), nil))
		closeIt(ctx, receiver)
	}
	b.expectRefused(ctx, queue)
}

// expectRefused makes sure that a queue with sessions takes no receiver without one.
func (b *broker) expectRefused(ctx context.Context, queue string) {
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	_, err := receiver.ReceiveMessages(ctx, 1, nil)
	expect(err != nil && strings.Contains(err.Error(), "amqp:not-allowed"), "a receiver without a session: %v", err)
}

func nextSession(ctx context.Context, b *broker) {
	queue := b.sessionQueue(ctx, "next-session")
	b.send(ctx, queue, inSession("waiting", "hello"))
	receiver := must(b.client.AcceptNextSessionForQueue(ctx, queue, nil))
	expect(receiver.SessionID() == "waiting", "got the session %s", receiver.SessionID())
	check(receiver.CompleteMessage(ctx, receiveOne(ctx, receiver), nil))

	// Since 1.11 the client tells the broker how long to wait for a session.
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := b.client.AcceptNextSessionForQueue(short, queue, nil)
	expect(code(err) == azservicebus.CodeTimeout || short.Err() != nil, "with no session left: %v", err)
	closeIt(ctx, receiver)
}

func sessionState(ctx context.Context, b *broker) {
	queue := b.sessionQueue(ctx, "session-state")
	first := must(b.client.AcceptSessionForQueue(ctx, queue, "s", nil))
	nothing := must(first.GetSessionState(ctx, nil))
	expect(nothing == nil, "a new session has the state %q", nothing)
	check(first.SetSessionState(ctx, []byte("half way"), nil))
	expect(string(must(first.GetSessionState(ctx, nil))) == "half way", "the state is not what was set")
	closeIt(ctx, first)

	listed := must(b.client.NewListSessionsForQueuePager(queue, nil).NextPage(ctx)).Sessions
	expect(reflect.DeepEqual(listed, []string{"s"}), "the sessions with a state are %v", listed)
	next := must(b.client.AcceptSessionForQueue(ctx, queue, "s", nil))
	state := must(next.GetSessionState(ctx, nil))
	expect(string(state) == "half way", "the next holder reads %q", state)
	check(next.SetSessionState(ctx, nil, nil))
	cleared := must(next.GetSessionState(ctx, nil))
	expect(cleared == nil, "after clearing it is %q", cleared)
	closeIt(ctx, next)
}

func renewSession(ctx context.Context, b *broker) {
	queue := b.sessionQueue(ctx, "renew-session")
	b.send(ctx, queue, inSession("s", "slow"))
	receiver := must(b.client.AcceptSessionForQueue(ctx, queue, "s", nil))
	message := receiveOne(ctx, receiver)
	firstEnd := receiver.LockedUntil()
	expect(time.Until(firstEnd) > 3*time.Second && time.Until(firstEnd) < 6*time.Second, "a lock of 5 s ends at %v", firstEnd)
	time.Sleep(1500 * time.Millisecond)
	check(receiver.RenewSessionLock(ctx, nil))
	moved := receiver.LockedUntil().Sub(firstEnd)
	expect(moved > time.Second && moved < 3*time.Second, "after 1.5 s its end moved on by %v", moved)
	check(receiver.CompleteMessage(ctx, message, nil))
	closeIt(ctx, receiver)
}
