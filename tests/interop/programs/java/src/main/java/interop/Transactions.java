package interop;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;

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

    private String queue(String name) {
        return broker.queue(name, options -> options.setLockDuration(Duration.ofSeconds(5)));
    }

    private void oneEntity() {
        String queue = queue("transaction");
        move(broker.client(), queue, queue);
        scheduled(broker.client(), queue);
    }

    private void crossEntity() {
        move(broker.client().enableCrossEntityTransactions(), queue("cross-from"), queue("cross-to"));
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
            Check.equal(List.of(), results(to), "what can be seen before the commit");
            receiver.commitTransaction(done);
            Check.equal(List.of("done"), results(to), "what can be seen after the commit");

            // The client settles a message only once, so the other comes again when its lock has ended.
            var left = Broker.some(receiver, from.equals(to) ? 2 : 1);
            Check.that(Broker.bodies(left).contains("0"), "what was not completed comes again");
            left.forEach(receiver::complete);
        }
        Check.equal(from.equals(to) ? 0L : 1L,
            broker.administration.getQueueRuntimeProperties(to).getTotalMessageCount(),
            "the number of messages left in " + to);
        Check.equal(0L, broker.administration.getQueueRuntimeProperties(from).getTotalMessageCount(),
            "the number of messages left in " + from);
    }

    /** The messages in a queue that have been sent within a transaction. */
    private List<String> results(String queue) {
        try (var peeker = Broker.receiver(broker.client(), queue)) {
            return Broker.bodies(peeker.peekMessages(10, 0).stream().toList())
                .stream()
                .filter(body -> body.endsWith("done"))
                .toList();
        }
    }

    private void scheduled(ServiceBusClientBuilder client, String queue) {
        try (var sender = Broker.sender(client, queue)) {
            var transaction = sender.createTransaction();
            sender.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusHours(1), transaction);
            sender.rollbackTransaction(transaction);
        }
        Check.equal(0, broker.administration.getQueueRuntimeProperties(queue).getScheduledMessageCount(),
            "the number of messages scheduled by a transaction that was rolled back");
    }
}
