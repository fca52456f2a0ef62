package interop;

import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import java.time.Duration;
import java.util.Map;

/** Transports, refusals, and what a client does when its broker goes away for a moment. */
final class Connections {
    private final Broker broker;
    private final Check.Action restart;

    Connections(Broker broker, Check.Action restart) {
        this.broker = broker;
        this.restart = restart;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("amqp-plain", () -> sendAndReceive("plain", broker.client(broker.tls + ";UseDevelopmentEmulator=true")));
        features.put("amqp-tls", () -> sendAndReceive("tls", broker.client()));
        features.put("websocket",
            () -> sendAndReceive("websocket", broker.client().transportType(AmqpTransportType.AMQP_WEB_SOCKETS)));
        features.put("wrong-key", this::wrongKey);
        features.put("missing-entity", this::missingEntity);
        features.put("missing-right", this::missingRight);
        features.put("reconnect", this::reconnect);
    }

    private void sendAndReceive(String name, ServiceBusClientBuilder client) {
        String queue = broker.queue(name);
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessage(new ServiceBusMessage("over " + name));
            var message = Broker.one(receiver);
            Check.equal("over " + name, message.getBody().toString(), "the body");
            receiver.complete(message);
        }
    }

    private void wrongKey() {
        String queue = broker.queue("wrong-key");
        String wrong = broker.tls.replaceAll("SharedAccessKey=[^;]*", "SharedAccessKey=bm90IHRoZSBrZXk=");
        try (var sender = Broker.sender(broker.client(wrong), queue)) {
            refused(ServiceBusFailureReason.UNAUTHORIZED, "sending with a wrong key",
                () -> sender.sendMessage(new ServiceBusMessage("never")));
        }
        Check.equal(0, broker.administration.getQueueRuntimeProperties(queue).getActiveMessageCount(),
            "the number of messages sent");
    }

    private void missingEntity() {
        try (var sender = Broker.sender(broker.client(), broker.name("not-there"))) {
            refused(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, "sending to a queue that is not there",
                () -> sender.sendMessage(new ServiceBusMessage("never")));
        }
        try (var receiver = Broker.receiver(broker.client(), broker.name("not-there"))) {
            terminated(AmqpErrorCondition.NOT_FOUND, "receiving from a queue that is not there",
                () -> receiver.receiveMessages(1, Broker.SOON).stream().count());
        }
    }

    private void missingRight() {
        String queue = broker.queue("missing-right");
        try (var sender = Broker.sender(broker.client(), queue)) {
            sender.sendMessage(new ServiceBusMessage("for all who may listen"));
        }
        ServiceBusClientBuilder client = broker.client(broker.setting("PEEKLOCK_LISTEN_CONNECTION_STRING"));
        try (var receiver = Broker.receiver(client, queue); var sender = Broker.sender(client, queue)) {
            receiver.complete(Broker.one(receiver));
            refused(ServiceBusFailureReason.UNAUTHORIZED, "sending with a rule that may only listen",
                () -> sender.sendMessage(new ServiceBusMessage("never")));
        }
    }

    private void reconnect() throws Exception {
        String queue = broker.queue("reconnect");
        ServiceBusClientBuilder client = broker.client();
        try (var sender = Broker.sender(client, queue); var receiver = Broker.receiver(client, queue)) {
            sender.sendMessage(new ServiceBusMessage("before"));
            receiver.complete(Broker.one(receiver));
            sender.sendMessage(new ServiceBusMessage("kept"));
            restart.run();
            sender.sendMessage(new ServiceBusMessage("after"));
            for (String expected : new String[] {"kept", "after"}) {
                var message = Broker.one(receiver);
                Check.equal(expected, message.getBody().toString(), "the body");
                receiver.complete(message);
            }
            Broker.nothing(receiver);
        }
    }

    /** The synchronous receiver wraps what ended it. */
    static void terminated(AmqpErrorCondition condition, String what, Check.Action action) {
        Throwable error = Check.fails(RuntimeException.class, what, action);
        while (error != null && !(error instanceof AmqpException)) {
            error = error.getCause();
        }
        Check.that(error != null, what + " fails by an AMQP error");
        Check.equal(condition, ((AmqpException) error).getErrorCondition(), "the reason why " + what + " failed");
    }

    static void refused(ServiceBusFailureReason reason, String what, Check.Action action) {
        long start = System.nanoTime();
        var error = Check.fails(ServiceBusException.class, what, action);
        Check.equal(reason, error.getReason(), "the reason why " + what + " failed (" + error.getMessage() + ")");
        Duration took = Duration.ofNanos(System.nanoTime() - start);
        Check.that(took.compareTo(Broker.SOON) < 0, what + " fails at once; it took " + took.toMillis() + " ms");
    }
}
