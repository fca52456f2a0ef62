package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/coder/websocket"
)

// roundTrip sends and receives by a client.
func roundTrip(ctx context.Context, client *azservicebus.Client, queue, body string) {
	sender := must(client.NewSender(queue, nil))
	check(sender.SendMessage(ctx, text(body), nil))
	receiver := must(client.NewReceiverForQueue(queue, nil))
	message := receiveOne(ctx, receiver)
	expect(string(message.Body) == body, "sent %q, received %q", body, message.Body)
	check(receiver.CompleteMessage(ctx, message, nil))
	closeIt(ctx, receiver)
	closeIt(ctx, sender)
}

// code is the client's own code for what went wrong, or nothing if the error is none of its own.
func code(err error) azservicebus.Code {
	var own *azservicebus.Error
	if errors.As(err, &own) {
		return own.Code
	}
	return ""
}

// status is the HTTP status by which the administration client was refused, or 0.
func status(err error) int {
	var refused *azcore.ResponseError
	if errors.As(err, &refused) {
		return refused.StatusCode
	}
	return 0
}

func amqpPlain(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "amqp-plain", nil)
	client := b.connect(ctx, b.plain, nil)
	roundTrip(ctx, client, queue, "plain")
}

func amqpTLS(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "amqp-tls", nil)
	roundTrip(ctx, b.connect(ctx, b.secure, b.options()), queue, "tls")

	attempt := func(config *tls.Config) error {
		client := b.connect(ctx, b.secure, &azservicebus.ClientOptions{
			TLSConfig:    config,
			RetryOptions: azservicebus.RetryOptions{MaxRetries: -1},
		})
		sender := must(client.NewSender(queue, nil))
		return sender.SendMessage(ctx, text("never"), nil)
	}
	// The client's own error hides the one of TLS, but for its text.
	if b.roots != nil {
		err := attempt(&tls.Config{ServerName: b.host})
		expect(err != nil && strings.Contains(err.Error(), "unknown authority"), "without the authority: %v", err)
	}
	err := attempt(&tls.Config{RootCAs: b.roots, ServerName: "elsewhere.example"})
	expect(err != nil && strings.Contains(err.Error(), "not elsewhere.example"), "by another name: %v", err)
	b.expectEmpty(ctx, queue)
}

// The client leaves the WebSocket to the application: it names the address, and wants a net.Conn.
func webSocket(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "websocket", nil)
	schemes := []string{"wss"}
	if b.hasPort { // the service's own ports take TLS only
		schemes = append(schemes, "ws")
	}
	for _, scheme := range schemes {
		options := b.options()
		options.NewWebSocketConn = func(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			address := strings.Replace(args.Host, "wss", scheme, 1)
			connection, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{
				HTTPClient:   b.httpClient(),
				Subprotocols: []string{"amqp"},
			})
			if err != nil {
				return nil, err
			}
			// Not the context of the call: the connection lives on when the call is done.
			return websocket.NetConn(context.Background(), connection, websocket.MessageBinary), nil
		}
		client := b.connect(ctx, b.secure, options)
		roundTrip(ctx, client, queue, "over "+scheme)
		roundTrip(ctx, client, queue, strings.Repeat("large ", 30_000))
	}
}

func wrongKey(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "wrong-key", nil)
	altered := b.connectionString("RootManageSharedAccessKey", "bm90IHRoZSBrZXkgb2YgYW55Ym9keQ==")

	client := b.connect(ctx, altered, b.options())
	sender := must(client.NewSender(queue, nil))
	err := sender.SendMessage(ctx, text("never"), nil)
	expect(code(err) == azservicebus.CodeUnauthorizedAccess, "a send: %v", err)

	administration := must(b.adminClient(altered))
	_, err = administration.GetQueue(ctx, queue, nil)
	expect(status(err) == http.StatusUnauthorized, "a request of the administration: %v", err)
	b.expectEmpty(ctx, queue)
}

func missingEntity(ctx context.Context, b *broker) {
	sender := must(b.client.NewSender(b.name("nothing"), nil))
	defer closeIt(ctx, sender)
	err := sender.SendMessage(ctx, text("never"), nil)
	expect(code(err) == azservicebus.CodeNotFound, "a send: %v", err)

	receiver := b.receiver(b.name("nothing"), nil)
	defer closeIt(ctx, receiver)
	_, err = receiver.ReceiveMessages(ctx, 1, nil)
	expect(code(err) == azservicebus.CodeNotFound, "a receive: %v", err)
	_, err = receiver.PeekMessages(ctx, 1, nil)
	expect(code(err) == azservicebus.CodeNotFound, "a peek: %v", err)
}

func missingRight(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "missing-right", nil)
	b.send(ctx, queue, text("for the listener"))

	client := b.connect(ctx, b.listenOnly, b.options())
	receiver := must(client.NewReceiverForQueue(queue, nil))
	check(receiver.CompleteMessage(ctx, receiveOne(ctx, receiver), nil))

	sender := must(client.NewSender(queue, nil))
	err := sender.SendMessage(ctx, text("never"), nil)
	expect(code(err) == azservicebus.CodeUnauthorizedAccess, "a send: %v", err)
	b.expectEmpty(ctx, queue)
}

func reconnect(ctx context.Context, b *broker) {
	queue := b.queue(ctx, "reconnect", nil)
	sender := must(b.client.NewSender(queue, nil))
	defer closeIt(ctx, sender)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	through := func(body string) {
		check(sender.SendMessage(ctx, text(body), nil))
		message := receiveOne(ctx, receiver)
		expect(string(message.Body) == body, "sent %q, received %q", body, message.Body)
		check(receiver.CompleteMessage(ctx, message, nil))
	}
	through("before")
	b.ask("restart")
	// Sender and receiver notice one after the other, and each makes the client connect once more; so the second time
	// round the sender finds its connection replaced.
	through("after")
	through("and on")
	b.expectEmpty(ctx, queue)
}
