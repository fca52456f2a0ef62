package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// shown writes settings out: most are pointers.
func shown(settings any) string { return string(must(json.Marshal(settings))) }

func expectSame(what string, got, want any) {
	expect(reflect.DeepEqual(got, want), "%s:\n got %s\nwant %s", what, shown(got), shown(want))
}

// all reads a list to its end.
func all[Page, Item any](ctx context.Context, pager *runtime.Pager[Page], items func(Page) []Item) []Item {
	var found []Item
	for pager.More() {
		found = append(found, items(must(pager.NextPage(ctx)))...)
	}
	return found
}

func adminQueues(ctx context.Context, b *broker) {
	target := b.queue(ctx, "admin-queues-target", nil)
	name := b.name("admin-queues")
	want := admin.QueueProperties{
		LockDuration:                        to.Ptr("PT45S"),
		MaxSizeInMegabytes:                  to.Ptr(int32(2048)),
		RequiresDuplicateDetection:          to.Ptr(true),
		RequiresSession:                     to.Ptr(false),
		DefaultMessageTimeToLive:            to.Ptr("P1DT2H3M4S"),
		DeadLetteringOnMessageExpiration:    to.Ptr(true),
		DuplicateDetectionHistoryTimeWindow: to.Ptr("PT7M"),
		MaxDeliveryCount:                    to.Ptr(int32(7)),
		EnableBatchedOperations:             to.Ptr(false),
		Status:                              to.Ptr(admin.EntityStatusActive),
		AutoDeleteOnIdle:                    to.Ptr("PT1H"),
		EnablePartitioning:                  to.Ptr(false),
		ForwardTo:                           to.Ptr(target),
		ForwardDeadLetteredMessagesTo:       to.Ptr(target),
		UserMetadata:                        to.Ptr("<made by> & for a test"),
	}
	created := must(b.admin.CreateQueue(ctx, name, &admin.CreateQueueOptions{Properties: &want}))
	// What the service adds: the largest message that the tier allows, and forwarding by the whole address.
	want.MaxMessageSizeInKilobytes = created.MaxMessageSizeInKilobytes
	for _, address := range []*string{created.ForwardTo, created.ForwardDeadLetteredMessagesTo} {
		expect(address != nil && strings.HasSuffix(*address, "/"+target), "it forwards to %s", shown(created))
	}
	want.ForwardTo, want.ForwardDeadLetteredMessagesTo = created.ForwardTo, created.ForwardDeadLetteredMessagesTo
	expectSame("what was made", created.QueueProperties, want)
	expect(created.QueueName == name, "it is called %s", created.QueueName)
	got := must(b.admin.GetQueue(ctx, name, nil))
	expectSame("what is there", got.QueueProperties, want)

	for _, scheme := range []string{"https", "http", "sb"} {
		// An address comes back as it was given.
		given := to.Ptr(scheme + strings.TrimPrefix(*created.ForwardTo, "sb"))
		want.ForwardTo, want.ForwardDeadLetteredMessagesTo = given, given
		expectSame("addresses", must(b.admin.UpdateQueue(ctx, name, want, nil)).QueueProperties, want)
		expectSame("addresses got", must(b.admin.GetQueue(ctx, name, nil)).QueueProperties, want)
	}
	want.ForwardTo = to.Ptr("https://elsewhere.example/" + target)
	_, err := b.admin.UpdateQueue(ctx, name, want, nil)
	expect(status(err) == http.StatusBadRequest, "a forward to another host: %v", err)

	want.LockDuration, want.MaxDeliveryCount = to.Ptr("PT1M"), to.Ptr(int32(3))
	want.Status, want.UserMetadata = to.Ptr(admin.EntityStatusSendDisabled), to.Ptr("changed")
	want.ForwardTo, want.ForwardDeadLetteredMessagesTo = nil, nil
	expectSame("what was changed", must(b.admin.UpdateQueue(ctx, name, want, nil)).QueueProperties, want)

	sessions := admin.QueueProperties{RequiresSession: to.Ptr(true), EnablePartitioning: to.Ptr(true)}
	partitioned := must(b.admin.CreateQueue(ctx, name+"-2", &admin.CreateQueueOptions{Properties: &sessions}))
	expect(*partitioned.RequiresSession && *partitioned.EnablePartitioning, "made %s", shown(partitioned))

	var listed []string
	for _, queue := range all(ctx, b.admin.NewListQueuesPager(nil), func(page admin.ListQueuesResponse) []admin.QueueItem { return page.Queues }) {
		if strings.HasPrefix(queue.QueueName, name) {
			listed = append(listed, queue.QueueName)
		}
		if queue.QueueName == name {
			expectSame("what is listed", queue.QueueProperties, want)
		}
	}
	expectSame("the list", listed, []string{name, name + "-2", target})

	_, err = b.admin.CreateQueue(ctx, name, nil)
	expect(status(err) == http.StatusConflict, "to make it again: %v", err)
	_, err = b.admin.CreateQueue(ctx, name+"-3", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: to.Ptr("PT6M")}})
	expect(status(err) == http.StatusBadRequest, "a lock of six minutes: %v", err)
	must(b.admin.DeleteQueue(ctx, name, nil))
	missing := must(b.admin.GetQueue(ctx, name, nil))
	expect(missing == nil, "a queue is there after it was deleted")
	_, err = b.admin.UpdateQueue(ctx, name, want, nil)
	expect(status(err) == http.StatusNotFound, "to change what is missing: %v", err)
	_, err = b.admin.DeleteQueue(ctx, name, nil)
	expect(status(err) == http.StatusNotFound, "to delete what is missing: %v", err)
}

func adminTopics(ctx context.Context, b *broker) {
	name := b.name("admin-topics")
	want := admin.TopicProperties{
		MaxSizeInMegabytes:                  to.Ptr(int32(3072)),
		RequiresDuplicateDetection:          to.Ptr(true),
		DefaultMessageTimeToLive:            to.Ptr("P2D"),
		DuplicateDetectionHistoryTimeWindow: to.Ptr("PT9M"),
		EnableBatchedOperations:             to.Ptr(false),
		Status:                              to.Ptr(admin.EntityStatusActive),
		AutoDeleteOnIdle:                    to.Ptr("P1D"),
		EnablePartitioning:                  to.Ptr(false),
		SupportOrdering:                     to.Ptr(true),
		UserMetadata:                        to.Ptr("topic"),
	}
	created := must(b.admin.CreateTopic(ctx, name, &admin.CreateTopicOptions{Properties: &want}))
	want.MaxMessageSizeInKilobytes = created.MaxMessageSizeInKilobytes
	expectSame("what was made", created.TopicProperties, want)
	expect(created.TopicName == name, "it is called %s", created.TopicName)
	expectSame("what is there", must(b.admin.GetTopic(ctx, name, nil)).TopicProperties, want)

	want.DefaultMessageTimeToLive, want.UserMetadata = to.Ptr("PT3H"), to.Ptr("changed")
	want.Status = to.Ptr(admin.EntityStatusSendDisabled)
	expectSame("what was changed", must(b.admin.UpdateTopic(ctx, name, want, nil)).TopicProperties, want)

	found := false
	for _, topic := range all(ctx, b.admin.NewListTopicsPager(nil), func(page admin.ListTopicsResponse) []admin.TopicItem { return page.Topics }) {
		if topic.TopicName == name {
			found = true
			expectSame("what is listed", topic.TopicProperties, want)
		}
	}
	expect(found, "it is not in the list")

	_, err := b.admin.CreateTopic(ctx, name, nil)
	expect(status(err) == http.StatusConflict, "to make it again: %v", err)
	_, err = b.admin.CreateQueue(ctx, name, nil)
	expect(status(err) == http.StatusConflict, "to make a queue of its name: %v", err)
	must(b.admin.DeleteTopic(ctx, name, nil))
	missing := must(b.admin.GetTopic(ctx, name, nil))
	expect(missing == nil, "a topic is there after it was deleted")
	_, err = b.admin.UpdateTopic(ctx, name, want, nil)
	expect(status(err) == http.StatusNotFound, "to change what is missing: %v", err)
	_, err = b.admin.DeleteTopic(ctx, name, nil)
	expect(status(err) == http.StatusNotFound, "to delete what is missing: %v", err)
}

func adminSubscriptions(ctx context.Context, b *broker) {
	target := b.queue(ctx, "admin-subscriptions-target", nil)
	topic := b.topic(ctx, "admin-subscriptions", "other")
	want := admin.SubscriptionProperties{
		LockDuration:                                    to.Ptr("PT50S"),
		RequiresSession:                                 to.Ptr(false),
		DefaultMessageTimeToLive:                        to.Ptr("PT2H"),
		DeadLetteringOnMessageExpiration:                to.Ptr(true),
		EnableDeadLetteringOnFilterEvaluationExceptions: to.Ptr(false),
		MaxDeliveryCount:                                to.Ptr(int32(5)),
		Status:                                          to.Ptr(admin.EntityStatusActive),
		AutoDeleteOnIdle:                                to.Ptr("PT2H"),
		ForwardTo:                                       to.Ptr(target),
		ForwardDeadLetteredMessagesTo:                   to.Ptr(target),
		EnableBatchedOperations:                         to.Ptr(false),
		UserMetadata:                                    to.Ptr("subscription"),
	}
	// The client never sends the status of a subscription, so there is nothing to change about it.
	created := must(b.admin.CreateSubscription(ctx, topic, "sub", &admin.CreateSubscriptionOptions{Properties: &want}))
	for _, address := range []*string{created.ForwardTo, created.ForwardDeadLetteredMessagesTo} {
		expect(address != nil && strings.HasSuffix(*address, "/"+target), "it forwards to %s", shown(created))
	}
	want.ForwardTo, want.ForwardDeadLetteredMessagesTo = created.ForwardTo, created.ForwardDeadLetteredMessagesTo
	want.DefaultRule = created.DefaultRule
	expectSame("what was made", created.SubscriptionProperties, want)
	expect(created.TopicName == topic && created.SubscriptionName == "sub", "it is %s of %s", created.SubscriptionName, created.TopicName)
	got := must(b.admin.GetSubscription(ctx, topic, "sub", nil)).SubscriptionProperties
	want.DefaultRule = got.DefaultRule
	expectSame("what is there", got, want)

	want.MaxDeliveryCount, want.UserMetadata = to.Ptr(int32(6)), to.Ptr("changed")
	want.ForwardTo, want.ForwardDeadLetteredMessagesTo, want.DefaultRule = nil, nil, nil
	changed := must(b.admin.UpdateSubscription(ctx, topic, "sub", want, nil)).SubscriptionProperties
	changed.DefaultRule = nil
	expectSame("what was changed", changed, want)

	var listed []string
	pager := b.admin.NewListSubscriptionsPager(topic, nil)
	for _, subscription := range all(ctx, pager, func(page admin.ListSubscriptionsResponse) []admin.SubscriptionPropertiesItem {
		return page.Subscriptions
	}) {
		listed = append(listed, subscription.SubscriptionName)
		if subscription.SubscriptionName == "sub" {
			subscription.DefaultRule = nil
			expectSame("what is listed", subscription.SubscriptionProperties, want)
		}
	}
	expectSame("the list", listed, []string{"other", "sub"})

	_, err := b.admin.CreateSubscription(ctx, topic, "sub", nil)
	expect(status(err) == http.StatusConflict, "to make it again: %v", err)
	_, err = b.admin.CreateSubscription(ctx, topic+"-missing", "sub", nil)
	expect(status(err) == http.StatusNotFound, "to make one of a topic that is missing: %v", err)
	must(b.admin.DeleteSubscription(ctx, topic, "sub", nil))
	missing := must(b.admin.GetSubscription(ctx, topic, "sub", nil))
	expect(missing == nil, "a subscription is there after it was deleted")
	_, err = b.admin.UpdateSubscription(ctx, topic, "sub", want, nil)
	expect(status(err) == http.StatusNotFound, "to change what is missing: %v", err)
	_, err = b.admin.DeleteSubscription(ctx, topic, "sub", nil)
	expect(status(err) == http.StatusNotFound, "to delete what is missing: %v", err)
}

func adminRules(ctx context.Context, b *broker) {
	topic := b.topic(ctx, "admin-rules", "sub")
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	// Numbers come back in the widest type.
	parameters := map[string]any{"@text": "<&>", "@whole": int64(12), "@part": 0.5, "@truth": true, "@time": at}
	want := []admin.RuleProperties{
		{Name: "all", Filter: &admin.TrueFilter{}},
		{Name: "none", Filter: &admin.FalseFilter{}},
		{Name: "sql", Filter: &admin.SQLFilter{Expression: "price > @whole AND name <> @text", Parameters: parameters},
			Action: &admin.SQLAction{Expression: "SET class = @text", Parameters: map[string]any{"@text": "dear"}}},
		{Name: "correlation", Filter: &admin.CorrelationFilter{
			ApplicationProperties: map[string]any{"text": "<&>", "whole": int64(12), "truth": true},
			ContentType:           to.Ptr("text/plain"),
			CorrelationID:         to.Ptr("correlation"),
			MessageID:             to.Ptr("id"),
			ReplyTo:               to.Ptr("reply-to"),
			ReplyToSessionID:      to.Ptr("reply-to-session"),
			SessionID:             to.Ptr("session"),
			Subject:               to.Ptr("subject"),
			To:                    to.Ptr("to"),
		}},
	}
	byName := map[string]admin.RuleProperties{}
	for _, rule := range want {
		created := must(b.admin.CreateRule(ctx, topic, "sub", &admin.CreateRuleOptions{Name: &rule.Name, Filter: rule.Filter, Action: rule.Action}))
		expectSame("what was made", created.RuleProperties, rule)
		expectSame("what is there", must(b.admin.GetRule(ctx, topic, "sub", rule.Name, nil)).RuleProperties, rule)
		byName[rule.Name] = rule
	}
	changed := admin.RuleProperties{Name: "sql", Filter: &admin.SQLFilter{Expression: "price < 1"}}
	expectSame("what was changed", must(b.admin.UpdateRule(ctx, topic, "sub", changed)).RuleProperties, changed)
	byName["sql"] = changed
	byName["$Default"] = admin.RuleProperties{Name: "$Default", Filter: &admin.TrueFilter{}}

	listed := all(ctx, b.admin.NewListRulesPager(topic, "sub", nil), func(page admin.ListRulesResponse) []admin.RuleProperties { return page.Rules })
	expect(len(listed) == len(byName), "the list has %d rules instead of %d", len(listed), len(byName))
	for _, rule := range listed {
		expectSame("what is listed", rule, byName[rule.Name])
	}

	_, err := b.admin.CreateRule(ctx, topic, "sub", &admin.CreateRuleOptions{Name: to.Ptr("all")})
	expect(status(err) == http.StatusConflict, "to make it again: %v", err)
	_, err = b.admin.CreateRule(ctx, topic, "sub", &admin.CreateRuleOptions{Name: to.Ptr("wrong"), Filter: &admin.SQLFilter{Expression: "price >"}})
	expect(status(err) == http.StatusBadRequest, "a filter that is no SQL: %v", err)
	must(b.admin.DeleteRule(ctx, topic, "sub", "all", nil))
	missing := must(b.admin.GetRule(ctx, topic, "sub", "all", nil))
	expect(missing == nil, "a rule is there after it was deleted")
	_, err = b.admin.UpdateRule(ctx, topic, "sub", admin.RuleProperties{Name: "all", Filter: &admin.TrueFilter{}})
	expect(status(err) == http.StatusNotFound, "to change what is missing: %v", err)
	_, err = b.admin.DeleteRule(ctx, topic, "sub", "all", nil)
	expect(status(err) == http.StatusNotFound, "to delete what is missing: %v", err)
}

func adminRuntime(ctx context.Context, b *broker) {
	begun := time.Now().Add(-time.Minute) // the clocks of two machines differ
	queue := b.queue(ctx, "admin-runtime", nil)
	scheduled := text("scheduled")
	scheduled.ScheduledEnqueueTime = to.Ptr(time.Now().Add(time.Hour))
	b.send(ctx, queue, text("dead"), text("active"), text("active"), scheduled)
	receiver := b.receiver(queue, nil)
	defer closeIt(ctx, receiver)
	check(receiver.DeadLetterMessage(ctx, receiveOne(ctx, receiver), nil))

	figures := must(b.admin.GetQueueRuntimeProperties(ctx, queue, nil))
	expect(figures.ActiveMessageCount == 2 && figures.ScheduledMessageCount == 1 && figures.DeadLetterMessageCount == 1 &&
		figures.TotalMessageCount == 4 && figures.TransferMessageCount == 0 && figures.TransferDeadLetterMessageCount == 0,
		"the counts are %s", shown(figures))
	expect(figures.SizeInBytes > 0, "it has %d bytes", figures.SizeInBytes)
	for _, when := range []time.Time{figures.CreatedAt, figures.UpdatedAt, figures.AccessedAt} {
		expect(when.After(begun) && when.Before(time.Now().Add(time.Minute)), "the times are %s", shown(figures))
	}
	found := false
	queues := b.admin.NewListQueuesRuntimePropertiesPager(nil)
	for _, item := range all(ctx, queues, func(page admin.ListQueuesRuntimePropertiesResponse) []admin.QueueRuntimePropertiesItem {
		return page.QueueRuntimeProperties
	}) {
		if item.QueueName == queue {
			found = true
			expect(item.TotalMessageCount == 4, "listed is %s", shown(item))
		}
	}
	expect(found, "the queue is not in the list")

	topic := b.topic(ctx, "admin-runtime-topic", "one", "two")
	must(b.admin.CreateRule(ctx, topic, "one", &admin.CreateRuleOptions{Name: to.Ptr("more"), Filter: &admin.CorrelationFilter{Subject: to.Ptr("x")}}))
	b.send(ctx, topic, text("news"), scheduled)
	ofTopic := must(b.admin.GetTopicRuntimeProperties(ctx, topic, nil))
	expect(ofTopic.SubscriptionCount == 2 && ofTopic.ScheduledMessageCount == 1 && ofTopic.SizeInBytes > 0 &&
		ofTopic.SQLFilterCount == 2 && ofTopic.CorrelationFilterCount == 1 && ofTopic.CreatedAt.After(begun),
		"the topic's figures are %s", shown(ofTopic))
	topics := b.admin.NewListTopicsRuntimePropertiesPager(nil)
	found = false
	for _, item := range all(ctx, topics, func(page admin.ListTopicsRuntimePropertiesResponse) []admin.TopicRuntimePropertiesItem {
		return page.TopicRuntimeProperties
	}) {
		found = found || item.TopicName == topic && item.SubscriptionCount == 2
	}
	expect(found, "the topic is not in the list with its two subscriptions")

	ofSubscription := must(b.admin.GetSubscriptionRuntimeProperties(ctx, topic, "one", nil))
	expect(ofSubscription.ActiveMessageCount == 1 && ofSubscription.TotalMessageCount == 1 && ofSubscription.DeadLetterMessageCount == 0 &&
		ofSubscription.CreatedAt.After(begun) && ofSubscription.UpdatedAt.After(begun) && ofSubscription.AccessedAt.After(begun),
		"the subscription's figures are %s", shown(ofSubscription))
	subscriptions := b.admin.NewListSubscriptionsRuntimePropertiesPager(topic, nil)
	for _, item := range all(ctx, subscriptions, func(page admin.ListSubscriptionsRuntimePropertiesResponse) []admin.SubscriptionRuntimePropertiesItem {
		return page.SubscriptionRuntimeProperties
	}) {
		expect(item.TopicName == topic && item.ActiveMessageCount == 1, "listed is %s", shown(item))
	}
}

func adminPaging(ctx context.Context, b *broker) {
	const count = 250
	name := func(i int) string { return b.name(fmt.Sprintf("page-%03d", i)) }
	var made sync.WaitGroup
	errs := make(chan error, count)
	for worker := range 10 {
		made.Go(func() {
			for i := worker; i < count; i += 10 {
				_, err := b.admin.CreateQueue(ctx, name(i), nil)
				errs <- err
			}
		})
	}
	made.Wait()
	for range count {
		check(<-errs)
	}
	for _, size := range []int32{0, 30} { // 0 = as the service likes it
		seen := map[string]int{}
		pager := b.admin.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: size})
		for _, queue := range all(ctx, pager, func(page admin.ListQueuesResponse) []admin.QueueItem { return page.Queues }) {
			seen[queue.QueueName]++
		}
		for i := range count {
			expect(seen[name(i)] == 1, "with pages of %d, %s is %d times in the list", size, name(i), seen[name(i)])
		}
	}
}

func adminAuthorization(ctx context.Context, b *broker) {
	const key, second = "c2VuZGVycyBmaXJzdCBrZXkgaXMgbm8gc2VjcmV0ISE=", "c2VuZGVycyBzZWNvbmQga2V5IGlzIG5vIHNlY3JldCE="
	queue := b.queue(ctx, "admin-authorization", &admin.QueueProperties{AuthorizationRules: []admin.AuthorizationRule{{
		AccessRights: []admin.AccessRight{admin.AccessRightSend},
		KeyName:      to.Ptr("sender"),
		PrimaryKey:   to.Ptr(key),
		SecondaryKey: to.Ptr(second),
	}}})
	got := must(b.admin.GetQueue(ctx, queue, nil)).AuthorizationRules
	expect(len(got) == 1 && *got[0].KeyName == "sender" && *got[0].PrimaryKey == key && *got[0].SecondaryKey == second &&
		reflect.DeepEqual(got[0].AccessRights, []admin.AccessRight{admin.AccessRightSend}), "the rules are %s", shown(got))

	for _, by := range []string{key, second} {
		client := b.connect(ctx, b.connectionString("sender", by), b.options())
		sender := must(client.NewSender(queue, nil))
		check(sender.SendMessage(ctx, text("by its key"), nil))
		_, err := must(client.NewReceiverForQueue(queue, nil)).ReceiveMessages(ctx, 1, nil)
		expect(code(err) == azservicebus.CodeUnauthorizedAccess, "a receive: %v", err)
	}
}

func adminNamespace(ctx context.Context, b *broker) {
	namespace := must(b.admin.GetNamespaceProperties(ctx, nil))
	expect(namespace.Name != "", "the namespace has no name")
	expect(namespace.SKU == "Standard", "its tier is %s", namespace.SKU)
	expect(!namespace.CreatedTime.IsZero() && !namespace.ModifiedTime.IsZero(), "its times are %s", shown(namespace))
}
