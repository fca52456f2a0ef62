package interop;

import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.models.SubQueue;
import java.net.URI;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.IntStream;

/** What a sender can do, and that it arrives as it was. */
final class Sending {
    private static final Map<String, Object> FOOTER = Map.of("sum", 7, "x-opt-footer", "footer");

    private final Broker broker;

    Sending(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("send", this::send);
        features.put("properties", this::properties);
        features.put("send-footers", this::sendFooters);
        features.put("receive-footers", this::receiveFooters);
        features.put("batch", this::batch);
        features.put("large", this::large);
        features.put("schedule", this::schedule);
        features.put("time-to-live", this::timeToLive);
        features.put("duplicates", this::duplicates);
    }

    private void send() {
        String queue = broker.queue("send");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            sender.sendMessage(new ServiceBusMessage("Grüße").setMessageId("m-1"));
            var message = Broker.one(receiver);
            Check.equal("Grüße", message.getBody().toString(), "the body");
            Check.equal("m-1", message.getMessageId(), "the message id");
            Check.equal(1L, message.getSequenceNumber(), "the sequence number");
        }
    }

    private void properties() {
        String queue = broker.queue("properties");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            fields(sender::sendMessage, () -> Broker.one(receiver));
            applicationProperties(sender::sendMessage, () -> Broker.one(receiver));
            sections(sender::sendMessage, () -> Broker.one(receiver));
            bodies(sender::sendMessage, () -> Broker.one(receiver));
        }
    }

    private interface Send {
        void accept(ServiceBusMessage message);
    }

    private interface Receive {
        ServiceBusReceivedMessage get();
    }

    private static void fields(Send send, Receive receive) {
        OffsetDateTime before = OffsetDateTime.now().minusSeconds(2);
        send.accept(new ServiceBusMessage(BinaryData.fromBytes(new byte[] {0, -1, 7})).setMessageId("id")
            .setContentType("application/octet-stream")
            .setCorrelationId("correlation")
            .setSubject("subject")
            .setReplyTo("reply")
            .setReplyToSessionId("reply-session")
            .setTo("to")
            .setTimeToLive(Duration.ofHours(5))
            .setPartitionKey("key"));
        ServiceBusReceivedMessage message = receive.get();
        Check.equal(new byte[] {0, -1, 7}, message.getBody().toBytes(), "the body");
        Check.equal("id", message.getMessageId(), "the message id");
        Check.equal("application/octet-stream", message.getContentType(), "the content type");
        Check.equal("correlation", message.getCorrelationId(), "the correlation id");
        Check.equal("subject", message.getSubject(), "the subject");
        Check.equal("reply", message.getReplyTo(), "reply-to");
        Check.equal("reply-session", message.getReplyToSessionId(), "the session to reply to");
        Check.equal("to", message.getTo(), "to");
        Check.equal(Duration.ofHours(5), message.getTimeToLive(), "the time to live");
        Check.equal("key", message.getPartitionKey(), "the partition key");
        Check.equal(0L, message.getDeliveryCount(), "the delivery count");
        Check.that(message.getEnqueuedTime().isAfter(before), "the enqueued time is now");
        Check.equal(message.getEnqueuedTime().plusHours(5), message.getExpiresAt(), "the time of expiry");
        Check.equal("ACTIVE", message.getState().toString(), "the state");
    }

    private static void applicationProperties(Send send, Receive receive) {
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("null", null);
        values.put("boolean", true);
        values.put("byte", (byte) -3);
        values.put("short", (short) -300);
        values.put("int", 70_000);
        values.put("long", 1L << 40);
        values.put("float", 1.5f);
        values.put("double", -2.25);
        values.put("char", 'ß');
        values.put("string", "ünï");
        values.put("uuid", UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"));
        values.put("date", new Date(1_700_000_000_123L));
        values.put("uri", URI.create("https://example.org/a?b=c"));
        values.put("time", OffsetDateTime.of(2024, 2, 29, 12, 30, 15, 500_000_000, ZoneOffset.UTC));
        values.put("duration", Duration.ofMillis(90_061_001));
        ServiceBusMessage sent = new ServiceBusMessage("typed");
        sent.getApplicationProperties().putAll(values);
        send.accept(sent);
        Map<String, Object> found = receive.get().getApplicationProperties();
        values.forEach((key, value) -> Check.equal(value, found.get(key), "the application property '" + key + "'"));
        Check.equal(values.keySet(), found.keySet(), "the set of application properties");
    }

    /** The client drops annotations when it sends: they are not tried. */
    private static void sections(Send send, Receive receive) {
        ServiceBusMessage sent = new ServiceBusMessage("sections");
        var raw = sent.getRawAmqpMessage();
        raw.getHeader().setPriority((short) 9);
        raw.getHeader().setDurable(true);
        raw.getProperties().setGroupSequence(4L);
        raw.getFooter().putAll(FOOTER);
        send.accept(sent);
        var found = receive.get().getRawAmqpMessage();
        Check.equal((short) 9, found.getHeader().getPriority(), "the priority");
        Check.equal(4L, found.getProperties().getGroupSequence(), "the group sequence");
        Check.equal(FOOTER, found.getFooter(), "the footer");
    }

    private String[] footerQueues() {
        return broker.setting("PEEKLOCK_FOOTERS_TO").split(",");
    }

    private void sendFooters() {
        var client = broker.client();
        for (String queue : footerQueues()) {
            try (var sender = Broker.sender(client, queue)) {
                ServiceBusMessage sent = new ServiceBusMessage(AmqpMessageBody.fromValue("java"));
                sent.getRawAmqpMessage().getFooter().putAll(FOOTER);
                sender.sendMessage(sent);
            }
        }
    }

    private void receiveFooters() {
        try (var receiver = Broker.taker(broker.client(), broker.setting("PEEKLOCK_FOOTERS_OF"))) {
            for (int left = footerQueues().length; left > 0; left--) {
                var raw = Broker.one(receiver).getRawAmqpMessage();
                Map<String, Object> found = new LinkedHashMap<>(raw.getFooter());
                found.replace("sum", ((Number) found.get("sum")).intValue()); // clients send types of their own
                Check.equal(FOOTER, found, "the footer from " + raw.getBody().getValue());
            }
        }
    }

    private static void bodies(Send send, Receive receive) {
        List<Object> sequence = List.of("a", 1, 2L, true);
        send.accept(new ServiceBusMessage(AmqpMessageBody.fromSequence(sequence)));
        Check.equal(sequence, receive.get().getRawAmqpMessage().getBody().getSequence(), "a body that is a sequence");
        send.accept(new ServiceBusMessage(AmqpMessageBody.fromValue("a text")));
        Check.equal("a text", receive.get().getRawAmqpMessage().getBody().getValue(), "a body that is a value");
        send.accept(new ServiceBusMessage(new byte[0]));
        Check.equal(0, receive.get().getBody().toBytes().length, "the length of an empty body");
    }

    private void batch() {
        String queue = broker.queue("batch");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            var batch = sender.createMessageBatch();
            Broker.numbered(100).forEach(message -> Check.that(batch.tryAddMessage(message), "100 messages fit"));
            sender.sendMessages(batch);
            List<String> expected = IntStream.range(0, 100).mapToObj(Integer::toString).toList();
            Check.equal(expected, Broker.bodies(Broker.some(receiver, 100)), "the order of 100 messages");
            Broker.nothing(receiver);

            var full = sender.createMessageBatch();
            int fitted = 0;
            while (full.tryAddMessage(new ServiceBusMessage(new byte[10_000]))) {
                fitted++;
            }
            Check.that(fitted > 20, "more than 20 messages of 10 kB fit into a batch; it were " + fitted);
            sender.sendMessages(full);
            Broker.some(receiver, fitted);
        }
    }

    private void large() {
        String queue = broker.queue("large");
        var client = broker.client();
        byte[] body = new byte[200 * 1024];
        IntStream.range(0, body.length).forEach(index -> body[index] = (byte) (index * 31));
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            sender.sendMessage(new ServiceBusMessage(body));
            Check.equal(body, Broker.one(receiver).getBody().toBytes(), "a body of 200 KiB");
            Connections.refused(ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, "sending 300 KiB",
                () -> sender.sendMessage(new ServiceBusMessage(new byte[300 * 1024])));
            sender.sendMessage(new ServiceBusMessage("small again"));
            Check.equal("small again", Broker.one(receiver).getBody().toString(), "the body after the refusal");
        }
    }

    private void schedule() {
        String queue = broker.queue("schedule");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            OffsetDateTime due = OffsetDateTime.now().plusSeconds(2).truncatedTo(ChronoUnit.MILLIS);
            sender.scheduleMessage(new ServiceBusMessage("due"), due);
            long number = sender.scheduleMessage(new ServiceBusMessage("cancelled"), due);
            Check.equal(2, broker.administration.getQueueRuntimeProperties(queue).getScheduledMessageCount(),
                "the number of scheduled messages");
            Check.equal("SCHEDULED", receiver.peekMessage().getState().toString(), "the state of a scheduled message");
            sender.cancelScheduledMessage(number);
            var message = Broker.one(receiver);
            Check.that(!OffsetDateTime.now().isBefore(due), "it arrives no earlier than it is due");
            Check.equal("due", message.getBody().toString(), "the body");
            Check.equal("SCHEDULED", message.getState().toString(), "the state of one that was scheduled");
            Check.that(due.isEqual(message.getScheduledEnqueueTime()), "the scheduled time is the one given");
            Broker.nothing(receiver);
        }
    }

    private void timeToLive() {
        String queue = broker.queue("time-to-live", options -> options.setDeadLetteringOnMessageExpiration(true));
        var client = broker.client();
        try (var sender = Broker.sender(client, queue);
            var receiver = Broker.taker(client, queue);
            var dead = client.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
            sender.sendMessage(new ServiceBusMessage("short-lived").setTimeToLive(Duration.ofSeconds(1)));
            var message = Broker.one(dead);
            Check.equal("short-lived", message.getBody().toString(), "the body");
            Check.equal("TTLExpiredException", message.getDeadLetterReason(), "the reason");
            dead.complete(message);
            Broker.nothing(receiver);
        }
    }

    private void duplicates() {
        String queue = broker.queue("duplicates", options -> options.setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(1)));
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            sender.sendMessage(new ServiceBusMessage("first").setMessageId("same"));
            sender.sendMessage(new ServiceBusMessage("second").setMessageId("same"));
            sender.sendMessage(new ServiceBusMessage("third").setMessageId("other"));
            Check.equal(List.of("first", "third"), Broker.bodies(Broker.some(receiver, 2)), "what arrived");
            Broker.nothing(receiver);
        }
    }
}
