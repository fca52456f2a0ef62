package interop;

import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessageContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import reactor.core.publisher.Flux;

/** Both receive modes, all settlements, locks, peeking and the processor. */
final class Receiving {
    private static final Duration SHORT_LOCK = Duration.ofSeconds(5);

    private final Broker broker;

    Receiving(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("receive-and-delete", this::receiveAndDelete);
        features.put("complete", this::complete);
        features.put("abandon", this::abandon);
        features.put("dead-letter", this::deadLetter);
        features.put("defer", this::defer);
        features.put("renew-lock", this::renewLock);
        features.put("lock-lost", this::lockLost);
        features.put("peek", this::peek);
        features.put("purge", () -> {
            throw new Check.NotOffered("It has no method that deletes messages in a batch.");
        });
        features.put("push", this::push);
    }

    private void receiveAndDelete() {
        String queue = broker.queue("receive-and-delete");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            sender.sendMessages(Broker.numbered(3));
            Check.equal(List.of("0", "1", "2"), Broker.bodies(Broker.some(receiver, 3)), "what was received");
            Broker.nothing(receiver);
        }
        empty(queue);
    }

    private void complete() {
        String queue = broker.queue("complete");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessages(Broker.numbered(3));
            for (var message : Broker.some(receiver, 3)) {
                Check.that(message.getLockedUntil().isAfter(OffsetDateTime.now()), "the lock ends later");
                receiver.complete(message);
            }
            Broker.nothing(receiver);

            // A call that ended without a message has left credit with the broker: what is sent now goes to this
            // receiver, which gives it back, and so to whoever receives next.
            sender.sendMessage(new ServiceBusMessage("late"));
            try (var other = Broker.receiver(broker.client(), queue)) {
                var late = Broker.one(other);
                Check.equal("late", late.getBody().toString(), "what was sent between two calls");
                other.complete(late);
            }
        }
        empty(queue);
    }

    private void abandon() {
        String queue = broker.queue("abandon");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessage(new ServiceBusMessage("once more"));
            var first = Broker.one(receiver);
            receiver.abandon(first, new AbandonOptions().setPropertiesToModify(Map.of("tried", 1)));
            var second = Broker.one(receiver);
            Check.equal(first.getSequenceNumber(), second.getSequenceNumber(), "the sequence number");
            Check.equal(first.getDeliveryCount() + 1, second.getDeliveryCount(), "the delivery count");
            Check.equal(1, second.getApplicationProperties().get("tried"), "the property changed");
            receiver.complete(second);
        }
        empty(queue);
    }

    private void deadLetter() {
        String queue = broker.queue("dead-letter");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue);
            var receiver = Broker.receiver(client, queue);
            var dead = client.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("bad"));
            receiver.deadLetter(Broker.one(receiver), new DeadLetterOptions().setDeadLetterReason("unreadable")
                .setDeadLetterErrorDescription("no known format")
                .setPropertiesToModify(Map.of("by", "java")));
            var message = Broker.one(dead);
            Check.equal("unreadable", message.getDeadLetterReason(), "the reason");
            Check.equal("no known format", message.getDeadLetterErrorDescription(), "the description");
            Check.equal("java", message.getApplicationProperties().get("by"), "the property changed");
            Check.equal(queue, dead.getEntityPath().split("/")[0], "the queue it is in");
            dead.complete(message);
            Broker.nothing(dead);
        }
        empty(queue);
    }

    private void defer() {
        String queue = broker.queue("defer");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessages(Broker.numbered(2));
            List<Long> numbers = new ArrayList<>();
            for (var message : Broker.some(receiver, 2)) {
                numbers.add(message.getSequenceNumber());
                Check.equal(0L, message.getDeliveryCount(), "the delivery count");
                receiver.defer(message, new DeferOptions().setPropertiesToModify(Map.of("later", true)));
            }
            Broker.nothing(receiver);
            Check.equal("DEFERRED", receiver.peekMessage(numbers.get(0)).getState().toString(), "the state");
            var message = receiver.receiveDeferredMessage(numbers.get(1));
            Check.equal("1", message.getBody().toString(), "the body");
            Check.equal(true, message.getApplicationProperties().get("later"), "the property changed");
            Check.equal(1L, message.getDeliveryCount(), "the delivery count after the deferral");
            receiver.complete(message);
            receiver.receiveDeferredMessageBatch(numbers.subList(0, 1)).forEach(receiver::complete);
            Check.equal(0L, receiver.receiveDeferredMessageBatch(numbers).stream().count(),
                "how many can be received once more");
        }
        empty(queue);
    }

    private void renewLock() throws InterruptedException {
        String queue = broker.queue("renew-lock", options -> options.setLockDuration(SHORT_LOCK));
        var client = broker.client();
        try (var sender = Broker.sender(client, queue);
            var receiver = client.receiver()
                .queueName(queue)
                .maxAutoLockRenewDuration(Duration.ZERO)
                .disableAutoComplete()
                .buildClient()) {
            sender.sendMessage(new ServiceBusMessage("kept"));
            var message = Broker.one(receiver);
            OffsetDateTime firstEnd = message.getLockedUntil();
            Thread.sleep(2_000);
            OffsetDateTime end = receiver.renewMessageLock(message);
            Check.that(end.isAfter(firstEnd.plusSeconds(1)), "the end of the lock moves on, it was " + firstEnd
                + " and is " + end);
            sleepUntil(firstEnd.plus(Duration.ofMillis(300)));
            receiver.complete(message);
        }
        empty(queue);
    }

    private void lockLost() throws InterruptedException {
        String queue = broker.queue("lock-lost", options -> options.setLockDuration(SHORT_LOCK));
        var client = broker.client();
        try (var sender = Broker.sender(client, queue);
            var receiver = client.receiver()
                .queueName(queue)
                .maxAutoLockRenewDuration(Duration.ZERO)
                .disableAutoComplete()
                .buildClient()) {
            sender.sendMessage(new ServiceBusMessage("held too long"));
            var message = Broker.one(receiver);
            sleepUntil(message.getLockedUntil().plus(Duration.ofMillis(300)));
            Connections.refused(ServiceBusFailureReason.MESSAGE_LOCK_LOST, "completing after the end of the lock",
                () -> receiver.complete(message));
            Connections.refused(ServiceBusFailureReason.MESSAGE_LOCK_LOST, "renewing after the end of the lock",
                () -> receiver.renewMessageLock(message));
            var again = Broker.one(receiver);
            Check.equal(1L, again.getDeliveryCount(), "the delivery count");
            receiver.complete(again);
        }
        empty(queue);
    }

    private void peek() {
        String queue = broker.queue("peek");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessages(Broker.numbered(10));
            Check.equal("0", receiver.peekMessage().getBody().toString(), "the first message");
            List<ServiceBusReceivedMessage> next = receiver.peekMessages(4).stream().toList();
            Check.equal(List.of("1", "2", "3", "4"), Broker.bodies(next), "the next four");
            long number = next.get(3).getSequenceNumber();
            Check.equal(List.of("4", "5", "6"), Broker.bodies(receiver.peekMessages(3, number).stream().toList()),
                "three from a sequence number on");
            Check.equal(10, Broker.some(receiver, 10).size(), "how many can be received after being peeked at");
        }
    }

    private void push() throws InterruptedException {
        processor();
        sessionProcessor();
        asyncReceiver();
    }

    private void processor() throws InterruptedException {
        String queue = broker.queue("push");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue)) {
            sender.sendMessages(Broker.numbered(20));
        }
        var handler = new Handler(20);
        try (var processor = client.processor()
            .queueName(queue)
            .maxConcurrentCalls(4)
            .processMessage(handler::handle)
            .processError(context -> handler.errors.add(context.getException()))
            .buildProcessorClient()) {
            processor.start();
            handler.await();
            emptied(queue);
        }
        Check.equal(20, handler.bodies.size(), "how many different messages were handled");
        Check.that(handler.mostAtOnce.get() > 1, "messages are handled at more than one at a time");
    }

    private void sessionProcessor() throws InterruptedException {
        String queue = broker.queue("push-sessions", options -> options.setSessionRequired(true));
        var client = broker.client();
        try (var sender = Broker.sender(client, queue)) {
            for (String session : List.of("red", "green", "blue")) {
                Broker.numbered(5).forEach(message -> sender.sendMessage(
                    new ServiceBusMessage(session + message.getBody()).setSessionId(session)));
            }
        }
        var handler = new Handler(15);
        try (var processor = client.sessionProcessor()
            .queueName(queue)
            .maxConcurrentSessions(2)
            .sessionIdleTimeout(Duration.ofMillis(500))
            .processMessage(handler::handle)
            .processError(context -> handler.errors.add(context.getException()))
            .buildProcessorClient()) {
            processor.start();
            handler.await();
            emptied(queue);
        }
        for (String session : List.of("red", "green", "blue")) {
            List<String> own = handler.inOrder.stream().filter(body -> body.startsWith(session)).toList();
            Check.equal(Broker.numbered(5).stream().map(message -> session + message.getBody()).toList(), own,
                "the order within the session " + session);
        }
    }

    /** The asynchronous receiver keeps credit with the broker and completes by itself what went through. */
    private void asyncReceiver() {
        String queue = broker.queue("push-async");
        var client = broker.client();
        var receiver = client.receiver().queueName(queue).prefetchCount(10).buildAsyncClient();
        var sender = client.sender().queueName(queue).buildAsyncClient();
        try {
            List<String> received = receiver.receiveMessages()
                .mergeWith(Flux.from(sender.sendMessages(Broker.numbered(30)))
                    .thenMany(Flux.<ServiceBusReceivedMessage>empty()))
                .take(30)
                .map(message -> message.getBody().toString())
                .collectList()
                .block(Broker.SOON);
            Check.equal(Broker.numbered(30).stream().map(message -> message.getBody().toString()).toList(), received,
                "what the asynchronous receiver got");
        } finally {
            sender.close();
            receiver.close();
        }
    }

    /** Handles messages slowly enough that several are under way. */
    private static final class Handler {
        final Set<String> bodies = ConcurrentHashMap.newKeySet();
        final Queue<String> inOrder = new ConcurrentLinkedQueue<>();
        final Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
        final AtomicInteger mostAtOnce = new AtomicInteger();
        private final AtomicInteger atOnce = new AtomicInteger();
        private final CountDownLatch left;

        Handler(int count) {
            left = new CountDownLatch(count);
        }

        void handle(ServiceBusReceivedMessageContext context) {
            int now = atOnce.incrementAndGet();
            mostAtOnce.accumulateAndGet(now, Math::max);
            try {
                Thread.sleep(20);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            bodies.add(context.getMessage().getBody().toString());
            inOrder.add(context.getMessage().getBody().toString());
            atOnce.decrementAndGet();
            left.countDown();
        }

        void await() throws InterruptedException {
            boolean done = left.await(Broker.SOON.toMillis(), TimeUnit.MILLISECONDS);
            Check.that(done, left.getCount() + " messages were not handled; errors: " + errors);
            Check.equal(List.of(), List.copyOf(errors), "the errors that the processor told");
        }
    }

    /** Wait until all is completed, which a processor does after the message was handled and only until it is closed. */
    private void emptied(String queue) throws InterruptedException {
        long ends = System.nanoTime() + Broker.SOON.toNanos();
        while (broker.administration.getQueueRuntimeProperties(queue).getTotalMessageCount() > 0) {
            Check.that(System.nanoTime() < ends, "all messages are completed soon after they were handled");
            Thread.sleep(20);
        }
    }

    private void empty(String queue) {
        var figures = broker.administration.getQueueRuntimeProperties(queue);
        Check.equal(0L, figures.getTotalMessageCount(), "the number of messages left in " + queue);
    }

    private static void sleepUntil(OffsetDateTime time) throws InterruptedException {
        Thread.sleep(Math.max(0, Duration.between(OffsetDateTime.now(), time).toMillis()));
    }
}
