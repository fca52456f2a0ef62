package interop;

import com.microsoft.azure.servicebus.ClientFactory;
import com.microsoft.azure.servicebus.IMessage;
import com.microsoft.azure.servicebus.IMessageReceiver;
import com.microsoft.azure.servicebus.IMessageSender;
import com.microsoft.azure.servicebus.IMessageSession;
import com.microsoft.azure.servicebus.Message;
import com.microsoft.azure.servicebus.ReceiveMode;
import com.microsoft.azure.servicebus.management.EntityNameHelper;
import com.microsoft.azure.servicebus.management.ManagementClient;
import com.microsoft.azure.servicebus.management.QueueDescription;
import com.microsoft.azure.servicebus.primitives.ConnectionStringBuilder;
import com.microsoft.azure.servicebus.primitives.MessagingFactory;
import com.microsoft.azure.servicebus.primitives.PayloadSizeExceededException;
import com.microsoft.azure.servicebus.primitives.ServiceBusException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * Tries the retired Java client, {@code com.microsoft.azure:azure-servicebus}, which names each delivery by 36 bytes.
 *
 * <p>It takes no port: run.sh leads its ports 5671 and 443 to the broker.
 */
public final class Main {
    private static final Duration SOON = Duration.ofSeconds(10);
    /** So long nothing has to come before "nothing comes" is believed. */
    private static final Duration NOTHING = Duration.ofMillis(500);

    private final ManagementClient management;
    private final MessagingFactory factory;
    private final String run = "java-retired-" + UUID.randomUUID().toString().substring(0, 8) + "-";
    private final List<String> queues = new ArrayList<>();
    private final List<String> topics = new ArrayList<>();

    private Main(String connectionString) throws Exception {
        var namespace = new ConnectionStringBuilder(connectionString);
        management = new ManagementClient(namespace);
        factory = MessagingFactory.createFromConnectionStringBuilder(namespace);
    }

    public static void main(String[] arguments) throws Exception {
        Main main = new Main(System.getenv("PEEKLOCK_TEST_CONNECTION_STRING"));
        Map<String, Program.Action> features = new LinkedHashMap<>();
        features.put("amqp-tls", main::complete);
        features.put("missing-entity", main::missingEntity);
        features.put("send", main::send);
        features.put("batch", main::batch);
        features.put("largest", main::largest);
        features.put("schedule", main::schedule);
        features.put("receive-and-delete", main::receiveAndDelete);
        features.put("complete", main::complete);
        features.put("abandon", main::abandon);
        features.put("dead-letter", main::deadLetter);
        features.put("defer", main::defer);
        features.put("many-deferred", main::manyDeferred);
        features.put("renew-lock", main::renewLock);
        features.put("peek", main::peek);
        features.put("session", main::session);
        features.put("next-session", main::nextSession);
        features.put("session-state", main::sessionState);
        features.put("renew-session", main::renewSession);
        features.put("subscriptions", main::subscriptions);
        features.put("transaction", main::transaction);
        features.put("cross-entity", main::crossEntity);
        try {
            Program.serve(features);
            main.removeEntities();
        } finally {
            System.exit(0); // the client's threads are not ours to end
        }
    }

    // Entities

    private String queue(String what, Consumer<QueueDescription> settings) throws Exception {
        QueueDescription description = new QueueDescription(run + what);
        settings.accept(description);
        management.createQueue(description);
        queues.add(description.getPath());
        return description.getPath();
    }

    private String queue(String what) throws Exception {
        return queue(what, description -> { });
    }

    private void removeEntities() throws Exception {
        for (String name : queues) {
            management.deleteQueue(name);
        }
        for (String name : topics) {
            management.deleteTopic(name);
        }
    }

    // Small moves

    private IMessageSender sender(String entity) throws Exception {
        return ClientFactory.createMessageSenderFromEntityPath(factory, entity);
    }

    private IMessageReceiver receiver(String entity) throws Exception {
        return ClientFactory.createMessageReceiverFromEntityPath(factory, entity, ReceiveMode.PEEKLOCK);
    }

    private void fill(String entity, int count) throws Exception {
        IMessageSender sender = sender(entity);
        for (int number = 0; number < count; number++) {
            sender.send(message(Integer.toString(number)));
        }
        sender.close();
    }

    private static Message message(String body) {
        Message message = new Message(body.getBytes(StandardCharsets.UTF_8));
        message.setMessageId(body);
        return message;
    }

    private static String body(IMessage message) {
        return new String(message.getMessageBody().getBinaryData().get(0), StandardCharsets.UTF_8);
    }

    private static IMessage one(IMessageReceiver receiver) throws Exception {
        IMessage message = receiver.receive(SOON);
        Program.that(message != null, "a message comes");
        return message;
    }

    private static void nothing(IMessageReceiver receiver) throws Exception {
        Program.equal(null, receiver.receive(NOTHING), "what is left to receive");
    }

    private List<String> bodies(String entity) throws Exception {
        IMessageReceiver receiver = receiver(entity);
        Collection<IMessage> seen = receiver.peekBatch(100);
        receiver.close();
        return seen == null ? List.of() : seen.stream().map(Main::body).toList();
    }

    // Features

    private void missingEntity() throws Exception {
        var error = Program.fails(ServiceBusException.class, "a sender to a queue that is not there",
            () -> sender(run + "not-there"));
        Program.that(error.getMessage().contains("could not be found"), "the error says so: " + error.getMessage());
    }

    private void send() throws Exception {
        String queue = queue("send");
        IMessageSender sender = sender(queue);
        Message sent = message("hello");
        sent.setLabel("greeting");
        sent.setProperties(Map.of("number", 7, "text", "seven"));
        sender.send(sent);
        IMessageReceiver receiver = receiver(queue);
        IMessage found = one(receiver);
        Program.equal("hello", body(found), "the body");
        Program.equal("hello", found.getMessageId(), "the message id");
        Program.equal("greeting", found.getLabel(), "the label");
        Program.equal(Map.of("number", 7, "text", "seven"), found.getProperties(), "the properties");
        receiver.complete(found.getLockToken());
        sender.close();
        receiver.close();
    }

    private void batch() throws Exception {
        String queue = queue("batch");
        List<String> expected = IntStream.range(0, 100).mapToObj(Integer::toString).toList();
        IMessageSender sender = sender(queue);
        sender.sendBatch(expected.stream().map(Main::message).toList());
        sender.close();
        Program.equal(expected, bodies(queue), "what arrived");
    }

    private void largest() throws Exception {
        String queue = queue("largest");
        byte[] body = new byte[sendUpToLimit(queue)];
        String topic = run + "largest-topic";
        management.createTopic(topic);
        topics.add(topic);
        management.createSubscription(topic, "all");
        for (ReceiveMode mode : ReceiveMode.values()) {
            send(topic, body);
            takeWhole(EntityNameHelper.formatSubscriptionPath(topic, "all"), body, mode);
            send(queue, body);
            IMessageReceiver receiver = receiver(queue);
            receiver.abandon(one(receiver).getLockToken(), Map.of("grown", "p".repeat(4000)));
            IMessage message = one(receiver);
            Program.equal(body.length, message.getMessageBody().getBinaryData().get(0).length, "the size that came back");
            receiver.deadLetter(message.getLockToken(), "r".repeat(4000), "d".repeat(4000));
            receiver.close();
            takeWhole(EntityNameHelper.formatDeadLetterPath(queue), body, mode);
        }
    }

    private void send(String entity, byte[] body) throws Exception {
        IMessageSender sender = sender(entity);
        sender.send(new Message(body));
        sender.close();
    }

    /** Find the largest body that can be sent, and receive all that were, in receive-and-delete mode. */
    private int sendUpToLimit(String queue) throws Exception {
        int limit = Integer.parseInt(System.getenv().getOrDefault("PEEKLOCK_MESSAGE_BYTES_MAX", "262144"));
        int least = limit - 1_144;
        int most = limit + 1;
        IMessageSender sender = sender(queue);
        IMessageReceiver receiver =
            ClientFactory.createMessageReceiverFromEntityPath(factory, queue, ReceiveMode.RECEIVEANDDELETE);
        while (most - least > 1) {
            int size = (least + most) / 2;
            try {
                sender.send(new Message(new byte[size]));
            } catch (PayloadSizeExceededException refused) {
                most = size;
                continue;
            }
            least = size;
            Program.equal(size, one(receiver).getMessageBody().getBinaryData().get(0).length, "the size");
        }
        sender.close();
        receiver.close();
        Program.that(least > limit - 144, "nearly the limit can be sent; the largest were " + least);
        return least;
    }

    private void takeWhole(String entity, byte[] body, ReceiveMode mode) throws Exception {
        IMessageReceiver receiver = ClientFactory.createMessageReceiverFromEntityPath(factory, entity, mode);
        IMessage message = one(receiver);
        Program.equal(body, message.getMessageBody().getBinaryData().get(0), "the body from " + entity);
        if (mode == ReceiveMode.PEEKLOCK) {
            receiver.complete(message.getLockToken());
        }
        receiver.close();
    }

    private void schedule() throws Exception {
        String queue = queue("schedule");
        IMessageSender sender = sender(queue);
        long cancelled = sender.scheduleMessage(message("never"), Instant.now().plusSeconds(2));
        Instant due = Instant.now().plusSeconds(2);
        sender.scheduleMessage(message("later"), due);
        sender.cancelScheduledMessage(cancelled);
        IMessageReceiver receiver = receiver(queue);
        IMessage found = one(receiver);
        Program.equal("later", body(found), "what arrived");
        Program.that(!Instant.now().isBefore(due.minusMillis(50)), "it arrives at its time");
        receiver.complete(found.getLockToken());
        nothing(receiver);
        sender.close();
        receiver.close();
    }

    private void receiveAndDelete() throws Exception {
        String queue = queue("receive-and-delete");
        fill(queue, 2);
        IMessageReceiver receiver =
            ClientFactory.createMessageReceiverFromEntityPath(factory, queue, ReceiveMode.RECEIVEANDDELETE);
        Program.equal("0", body(one(receiver)), "the first");
        Program.equal("1", body(one(receiver)), "the second");
        receiver.close();
        Program.equal(List.of(), bodies(queue), "what is left");
    }

    private void complete() throws Exception {
        String queue = queue("complete-" + queues.size());
        fill(queue, 2);
        IMessageReceiver receiver = receiver(queue);
        for (int number = 0; number < 2; number++) {
            IMessage message = one(receiver);
            Program.equal(Integer.toString(number), body(message), "the body");
            Program.that(message.getLockedUntilUtc().isAfter(Instant.now()), "the lock ends later");
            receiver.complete(message.getLockToken());
        }
        nothing(receiver);
        receiver.close();
        Program.equal(List.of(), bodies(queue), "what is left");
    }

    private void abandon() throws Exception {
        String queue = queue("abandon");
        fill(queue, 1);
        IMessageReceiver receiver = receiver(queue);
        IMessage first = one(receiver);
        receiver.abandon(first.getLockToken(), Map.of("tried", 1));
        IMessage second = one(receiver);
        Program.equal(first.getDeliveryCount() + 1, second.getDeliveryCount(), "the delivery count");
        Program.equal(1, second.getProperties().get("tried"), "the property changed");
        receiver.complete(second.getLockToken());
        receiver.close();
    }

    private void deadLetter() throws Exception {
        String queue = queue("dead-letter");
        fill(queue, 1);
        IMessageReceiver receiver = receiver(queue);
        receiver.deadLetter(one(receiver).getLockToken(), "unreadable", "no known format");
        receiver.close();
        IMessageReceiver dead = receiver(EntityNameHelper.formatDeadLetterPath(queue));
        IMessage found = one(dead);
        Program.equal("unreadable", found.getProperties().get("DeadLetterReason"), "the reason");
        Program.equal("no known format", found.getProperties().get("DeadLetterErrorDescription"), "the description");
        dead.complete(found.getLockToken());
        nothing(dead);
        dead.close();
    }

    private void defer() throws Exception {
        String queue = queue("defer");
        fill(queue, 1);
        IMessageReceiver receiver = receiver(queue);
        IMessage message = one(receiver);
        receiver.defer(message.getLockToken());
        nothing(receiver);
        IMessage deferred = receiver.receiveDeferredMessage(message.getSequenceNumber());
        Program.equal("0", body(deferred), "the body");
        receiver.complete(deferred.getLockToken());
        receiver.close();
        Program.equal(List.of(), bodies(queue), "what is left");
    }

    private void manyDeferred() throws Exception {
        String queue = queue("many-deferred");
        IMessageSender sender = sender(queue);
        IMessageReceiver receiver = receiver(queue);
        List<Long> numbers = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            sender.send(new Message(new byte[250_000]));
            IMessage message = one(receiver);
            receiver.defer(message.getLockToken());
            numbers.add(message.getSequenceNumber());
        }
        Collection<IMessage> found = receiver.receiveDeferredMessageBatch(numbers);
        Program.equal(8, found.size(), "how many came");
        for (IMessage message : found) {
            Program.equal(250_000, message.getMessageBody().getBinaryData().get(0).length, "the size");
            receiver.complete(message.getLockToken());
        }
        sender.close();
        receiver.close();
    }

    private void renewLock() throws Exception {
        String queue = queue("renew-lock", settings -> settings.setLockDuration(Duration.ofSeconds(5)));
        fill(queue, 1);
        IMessageReceiver receiver = receiver(queue);
        IMessage message = one(receiver);
        Instant firstEnd = message.getLockedUntilUtc();
        Thread.sleep(3_000);
        Instant secondEnd = receiver.renewMessageLock(message);
        Program.that(secondEnd.isAfter(firstEnd), "the lock's end moves on");
        Thread.sleep(Math.max(0, Duration.between(Instant.now(), firstEnd).toMillis() + 200));
        receiver.complete(message.getLockToken());
        receiver.close();
        Program.equal(List.of(), bodies(queue), "what is left");
    }

    private void peek() throws Exception {
        String queue = queue("peek");
        fill(queue, 3);
        IMessageReceiver receiver = receiver(queue);
        IMessage first = receiver.peek();
        Program.equal("0", body(first), "the first");
        List<String> rest = receiver.peekBatch(first.getSequenceNumber() + 1, 10).stream().map(Main::body).toList();
        Program.equal(List.of("1", "2"), rest, "from the second on");
        receiver.close();
    }

    private String sessions(String what, String... sessions) throws Exception {
        String queue = queue(what, settings -> settings.setRequiresSession(true));
        IMessageSender sender = sender(queue);
        for (int number = 0; number < 2; number++) {
            for (String session : sessions) {
                Message message = message(session + number);
                message.setSessionId(session);
                sender.send(message);
            }
        }
        sender.close();
        return queue;
    }

    private IMessageSession accept(String queue, String session) throws Exception {
        return ClientFactory.acceptSessionFromEntityPath(factory, queue, session, ReceiveMode.PEEKLOCK);
    }

    private void session() throws Exception {
        String queue = sessions("session", "a", "b");
        IMessageSession session = accept(queue, "b");
        Program.equal("b", session.getSessionId(), "the session");
        for (String expected : List.of("b0", "b1")) {
            IMessage message = one(session);
            Program.equal(expected, body(message), "the body");
            session.complete(message.getLockToken());
        }
        nothing(session);
        session.close();
    }

    private void nextSession() throws Exception {
        String queue = sessions("next-session", "only");
        IMessageSession session = accept(queue, null);
        Program.equal("only", session.getSessionId(), "the session that was given");
        session.complete(one(session).getLockToken());
        session.close();
    }

    private void sessionState() throws Exception {
        String queue = sessions("session-state", "s");
        byte[] state = "half done".getBytes(StandardCharsets.UTF_8);
        IMessageSession first = accept(queue, "s");
        Program.equal(null, first.getState(), "the state of a new session");
        first.setState(state);
        first.close();
        IMessageSession second = accept(queue, "s");
        Program.equal(new String(state), new String(second.getState()), "the state for the next holder");
        second.setState(null);
        Program.equal(null, second.getState(), "the state that was cleared");
        second.close();
    }

    private void renewSession() throws Exception {
        IMessageSession session = accept(sessions("renew-session", "s"), "s");
        Instant firstEnd = session.getLockedUntilUtc();
        Thread.sleep(1_100);
        session.renewSessionLock();
        Program.that(session.getLockedUntilUtc().isAfter(firstEnd), "the session lock's end moves on");
        session.close();
    }

    private void subscriptions() throws Exception {
        String topic = run + "topic";
        management.createTopic(topic);
        topics.add(topic);
        management.createSubscription(topic, "first");
        management.createSubscription(topic, "second");
        fill(topic, 1);
        for (String subscription : List.of("first", "second")) {
            IMessageReceiver receiver = receiver(EntityNameHelper.formatSubscriptionPath(topic, subscription));
            IMessage message = one(receiver);
            Program.equal("0", body(message), "the copy of " + subscription);
            receiver.complete(message.getLockToken());
            receiver.close();
        }
    }

    private void transaction() throws Exception {
        String queue = queue("transaction");
        move(queue, queue, sender(queue));
    }

    private void crossEntity() throws Exception {
        String from = queue("cross-from");
        String to = queue("cross-to");
        move(from, to, ClientFactory.createTransferMessageSenderFromEntityPath(factory, to, from));
    }

    /** Complete in one queue and send to another, once rolled back and once committed. */
    private void move(String from, String to, IMessageSender sender) throws Exception {
        fill(from, 2);
        IMessageReceiver receiver = receiver(from);
        IMessage first = one(receiver);
        IMessage second = one(receiver);

        var undone = factory.startTransaction();
        sender.send(message("undone"), undone);
        receiver.complete(first.getLockToken(), undone);
        factory.endTransaction(undone, false);

        var done = factory.startTransaction();
        sender.send(message("done"), done);
        receiver.complete(second.getLockToken(), done);
        Program.equal(Set.of("0", "1"), kept(from, to), "what is there before the commit");
        factory.endTransaction(done, true);
        Program.equal(Set.of("0", "done"), kept(from, to), "what is there after the commit");

        // What the rollback left is still locked, and is completed outside of a transaction.
        receiver.complete(first.getLockToken());
        Program.equal(Set.of("done"), kept(from, to), "what is there after the last settlement");
        sender.close();
        receiver.close();
    }

    private Set<String> kept(String... entities) throws Exception {
        Set<String> kept = new HashSet<>();
        for (String entity : entities) {
            kept.addAll(bodies(entity));
        }
        return kept;
    }
}
