package main

// What is needed beyond the connection string:
//
//   - Trust. The broker's certificate is signed by its own authority, DATA/tls/ca.pem. A program that may be changed
//     gives it as ClientOptions.TLSConfig.RootCAs (azservicebus) and by an http.Client as ClientOptions.Transport
//     (admin). A program that may not be changed is started with SSL_CERT_FILE=DATA/tls/ca.pem.
//   - The port. It may stand in the connection string, `Endpoint=sb://localhost:5671;...`: azservicebus dials it, and
//     admin sends its requests to https://localhost:5671/, so that one port has to take both. But azservicebus looks for
//     `localhost:5671` in the certificate, port included, where none but one by `--tls-name localhost:5671` has it; so it
//     is told the name by TLSConfig.ServerName. (Or the connection string has no port, and
//     ClientOptions.CustomEndpoint has it.)
//   - UseDevelopmentEmulator=true turns TLS off for AMQP; admin uses HTTPS all the same.

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// A broker is the one under test: its connection strings, and clients that are connected to it over TLS.
type broker struct {
	*harness

	host       string
	endpoint   string // sb:// with the host, and the port where there is one
	hasPort    bool
	plain      string // with UseDevelopmentEmulator=true
	secure     string // the same without
	listenOnly string // like secure, by a rule that may only listen
	roots      *x509.CertPool // nil: what the system trusts
	client     *azservicebus.Client
	admin      *admin.Client
	runPrefix  string // what the names of this run's entities begin with
}

func newBroker(h *harness) (*broker, error) {
	b := &broker{
		harness:   h,
		secure:     os.Getenv("PEEKLOCK_TEST_CONNECTION_STRING"),
		listenOnly: os.Getenv("PEEKLOCK_LISTEN_CONNECTION_STRING"),
		runPrefix:  "go-" + rand.Text()[:6] + "-",
	}
	b.plain = b.secure + ";UseDevelopmentEmulator=true"
	first, _, _ := strings.Cut(b.secure, ";")
	b.endpoint = strings.TrimSuffix(strings.TrimPrefix(first, "Endpoint="), "/")
	b.host, _, b.hasPort = strings.Cut(strings.TrimPrefix(b.endpoint, "sb://"), ":")
	if path := os.Getenv("PEEKLOCK_CA"); path != "" {
		authority, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("PEEKLOCK_CA: %w", err)
		}
		b.roots = x509.NewCertPool()
		if !b.roots.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("PEEKLOCK_CA: no certificate in %s", path)
		}
	}
	var err error
	if b.client, err = azservicebus.NewClientFromConnectionString(b.secure, b.options()); err != nil {
		return nil, fmt.Errorf("PEEKLOCK_TEST_CONNECTION_STRING: %w", err)
	}
	if b.admin, err = b.adminClient(b.secure); err != nil {
		return nil, fmt.Errorf("PEEKLOCK_TEST_CONNECTION_STRING: %w", err)
	}
	return b, nil
}

func (b *broker) connectionString(keyName, key string) string {
	return fmt.Sprintf("Endpoint=%s;SharedAccessKeyName=%s;SharedAccessKey=%s", b.endpoint, keyName, key)
}

// options trusts the broker's authority. Retries begin after half a second instead of four, to keep the run short.
func (b *broker) options() *azservicebus.ClientOptions {
	return &azservicebus.ClientOptions{
		TLSConfig:    &tls.Config{RootCAs: b.roots, ServerName: b.host},
		RetryOptions: azservicebus.RetryOptions{RetryDelay: 500 * time.Millisecond},
	}
}

// httpClient trusts the broker's authority; it serves the administration client and WebSockets.
func (b *broker) httpClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: b.roots}
	return &http.Client{Transport: transport}
}

func (b *broker) adminClient(connectionString string) (*admin.Client, error) {
	return admin.NewClientFromConnectionString(connectionString, &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: b.httpClient()},
	})
}

// connect makes a client of its own, which is closed when the feature is done.
func (b *broker) connect(ctx context.Context, connectionString string, options *azservicebus.ClientOptions) *azservicebus.Client {
	client := must(azservicebus.NewClientFromConnectionString(connectionString, options))
	context.AfterFunc(ctx, func() { _ = client.Close(context.Background()) })
	return client
}

func (b *broker) name(what string) string { return b.runPrefix + what }

// queue makes a queue and gives its name.
func (b *broker) queue(ctx context.Context, what string, properties *admin.QueueProperties) string {
	name := b.name(what)
	must(b.admin.CreateQueue(ctx, name, &admin.CreateQueueOptions{Properties: properties}))
	return name
}

// topic makes a topic with subscriptions and gives its name.
func (b *broker) topic(ctx context.Context, what string, subscriptions ...string) string {
	name := b.name(what)
	must(b.admin.CreateTopic(ctx, name, nil))
	for _, subscription := range subscriptions {
		must(b.admin.CreateSubscription(ctx, name, subscription, nil))
	}
	return name
}

// removeEntities removes what this run has made. It lists again: others may move the pages of a list meanwhile.
func (b *broker) removeEntities(ctx context.Context) {
	for {
		var names []string
		queues := b.admin.NewListQueuesPager(nil)
		for _, queue := range all(ctx, queues, func(page admin.ListQueuesResponse) []admin.QueueItem { return page.Queues }) {
			names = append(names, queue.QueueName)
		}
		topics := b.admin.NewListTopicsPager(nil)
		for _, topic := range all(ctx, topics, func(page admin.ListTopicsResponse) []admin.TopicItem { return page.Topics }) {
			names = append(names, topic.TopicName)
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, b.runPrefix) })
		if len(names) == 0 {
			return
		}
		for _, name := range names { // a topic goes by the same request as a queue
			if _, err := b.admin.DeleteQueue(ctx, name, nil); err != nil && status(err) != http.StatusNotFound {
				check(err)
			}
		}
	}
}

// send sends messages one by one, by a sender of its own.
func (b *broker) send(ctx context.Context, entity string, messages ...*azservicebus.Message) {
	sender := must(b.client.NewSender(entity, nil))
	defer closeIt(ctx, sender)
	for _, message := range messages {
		check(sender.SendMessage(ctx, message, nil))
	}
}

func (b *broker) receiver(queue string, options *azservicebus.ReceiverOptions) *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(queue, options))
}

func (b *broker) deadLetters(queue string) *azservicebus.Receiver {
	return b.receiver(queue, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
}

// expectEmpty makes sure that nothing is left in a queue, under lock or not.
func (b *broker) expectEmpty(ctx context.Context, queue string) {
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	left := must(receiver.PeekMessages(ctx, 10, nil))
	expect(len(left) == 0, "%d messages are left in %s, the first is %q", len(left), queue, bodies(left))
}

// What Receiver and SessionReceiver have in common.
type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
}

// receive waits until there are so many messages: one call may give fewer.
func receive(ctx context.Context, from receiver, count int) []*azservicebus.ReceivedMessage {
	var messages []*azservicebus.ReceivedMessage
	for len(messages) < count {
		messages = append(messages, must(from.ReceiveMessages(ctx, count-len(messages), nil))...)
	}
	return messages
}

func receiveOne(ctx context.Context, from receiver) *azservicebus.ReceivedMessage {
	return receive(ctx, from, 1)[0]
}

func text(body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body)}
}

func inSession(id, body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), SessionID: to.Ptr(id)}
}

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	var texts []string
	for _, message := range messages {
		texts = append(texts, string(message.Body))
	}
	return texts
}

func closeIt(ctx context.Context, link interface{ Close(context.Context) error }) {
	check(link.Close(ctx))
}
