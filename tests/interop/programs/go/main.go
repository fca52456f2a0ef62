// Command interop shows what azservicebus and its admin package do with a broker that speaks Service Bus.
//
// It reads one JSON line a feature from standard input, and answers one on standard output; see broker.go for the
// environment, and for what had to be done beyond the connection string. AZURE_SDK_GO_LOGGING=all in the environment
// makes the client write down on standard error what it does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// No feature may take longer; what a client waits for here are locks of 5 s and a restart of the broker.
const featureLimit = 28 * time.Second

// A feature shows one row of features.toml. It returns when it worked, and panics with an outcome when it did not.
type feature func(ctx context.Context, b *broker)

var features = map[string]feature{
	"amqp-plain":     amqpPlain,
	"amqp-tls":       amqpTLS,
	"websocket":      webSocket,
	"wrong-key":      wrongKey,
	"missing-entity": missingEntity,
	"missing-right":  missingRight,
	"reconnect":      reconnect,

	"send":         send,
	"properties":   properties,
	"batch":        batch,
	"large":        large,
	"huge":         huge, // no row of features.toml: see test_large.py
	"largest":      largest,
	"schedule":     schedule,
	"time-to-live": timeToLive,
	"duplicates":   duplicates,

	"send-footers":    sendFooters,
	"receive-footers": receiveFooters,

	"receive-and-delete": receiveAndDelete,
	"complete":           complete,
	"abandon":            abandon,
	"dead-letter":        deadLetter,
	"defer":              deferMessage,
	"many-deferred":      manyDeferred,
	"renew-lock":         renewLock,
	"lock-lost":          lockLost,
	"peek":               peek,
	"purge":              lacking("It cannot delete messages in a batch."),
	"push":               lacking("It has no processor: an application calls `ReceiveMessages` in a loop."),

	"session":       session,
	"next-session":  nextSession,
	"session-state": sessionState,
	"renew-session": renewSession,

	"subscriptions": subscriptions,
	"rules":         rules,
	"rule-manager":  lacking("It manages rules only with the administration client."),

	"transaction":  lacking("It has no transactions."),
	"cross-entity": lacking("It has no transactions."),

	"admin-queues":        adminQueues,
	"admin-topics":        adminTopics,
	"admin-subscriptions": adminSubscriptions,
	"admin-rules":         adminRules,
	"admin-runtime":       adminRuntime,
	"admin-paging":        adminPaging,
	"admin-authorization": adminAuthorization,
	"admin-namespace":     adminNamespace,
}

// An outcome is the answer to one request.
type outcome struct {
	Feature string `json:"feature"`
	Status  string `json:"status"`
	How     string `json:"how,omitempty"`
	Error   string `json:"error,omitempty"`
}

// lacking makes a feature that the client does not offer; `how` completes "the client ...".
func lacking(how string) feature {
	return func(context.Context, *broker) { panic(outcome{Status: "not offered", How: how}) }
}

// check ends the feature as failed if there is an error.
func check(err error) {
	if err != nil {
		panic(outcome{Status: "failed", Error: fmt.Sprintf("%s: %v", caller(), err)})
	}
}

// must gives what a call returned, or ends the feature as failed.
func must[T any](value T, err error) T {
	if err != nil {
		panic(outcome{Status: "failed", Error: fmt.Sprintf("%s: %v", caller(), err)})
	}
	return value
}

// expect ends the feature as failed, with a sentence, if something is not as it has to be.
func expect(holds bool, format string, values ...any) {
	if !holds {
		panic(outcome{Status: "failed", Error: fmt.Sprintf("%s: "+format, append([]any{caller()}, values...)...)})
	}
}

func caller() string {
	_, file, line, _ := runtime.Caller(2)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

// run tries one feature, within its time.
func run(name string, b *broker) outcome {
	shows, known := features[name]
	if !known {
		return outcome{Feature: name, Status: "failed", Error: "the program knows no such feature"}
	}
	answers := make(chan outcome, 1)
	ctx, cancel := context.WithTimeout(context.Background(), featureLimit)
	defer cancel()
	go func() {
		answer := outcome{Status: "works"}
		defer func() {
			if cause := recover(); cause != nil {
				var isOutcome bool
				if answer, isOutcome = cause.(outcome); !isOutcome {
					answer = outcome{Status: "failed", Error: fmt.Sprint(cause)}
				}
			}
			answers <- answer
		}()
		shows(ctx, b)
	}()
	var answer outcome
	select {
	case answer = <-answers:
	case <-time.After(featureLimit + time.Second): // a call that does not listen to its context
		answer = outcome{Status: "failed", Error: fmt.Sprintf("did not end within %v", featureLimit)}
	}
	answer.Feature = name
	return answer
}

// The harness at the other end of standard input and output.
type harness struct {
	requests *bufio.Scanner
	answers  *json.Encoder
}

// ask has the harness do something to the broker, and returns when it is done.
func (h *harness) ask(what string) {
	check(h.answers.Encode(map[string]string{"ask": what}))
	var reply struct{ Done string }
	if !h.requests.Scan() {
		check(errors.New("the harness went away"))
	}
	check(json.Unmarshal(h.requests.Bytes(), &reply))
	expect(reply.Done == what, "asked for %q, and was told that %q is done", what, reply.Done)
}

func main() {
	h := &harness{bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)}
	b, err := newBroker(h)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for h.requests.Scan() {
		var request struct{ Feature string }
		if err := json.Unmarshal(h.requests.Bytes(), &request); err != nil {
			fmt.Fprintf(os.Stderr, "not a request: %s: %v\n", h.requests.Text(), err)
			os.Exit(2)
		}
		if err := h.answers.Encode(run(request.Feature, b)); err != nil {
			os.Exit(1)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.removeEntities(ctx)
	_ = b.client.Close(ctx) // nobody is left to be told
}
