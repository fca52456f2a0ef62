package interop;

import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Queues that require sessions. */
final class Sessions {
    private final Broker broker;

    Sessions(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("session", this::named);
        features.put("next-session", this::next);
        features.put("session-state", this::state);
        features.put("renew-session", this::renew);
    }

    private String queue(String name) {
        return broker.queue(name,
            options -> options.setSessionRequired(true).setLockDuration(Duration.ofSeconds(5)));
    }

    private static ServiceBusSessionReceiverClient sessions(ServiceBusClientBuilder client, String queue) {
        return client.sessionReceiver().queueName(queue).disableAutoComplete().buildClient();
    }

    private static void fill(ServiceBusClientBuilder client, String queue, String... sessions) {
        try (var sender = Broker.sender(client, queue)) {
            for (int number = 0; number < 3; number++) {
                for (String session : sessions) {
                    sender.sendMessage(new ServiceBusMessage(session + number).setSessionId(session));
                }
            }
        }
    }

    private void named() {
        String queue = queue("session");
        var client = broker.client();
        fill(client, queue, "a", "b");
        try (var sessions = sessions(client, queue); var receiver = sessions.acceptSession("b")) {
            Check.equal("b", receiver.getSessionId(), "the session of the receiver");
            var messages = Broker.some(receiver, 3);
            Check.equal(List.of("b0", "b1", "b2"), Broker.bodies(messages), "the messages of session b");
            Check.equal("b", messages.get(0).getSessionId(), "the session of a message");
            try (var others = sessions(broker.client(), queue)) {
                var error = Check.fails(AmqpException.class, "accepting a session in use",
                    () -> others.acceptSession("b"));
                Check.equal(AmqpErrorCondition.SESSION_CANNOT_BE_LOCKED, error.getErrorCondition(), "the condition");
            }
            var deferred = messages.get(1);
            receiver.defer(deferred);
            var fetched = receiver.receiveDeferredMessage(deferred.getSequenceNumber());
            Check.equal("b1", fetched.getBody().toString(), "the deferred message of session b");
            Check.that(fetched.getLockedUntil() != null, "a deferred message of a session shows the end of its lock");
            receiver.complete(fetched);
            receiver.complete(messages.get(0));
            receiver.complete(messages.get(2));
            Broker.nothing(receiver);
        }
    }

    private void next() {
        String queue = queue("next-session");
        var client = broker.client();
        fill(client, queue, "first", "second");
        try (var sessions = sessions(client, queue);
            var one = sessions.acceptNextSession();
            var two = sessions.acceptNextSession()) {
            Check.equal(List.of("first", "second"), List.of(one.getSessionId(), two.getSessionId()),
                "the sessions that were given");
            Broker.some(one, 3).forEach(one::complete);
            Broker.some(two, 3).forEach(two::complete);
        }
        Check.equal(0L, broker.administration.getQueueRuntimeProperties(queue).getTotalMessageCount(),
            "the number of messages left");
    }

    private void state() {
        String queue = queue("session-state");
        byte[] state = "half done".getBytes(StandardCharsets.UTF_8);
        try (var sessions = sessions(broker.client(), queue); var holder = sessions.acceptSession("s")) {
            Check.equal(null, holder.getSessionState(), "the state of a new session");
            holder.setSessionState(state);
            Check.equal(state, holder.getSessionState(), "the state that was set");
        }
        // Over a connection of its own: a client that accepts the session it is just closing may be given that again.
        try (var sessions = sessions(broker.client(), queue); var holder = sessions.acceptSession("s")) {
            Check.equal(state, holder.getSessionState(), "the state for the next holder");
            holder.setSessionState(null);
            Check.equal(null, holder.getSessionState(), "the state that was cleared");
        }
    }

    private void renew() throws InterruptedException {
        String queue = queue("renew-session");
        var client = broker.client();
        fill(client, queue, "s");
        try (var sessions = client.sessionReceiver()
            .queueName(queue)
            .maxAutoLockRenewDuration(Duration.ZERO)
            .disableAutoComplete()
            .buildClient(); var receiver = sessions.acceptSession("s")) {
            var messages = Broker.some(receiver, 3);
            var firstEnd = receiver.renewSessionLock();
            Thread.sleep(1_500);
            var secondEnd = receiver.renewSessionLock();
            Check.that(secondEnd.isAfter(firstEnd.plusSeconds(1)), "the end of the lock moves on, it was " + firstEnd
                + " and is " + secondEnd);
            messages.forEach(receiver::complete);
        }
    }
}
