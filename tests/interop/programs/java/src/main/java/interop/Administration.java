package interop;

import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EmptyRuleAction;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;
import reactor.core.publisher.Flux;

/** The administration client. Times to live and windows are whole seconds, as in Azure's own examples. */
final class Administration {
    /** The longest time span of .NET, in 100 ns. */
    private static final Duration UNLIMITED = Duration.ofSeconds(922_337_203_685L, 477_580_700);

    private final Broker broker;
    private final ServiceBusAdministrationClient client;

    Administration(Broker broker) {
        this.broker = broker;
        this.client = broker.administration;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("admin-queues", this::queues);
        features.put("admin-topics", this::topics);
        features.put("admin-subscriptions", this::subscriptions);
        features.put("admin-rules", this::rules);
        features.put("admin-runtime", this::runtime);
        features.put("admin-paging", this::paging);
        features.put("admin-authorization", this::authorization);
        features.put("admin-namespace", this::namespace);
    }

    private void queues() {
        String name = broker.name("admin-queue");
        String target = broker.queue("admin-queue-target");
        Map<String, Object> settings = settings(client.createQueue(name, new CreateQueueOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(3))
            .setBatchedOperationsEnabled(false)
            .setDeadLetteringOnMessageExpiration(true)
            .setDefaultMessageTimeToLive(Duration.ofDays(2))
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(5))
            .setDuplicateDetectionRequired(true)
            .setForwardDeadLetteredMessagesTo(target)
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setMaxSizeInMegabytes(2048)
            .setPartitioningEnabled(false)
            .setSessionRequired(false)
            .setStatus(EntityStatus.RECEIVE_DISABLED)
            .setUserMetadata("<made> & \"tried\" by Java")));
        Map<String, Object> expected = new TreeMap<>(Map.of(
            "autoDeleteOnIdle", Duration.ofHours(3), "batchedOperations", false, "deadLettering", true,
            "timeToLive", Duration.ofDays(2), "window", Duration.ofMinutes(5), "duplicateDetection", true,
            "lockDuration", Duration.ofSeconds(45), "maxDeliveryCount", 7, "maxSize", 2048L, "session", false));
        expected.putAll(Map.of("status", EntityStatus.RECEIVE_DISABLED, "metadata", "<made> & \"tried\" by Java",
            "partitioning", false, "forwardTo", "", "forwardDeadLetteredTo", target));
        Check.equal(expected, settings, "what was created");
        QueueProperties queue = client.getQueue(name);
        Check.equal(expected, settings(queue), "what is got");

        Check.fails(ResourceExistsException.class, "creating it again", () -> client.createQueue(name));
        client.updateQueue(queue.setForwardTo(target)
            .setForwardDeadLetteredMessagesTo(null)
            .setLockDuration(Duration.ofSeconds(20))
            .setMaxDeliveryCount(3)
            .setStatus(EntityStatus.ACTIVE)
            .setUserMetadata("changed"));
        expected.putAll(Map.of("forwardTo", target, "forwardDeadLetteredTo", "", "lockDuration",
            Duration.ofSeconds(20), "maxDeliveryCount", 3, "status", EntityStatus.ACTIVE, "metadata", "changed"));
        Check.equal(expected, settings(client.getQueue(name)), "what was updated");
        String address = client.getQueue(name).getForwardTo();
        for (String scheme : List.of("https", "http")) {
            String given = scheme + address.substring(address.indexOf("://"));
            client.updateQueue(client.getQueue(name).setForwardTo(given).setForwardDeadLetteredMessagesTo(given));
            QueueProperties asGiven = client.getQueue(name);
            Check.equal(given, asGiven.getForwardTo(), "the address of a forward");
            Check.equal(given, asGiven.getForwardDeadLetteredMessagesTo(), "the address of a forward of dead letters");
        }
        Check.that(client.listQueues().stream().anyMatch(one -> one.getName().equals(name)), "it is listed");
        Check.that(client.getQueueExists(name), "it exists");

        client.deleteQueue(name);
        Check.that(!client.getQueueExists(name), "it is gone after it was deleted");
        Check.fails(ResourceNotFoundException.class, "getting what is gone", () -> client.getQueue(name));
        Check.fails(ResourceNotFoundException.class, "updating what is gone", () -> client.updateQueue(queue));
        Check.fails(ResourceNotFoundException.class, "deleting what is gone", () -> client.deleteQueue(name));
        var refused = Check.fails(HttpResponseException.class, "a lock of an hour",
            () -> client.createQueue(name, new CreateQueueOptions().setLockDuration(Duration.ofHours(1))));
        Check.equal(400, refused.getResponse().getStatusCode(), "the status of a lock of an hour");
    }

    private static Map<String, Object> settings(QueueProperties queue) {
        Map<String, Object> settings = new TreeMap<>();
        settings.put("autoDeleteOnIdle", queue.getAutoDeleteOnIdle());
        settings.put("batchedOperations", queue.isBatchedOperationsEnabled());
        settings.put("deadLettering", queue.isDeadLetteringOnMessageExpiration());
        settings.put("timeToLive", queue.getDefaultMessageTimeToLive());
        settings.put("window", queue.getDuplicateDetectionHistoryTimeWindow());
        settings.put("duplicateDetection", queue.isDuplicateDetectionRequired());
        settings.put("lockDuration", queue.getLockDuration());
        settings.put("maxDeliveryCount", queue.getMaxDeliveryCount());
        settings.put("maxSize", queue.getMaxSizeInMegabytes());
        settings.put("session", queue.isSessionRequired());
        settings.put("status", queue.getStatus());
        settings.put("metadata", queue.getUserMetadata());
        settings.put("partitioning", queue.isPartitioningEnabled());
        settings.put("forwardTo", entity(queue.getForwardTo()));
        settings.put("forwardDeadLetteredTo", entity(queue.getForwardDeadLetteredMessagesTo()));
        return settings;
    }

    /** The name in the address of a target; Azure answers with the whole address. */
    private static String entity(String address) {
        return address == null ? "" : address.substring(address.lastIndexOf('/') + 1);
    }

    private void topics() {
        String name = broker.name("admin-topic");
        Map<String, Object> settings = settings(client.createTopic(name, new CreateTopicOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(3))
            .setBatchedOperationsEnabled(false)
            .setDefaultMessageTimeToLive(Duration.ofDays(2))
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(5))
            .setDuplicateDetectionRequired(true)
            .setMaxSizeInMegabytes(2048)
            .setOrderingSupported(true)
            .setPartitioningEnabled(false)
            .setStatus(EntityStatus.SEND_DISABLED)
            .setUserMetadata("made by Java")));
        Map<String, Object> expected = new TreeMap<>(Map.of(
            "autoDeleteOnIdle", Duration.ofHours(3), "batchedOperations", false, "timeToLive", Duration.ofDays(2),
            "window", Duration.ofMinutes(5), "duplicateDetection", true, "maxSize", 2048L, "ordering", true,
            "partitioning", false, "status", EntityStatus.SEND_DISABLED, "metadata", "made by Java"));
        Check.equal(expected, settings, "what was created");
        TopicProperties topic = client.getTopic(name);
        Check.equal(expected, settings(topic), "what is got");

        Check.fails(ResourceExistsException.class, "creating it again", () -> client.createTopic(name));
        client.updateTopic(topic.setDefaultMessageTimeToLive(Duration.ofDays(1))
            .setStatus(EntityStatus.ACTIVE)
            .setUserMetadata("changed"));
        expected.putAll(Map.of("timeToLive", Duration.ofDays(1), "status", EntityStatus.ACTIVE, "metadata", "changed"));
        Check.equal(expected, settings(client.getTopic(name)), "what was updated");
        Check.that(client.listTopics().stream().anyMatch(one -> one.getName().equals(name)), "it is listed");
        Check.that(client.getTopicExists(name), "it exists");

        client.deleteTopic(name);
        Check.that(!client.getTopicExists(name), "it is gone after it was deleted");
        Check.fails(ResourceNotFoundException.class, "getting what is gone", () -> client.getTopic(name));
        Check.fails(ResourceNotFoundException.class, "updating what is gone", () -> client.updateTopic(topic));
        Check.fails(ResourceNotFoundException.class, "deleting what is gone", () -> client.deleteTopic(name));
    }

    private static Map<String, Object> settings(TopicProperties topic) {
        Map<String, Object> settings = new TreeMap<>();
        settings.put("autoDeleteOnIdle", topic.getAutoDeleteOnIdle());
        settings.put("batchedOperations", topic.isBatchedOperationsEnabled());
        settings.put("timeToLive", topic.getDefaultMessageTimeToLive());
        settings.put("window", topic.getDuplicateDetectionHistoryTimeWindow());
        settings.put("duplicateDetection", topic.isDuplicateDetectionRequired());
        settings.put("maxSize", topic.getMaxSizeInMegabytes());
        settings.put("ordering", topic.isOrderingSupported());
        settings.put("partitioning", topic.isPartitioningEnabled());
        settings.put("status", topic.getStatus());
        settings.put("metadata", topic.getUserMetadata());
        return settings;
    }

    private void subscriptions() {
        String topic = client.createTopic(broker.name("admin-subscriptions")).getName();
        String target = broker.queue("admin-subscription-target");
        Map<String, Object> settings = settings(client.createSubscription(topic, "s", new CreateSubscriptionOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(3))
            .setBatchedOperationsEnabled(false)
            .setDeadLetteringOnMessageExpiration(true)
            .setDefaultMessageTimeToLive(Duration.ofDays(2))
            .setEnableDeadLetteringOnFilterEvaluationExceptions(false)
            .setForwardDeadLetteredMessagesTo(target)
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setSessionRequired(false)
            .setStatus(EntityStatus.RECEIVE_DISABLED)
            .setUserMetadata("made by Java")));
        Map<String, Object> expected = new TreeMap<>(Map.of(
            "autoDeleteOnIdle", Duration.ofHours(3), "batchedOperations", false, "deadLettering", true,
            "timeToLive", Duration.ofDays(2), "deadLetteringOnFilter", false, "lockDuration", Duration.ofSeconds(45),
            "maxDeliveryCount", 7, "session", false, "status", EntityStatus.RECEIVE_DISABLED));
        expected.putAll(Map.of("metadata", "made by Java", "forwardTo", "", "forwardDeadLetteredTo", target));
        Check.equal(expected, settings, "what was created");
        SubscriptionProperties subscription = client.getSubscription(topic, "s");
        Check.equal(expected, settings(subscription), "what is got");

        Check.fails(ResourceExistsException.class, "creating it again", () -> client.createSubscription(topic, "s"));
        Check.fails(ResourceNotFoundException.class, "creating one of a topic that is not there",
            () -> client.createSubscription(broker.name("not-there"), "s"));
        client.updateSubscription(subscription.setForwardTo(target)
            .setForwardDeadLetteredMessagesTo(null)
            .setLockDuration(Duration.ofSeconds(20))
            .setStatus(EntityStatus.ACTIVE)
            .setUserMetadata("changed"));
        // The client leaves the time to live out of an update, which sets it to the default.
        expected.putAll(Map.of("timeToLive", UNLIMITED, "forwardTo", target, "forwardDeadLetteredTo", "",
            "lockDuration", Duration.ofSeconds(20), "status", EntityStatus.ACTIVE, "metadata", "changed"));
        Check.equal(expected, settings(client.getSubscription(topic, "s")), "what was updated");
        Check.equal(List.of("s"),
            client.listSubscriptions(topic).stream().map(SubscriptionProperties::getSubscriptionName).toList(),
            "what is listed");
        Check.that(client.getSubscriptionExists(topic, "s"), "it exists");

        client.deleteSubscription(topic, "s");
        Check.that(!client.getSubscriptionExists(topic, "s"), "it is gone after it was deleted");
        Check.fails(ResourceNotFoundException.class, "getting what is gone", () -> client.getSubscription(topic, "s"));
        Check.fails(ResourceNotFoundException.class, "deleting what is gone",
            () -> client.deleteSubscription(topic, "s"));
        throw new Check.Differs("`updateSubscription` never sends the default time-to-live, so every update of a "
            + "subscription makes it unlimited.");
    }

    private static Map<String, Object> settings(SubscriptionProperties subscription) {
        Map<String, Object> settings = new TreeMap<>();
        settings.put("autoDeleteOnIdle", subscription.getAutoDeleteOnIdle());
        settings.put("batchedOperations", subscription.isBatchedOperationsEnabled());
        settings.put("deadLettering", subscription.isDeadLetteringOnMessageExpiration());
        settings.put("deadLetteringOnFilter", subscription.isDeadLetteringOnFilterEvaluationExceptions());
        settings.put("timeToLive", subscription.getDefaultMessageTimeToLive());
        settings.put("lockDuration", subscription.getLockDuration());
        settings.put("maxDeliveryCount", subscription.getMaxDeliveryCount());
        settings.put("session", subscription.isSessionRequired());
        settings.put("status", subscription.getStatus());
        settings.put("metadata", subscription.getUserMetadata());
        settings.put("forwardTo", entity(subscription.getForwardTo()));
        settings.put("forwardDeadLetteredTo", entity(subscription.getForwardDeadLetteredMessagesTo()));
        return settings;
    }

    private void rules() {
        String topic = client.createTopic(broker.name("admin-rules")).getName();
        client.createSubscription(topic, "s");
        // The client sends every parameter and property as text, so only texts come back as they were.
        SqlRuleFilter sql = new SqlRuleFilter("price > 10 AND colour IN (@one, @other)");
        sql.getParameters().putAll(Map.of("@one", "red", "@other", "blue"));
        SqlRuleAction action = new SqlRuleAction("SET colour = @colour");
        action.getParameters().put("@colour", "<any>");
        CorrelationRuleFilter correlation = new CorrelationRuleFilter("c").setContentType("text/plain")
            .setLabel("label")
            .setMessageId("id")
            .setReplyTo("reply")
            .setReplyToSessionId("reply-session")
            .setSessionId("session")
            .setTo("to");
        correlation.getProperties().putAll(Map.of("colour", "red", "shape", "round & flat"));

        // With options the rule comes before the subscription, unlike in all other calls.
        client.createRule(topic, "sql", "s", new CreateRuleOptions(sql).setAction(action));
        client.createRule(topic, "correlation", "s", new CreateRuleOptions(correlation));
        client.createRule(topic, "always", "s", new CreateRuleOptions(new TrueRuleFilter()));
        client.createRule(topic, "never", "s", new CreateRuleOptions(new FalseRuleFilter()));

        RuleProperties found = client.getRule(topic, "s", "sql");
        SqlRuleFilter foundSql = (SqlRuleFilter) found.getFilter();
        Check.equal(sql.getSqlExpression(), foundSql.getSqlExpression(), "the SQL expression");
        Check.equal(sql.getParameters(), foundSql.getParameters(), "the parameters of the filter");
        SqlRuleAction foundAction = (SqlRuleAction) found.getAction();
        Check.equal(action.getSqlExpression(), foundAction.getSqlExpression(), "the expression of the action");
        Check.equal(action.getParameters(), foundAction.getParameters(), "the parameters of the action");
        CorrelationRuleFilter foundCorrelation =
            (CorrelationRuleFilter) client.getRule(topic, "s", "correlation").getFilter();
        Check.equal(correlation.getProperties(), foundCorrelation.getProperties(), "the properties of the filter");
        Check.equal(fields(correlation), fields(foundCorrelation), "the fields of the correlation filter");
        RuleProperties always = client.getRule(topic, "s", "always");
        Check.that(always.getFilter() instanceof TrueRuleFilter, "a true filter comes back");
        Check.that(always.getAction() instanceof EmptyRuleAction, "no action comes back as the empty one");
        Check.that(client.getRule(topic, "s", "never").getFilter() instanceof FalseRuleFilter,
            "a false filter comes back");

        Check.fails(ResourceExistsException.class, "creating it again", () -> client.createRule(topic, "s", "sql"));
        client.updateRule(topic, "s", found.setFilter(new SqlRuleFilter("price = 1")).setAction(new EmptyRuleAction()));
        Check.equal("price = 1", ((SqlRuleFilter) client.getRule(topic, "s", "sql").getFilter()).getSqlExpression(),
            "the SQL expression that was updated");
        Check.equal(Set.of("$Default", "sql", "correlation", "always", "never"),
            new HashSet<>(client.listRules(topic, "s").stream().map(RuleProperties::getName).toList()),
            "what is listed");
        client.deleteRule(topic, "s", "sql");
        Check.fails(ResourceNotFoundException.class, "getting what is gone", () -> client.getRule(topic, "s", "sql"));
        Check.fails(ResourceNotFoundException.class, "deleting what is gone",
            () -> client.deleteRule(topic, "s", "sql"));
        var refused = Check.fails(HttpResponseException.class, "creating a rule that is no SQL",
            () -> client.createRule(topic, "bad", "s", new CreateRuleOptions(new SqlRuleFilter("price >"))));
        Check.equal(400, refused.getResponse().getStatusCode(), "the status of a rule that is no SQL");
    }

    private static List<String> fields(CorrelationRuleFilter filter) {
        return List.of(filter.getCorrelationId(), filter.getContentType(), filter.getLabel(), filter.getMessageId(),
            filter.getReplyTo(), filter.getReplyToSessionId(), filter.getSessionId(), filter.getTo());
    }

    private void runtime() {
        OffsetDateTime start = OffsetDateTime.now().minusSeconds(2);
        String queue = broker.queue("admin-runtime");
        String topic = client.createTopic(broker.name("admin-runtime-topic")).getName();
        client.createSubscription(topic, "s");
        var connection = broker.client();
        try (var sender = Broker.sender(connection, queue);
            var receiver = Broker.receiver(connection, queue);
            var publisher = connection.sender().topicName(topic).buildClient()) {
            sender.sendMessages(Broker.numbered(4));
            receiver.deadLetter(Broker.one(receiver));
            sender.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusHours(1));
            publisher.sendMessages(Broker.numbered(2));
            publisher.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusHours(1));
        }
        var ofQueue = client.getQueueRuntimeProperties(queue);
        Check.equal(List.of(3, 1, 1, 0, 0),
            List.of(ofQueue.getActiveMessageCount(), ofQueue.getDeadLetterMessageCount(),
                ofQueue.getScheduledMessageCount(), ofQueue.getTransferMessageCount(),
                ofQueue.getTransferDeadLetterMessageCount()),
            "active, dead-letter, scheduled, transfer and transfer dead-letter messages of the queue");
        Check.equal(5L, ofQueue.getTotalMessageCount(), "all messages of the queue");
        Check.that(ofQueue.getSizeInBytes() > 0, "the queue has a size");
        for (OffsetDateTime time : List.of(ofQueue.getCreatedAt(), ofQueue.getUpdatedAt(), ofQueue.getAccessedAt())) {
            Check.that(time.isAfter(start) && time.isBefore(OffsetDateTime.now().plusSeconds(2)),
                "created, updated and accessed now; it says " + time);
        }
        var ofTopic = client.getTopicRuntimeProperties(topic);
        Check.equal(List.of(1, 1), List.of(ofTopic.getSubscriptionCount(), ofTopic.getScheduledMessageCount()),
            "subscriptions and scheduled messages of the topic");
        Check.that(ofTopic.getSizeInBytes() > 0, "the topic has a size");
        Check.that(ofTopic.getCreatedAt().isAfter(start), "the topic was created now");
        var ofSubscription = client.getSubscriptionRuntimeProperties(topic, "s");
        Check.equal(List.of(2, 0),
            List.of(ofSubscription.getActiveMessageCount(), ofSubscription.getDeadLetterMessageCount()),
            "active and dead-letter messages of the subscription");
        Check.equal(2L, ofSubscription.getTotalMessageCount(), "all messages of the subscription");
        Check.that(ofSubscription.getCreatedAt().isAfter(start), "the subscription was created now");
    }

    private void paging() {
        int count = 250;
        List<String> pages = IntStream.range(0, count).mapToObj(number -> broker.name("page-%03d".formatted(number))).toList();
        Flux.fromIterable(pages)
            .flatMap(broker.asynchronousAdministration::createQueue, 8)
            .blockLast(Duration.ofSeconds(25));
        List<String> names = client.listQueues()
            .stream()
            .map(QueueProperties::getName)
            .filter(pages::contains)
            .sorted()
            .toList();
        Check.equal(pages, names, "the names that are listed");
    }

    private void authorization() {
        CreateQueueOptions options = new CreateQueueOptions();
        options.getAuthorizationRules().add(new SharedAccessAuthorizationRule("send-only", List.of(AccessRights.SEND)));
        String queue = client.createQueue(broker.name("admin-authorization"), options).getName();
        var rules = client.getQueue(queue).getAuthorizationRules();
        Check.equal(1, rules.size(), "the number of rules");
        var rule = rules.get(0);
        Check.equal("send-only", rule.getKeyName(), "the name of the rule");
        Check.equal(List.of(AccessRights.SEND), rule.getAccessRights(), "the rights of the rule");
        Check.equal("SharedAccessKey", rule.getClaimType(), "the type of the claim");
        Check.that(!rule.getPrimaryKey().isEmpty() && !rule.getPrimaryKey().equals(rule.getSecondaryKey()),
            "two keys were made");
        for (String key : List.of(rule.getPrimaryKey(), rule.getSecondaryKey())) {
            var connection = broker.client(broker.connectionString("send-only", key) + ";EntityPath=" + queue);
            try (var sender = Broker.sender(connection, queue); var receiver = Broker.receiver(connection, queue)) {
                sender.sendMessage(new ServiceBusMessage("allowed"));
                Connections.terminated(AmqpErrorCondition.UNAUTHORIZED_ACCESS, "receiving with a rule that may only send",
                    () -> receiver.receiveMessages(1, Broker.SOON).stream().count());
            }
        }
        Check.equal(2, client.getQueueRuntimeProperties(queue).getActiveMessageCount(), "the number of messages sent");
    }

    private void namespace() {
        var properties = client.getNamespaceProperties();
        Check.that(!properties.getName().isEmpty(), "the namespace has a name");
        Check.equal("Standard", properties.getMessagingSku().toString(), "the tier");
        Check.equal("Messaging", properties.getNamespaceType().toString(), "the type of the namespace");
        Check.that(properties.getCreatedTime().isBefore(OffsetDateTime.now().plusSeconds(2)), "it was created once");
    }
}
