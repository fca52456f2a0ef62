package interop;

import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** Messages of the largest size there is, and much in one answer. */
final class Large {
    private static final int LIMIT =
        Integer.parseInt(System.getenv().getOrDefault("PEEKLOCK_MESSAGE_BYTES_MAX", "262144"));

    private final Broker broker;

    Large(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("largest", this::largest);
        features.put("many-deferred", this::manyDeferred);
    }

    private void largest() {
        String queue = broker.queue("largest");
        byte[] body = new byte[LIMIT / 40 * 39]; // the client drops what is closer to the limit
        String topic = broker.administration.createTopic(broker.name("largest-topic")).getName();
        broker.administration.createSubscription(topic, "all");
        var client = broker.client();
        for (var mode : ServiceBusReceiveMode.values()) {
            try (var sender = client.sender().topicName(topic).buildClient();
                var receiver = client.receiver().topicName(topic).subscriptionName("all").receiveMode(mode)
                    .disableAutoComplete().buildClient()) {
                sender.sendMessage(new ServiceBusMessage(body));
                takeWhole(receiver, body, mode);
            }
            try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
                sender.sendMessage(new ServiceBusMessage(body));
                String grown = "p".repeat(4000);
                var properties = Map.<String, Object>of("grown", grown);
                receiver.abandon(Broker.one(receiver), new AbandonOptions().setPropertiesToModify(properties));
                var message = Broker.one(receiver);
                Check.equal(body, message.getBody().toBytes(), "the body after the abandon");
                Check.equal(grown, message.getApplicationProperties().get("grown"), "the property changed");
                receiver.deadLetter(message, new DeadLetterOptions().setDeadLetterReason("r".repeat(4000))
                    .setDeadLetterErrorDescription("d".repeat(4000)));
            }
            try (var dead = client.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).receiveMode(mode)
                .disableAutoComplete().buildClient()) {
                takeWhole(dead, body, mode);
            }
        }
        if (closeToTheLimit(queue) == 0) {
            throw new Check.Differs("The client drops a message of 261,000 bytes, which is below the limit, without an "
                + "error. Messages of 255,000 bytes arrive, even if they have become larger than the limit.");
        }
    }

    /** Send a message that is just below the limit; returns how many there are then. */
    private int closeToTheLimit(String queue) {
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.taker(client, queue)) {
            sender.sendMessage(new ServiceBusMessage(new byte[LIMIT - 1_144]));
            int count = (int) receiver.peekMessages(1).stream().count();
            Broker.some(receiver, count);
            return count;
        }
    }

    private static void takeWhole(ServiceBusReceiverClient receiver, byte[] body, ServiceBusReceiveMode mode) {
        var message = Broker.one(receiver);
        Check.equal(body, message.getBody().toBytes(), "a body from " + receiver.getEntityPath());
        if (mode == ServiceBusReceiveMode.PEEK_LOCK) {
            receiver.complete(message);
        }
    }

    private void manyDeferred() {
        String queue = broker.queue("many-deferred");
        var client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            List<Long> numbers = new ArrayList<>();
            for (int number = 0; number < 8; number++) {
                sender.sendMessage(new ServiceBusMessage(new byte[250_000]));
                var message = Broker.one(receiver);
                receiver.defer(message);
                numbers.add(message.getSequenceNumber());
            }
            List<Integer> sizes = new ArrayList<>();
            receiver.receiveDeferredMessageBatch(numbers).forEach(message -> {
                sizes.add(message.getBody().toBytes().length);
                receiver.complete(message);
            });
            Check.equal(Collections.nCopies(8, 250_000), sizes, "the sizes");
        }
    }
}
