package interop;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.time.OffsetDateTime;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** What is done together or not at all. */
final class Transactions {
    private final Broker broker;

    Transactions(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("transaction", this::oneEntity);
        features.put("cross-entity", this::crossEntity);
    }

    private void oneEntity() {
        String queue = broker.queue("transaction");
        move(broker.client(), queue, queue);
        schedule(broker.client(), queue);
    }

    private void crossEntity() {
        move(broker.client().enableCrossEntityTransactions(), broker.queue("cross-from"), broker.queue("cross-to"));
    }

    /** Complete in one queue and send to another, once rolled back and once committed. */
    private void move(ServiceBusClientBuilder client, String from, String to) {
        try (var feeder = Broker.sender(broker.client(), from)) {
            feeder.sendMessages(Broker.numbered(2));
        }
        // The receiver comes first: under cross-entity transactions the first entity used coordinates them.
        try (var receiver = Broker.receiver(client, from); var sender = Broker.sender(client, to)) {
            var messages = Broker.some(receiver, 2);
            var undone = receiver.createTransaction();
            sender.sendMessage(new ServiceBusMessage("undone"), undone);
            receiver.complete(messages.get(0), new CompleteOptions().setTransactionContext(undone));
            receiver.rollbackTransaction(undone);

            var done = receiver.createTransaction();
            sender.sendMessage(new ServiceBusMessage("done"), done);
            receiver.complete(messages.get(1), new CompleteOptions().setTransactionContext(done));
            Check.equal(Set.of("0", "1"), kept(from, to), "what is there before the commit");
            receiver.commitTransaction(done);
            Check.equal(Set.of("0", "done"), kept(from, to), "what is there after the commit");
        }
    }

    private Set<String> kept(String... queues) {
        Set<String> bodies = new HashSet<>();
        for (String queue : queues) {
            try (var peeker = Broker.receiver(broker.client(), queue)) {
                bodies.addAll(Broker.bodies(peeker.peekMessages(10).stream().toList()));
            }
        }
        return bodies;
    }

    /** A sender that has sent nothing yet declares, so that there is no claim on its connection. */
    private void schedule(ServiceBusClientBuilder client, String queue) {
        try (var sender = Broker.sender(client, queue)) {
            var undone = sender.createTransaction();
            long first = scheduleOne(sender, "never", undone);
            sender.rollbackTransaction(undone);

            var done = sender.createTransaction();
            long second = scheduleOne(sender, "later", done);
            Check.equal(first + 1, second, "the number after one that was rolled back");
            Check.equal(Set.of("0", "done"), kept(queue), "what is there before the commit");
            sender.commitTransaction(done);
            Check.equal(Set.of("0", "done", "later"), kept(queue), "what is there after the commit");
            sender.cancelScheduledMessage(second);
            Check.equal(Set.of("0", "done"), kept(queue), "what is there after cancelling by the number");
        }
    }

    private static long scheduleOne(
        ServiceBusSenderClient sender, String body, ServiceBusTransactionContext transaction) {
        return sender.scheduleMessage(new ServiceBusMessage(body), OffsetDateTime.now().plusHours(1), transaction);
    }
}
