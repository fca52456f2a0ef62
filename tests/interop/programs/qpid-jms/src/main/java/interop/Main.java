package interop;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Tries Qpid JMS, {@code org.apache.qpid:qpid-jms-client}, which Spring's starter for Service Bus uses. */
public final class Main {
    private static final long SOON_MS = 10_000;
    /** So long nothing has to come before "nothing comes" is believed. */
    private static final long NOTHING_MS = 500;
    private static final String SHORT_LOCK = "<LockDuration>PT5S</LockDuration>";

    private final Broker broker;

    private Main(Broker broker) {
        this.broker = broker;
    }

    public static void main(String[] arguments) throws Exception {
        Broker broker = new Broker(System.getenv("PEEKLOCK_TEST_CONNECTION_STRING"));
        Main main = new Main(broker);
        Map<String, Program.Action> features = new LinkedHashMap<>();
        features.put("amqp-tls", main::complete);
        features.put("wrong-key", main::wrongKey);
        features.put("missing-entity", main::missingEntity);
        features.put("send", main::send);
        features.put("properties", main::properties);
        features.put("complete", main::complete);
        features.put("abandon", main::abandon);
        features.put("peek", main::peek);
        features.put("push", main::push);
        features.put("subscriptions", main::subscriptions);
        features.put("rules", main::rules);
        features.put("transaction", main::transaction);
        features.put("cross-entity", main::crossEntity);
        try {
            Program.serve(features);
            broker.removeEntities();
        } finally {
            System.exit(0);
        }
    }

    // Small moves

    private interface WithSession {
        void run(Session session) throws Exception;
    }

    private Connection connect(String key) throws JMSException {
        Connection connection = new JmsConnectionFactory(broker.keyName, key, broker.amqp()).createConnection();
        connection.start();
        return connection;
    }

    /** Over a connection of its own. */
    private void within(int mode, WithSession action) throws Exception {
        try (Connection connection = connect(broker.key); Session session = connection.createSession(mode)) {
            action.run(session);
        }
    }

    private void fill(String entity, int count) throws Exception {
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            MessageProducer producer = session.createProducer(session.createQueue(entity));
            for (int number = 0; number < count; number++) {
                producer.send(session.createTextMessage(Integer.toString(number)));
            }
        });
    }

    private static String text(Message message) throws JMSException {
        Program.that(message != null, "a message comes");
        return ((TextMessage) message).getText();
    }

    /** Receive all there is, by a client of its own; each is removed. */
    private List<String> drained(String entity) throws Exception {
        List<String> found = new ArrayList<>();
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            MessageConsumer consumer = session.createConsumer(session.createQueue(entity));
            for (Message next = consumer.receive(NOTHING_MS); next != null; next = consumer.receive(NOTHING_MS)) {
                found.add(text(next));
            }
        });
        return found;
    }

    private static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(Integer::toString).toList();
    }

    /** What JMS has and the broker does not: it must be refused as not supported. */
    private void notSupported(String what, WithSession action) throws Exception {
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            JMSException error = Program.fails(JMSException.class, what, () -> action.run(session));
            String text = String.valueOf(error.getMessage());
            Program.that(text.contains("not-implemented") || text.contains("does not support"),
                what + " is refused as not supported: " + text);
        });
    }

    // Features

    private void wrongKey() throws Exception {
        Program.fails(JMSSecurityException.class, "a connection with a wrong key", () -> connect("bm90IHRoZSBrZXk=").close());
    }

    private void missingEntity() throws Exception {
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            Queue queue = session.createQueue(broker.name("not-there"));
            Program.fails(JMSException.class, "a producer for a queue that is not there",
                () -> session.createProducer(queue));
            Program.fails(JMSException.class, "a consumer of a queue that is not there",
                () -> session.createConsumer(queue));
        });
    }

    private void send() throws Exception {
        String queue = broker.queue("send");
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            TextMessage sent = session.createTextMessage("hello");
            session.createProducer(session.createQueue(queue)).send(sent);
            Message found = session.createConsumer(session.createQueue(queue)).receive(SOON_MS);
            Program.equal("hello", text(found), "the body");
            Program.equal(sent.getJMSMessageID(), found.getJMSMessageID(), "the message id");
        });
        Program.equal(List.of(), drained(queue), "what is left");
    }

    private void properties() throws Exception {
        String queue = broker.queue("properties");
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            Message sent = session.createTextMessage("x");
            sent.setJMSCorrelationID("reply to this");
            sent.setJMSType("greeting");
            Map<String, Object> properties = Map.of("text", "é", "yes", true, "byte", (byte) -1, "short", (short) -2,
                "int", -3, "long", Long.MIN_VALUE, "float", 1.5f, "double", 2.5);
            for (var property : properties.entrySet()) {
                sent.setObjectProperty(property.getKey(), property.getValue());
            }
            session.createProducer(session.createQueue(queue)).send(sent);
            Message found = session.createConsumer(session.createQueue(queue)).receive(SOON_MS);
            text(found);
            Program.equal("reply to this", found.getJMSCorrelationID(), "the correlation id");
            Program.equal("greeting", found.getJMSType(), "the type");
            for (var property : properties.entrySet()) {
                Program.equal(property.getValue(), found.getObjectProperty(property.getKey()), property.getKey());
            }
        });
    }

    /** CLIENT_ACKNOWLEDGE: what was received is gone once it is acknowledged, and not before. */
    private void complete() throws Exception {
        String queue = broker.queue("complete-" + System.nanoTime());
        fill(queue, 3);
        within(Session.CLIENT_ACKNOWLEDGE, session -> {
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            Program.equal("0", text(consumer.receive(SOON_MS)), "the first");
            Message second = consumer.receive(SOON_MS);
            Program.equal("1", text(second), "the second");
            second.acknowledge();
            Program.equal("2", text(consumer.receive(SOON_MS)), "the third, which is not acknowledged");
        });
        Program.equal(List.of("2"), drained(queue), "what is left");
    }

    /** A session that recovers gives its messages out again, and the broker's count goes on. */
    private void abandon() throws Exception {
        String queue = broker.queue("abandon");
        fill(queue, 1);
        within(Session.CLIENT_ACKNOWLEDGE, session -> {
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            text(consumer.receive(SOON_MS));
            session.recover();
            Message again = consumer.receive(SOON_MS);
            Program.equal("0", text(again), "what comes again");
            Program.that(again.getJMSRedelivered(), "it is marked as delivered before");
            again.acknowledge();
        });
        Program.equal(List.of(), drained(queue), "what is left");
    }

    private void peek() throws Exception {
        String queue = broker.queue("peek");
        fill(queue, 3);
        notSupported("a browser", session -> {
            QueueBrowser browser = session.createBrowser(session.createQueue(queue));
            browser.getEnumeration().hasMoreElements();
        });
        Program.equal(numbers(3), drained(queue), "what is left after the browser");
        throw new Program.NotOffered("A browser is refused as not supported. No message is removed.");
    }

    private void push() throws Exception {
        String queue = broker.queue("push");
        fill(queue, 20);
        List<String> found = new ArrayList<>();
        within(Session.AUTO_ACKNOWLEDGE, session -> {
            session.createConsumer(session.createQueue(queue)).setMessageListener(message -> {
                synchronized (found) {
                    try {
                        found.add(text(message));
                    } catch (JMSException error) {
                        found.add(error.toString());
                    }
                    found.notifyAll();
                }
            });
            synchronized (found) {
                while (found.size() < 20) {
                    found.wait(SOON_MS);
                }
            }
        });
        Program.equal(numbers(20), found, "what was handled");
        throw new Program.Differs("A session calls its listener for one message at a time. Several sessions work in parallel.");
    }

    private void subscriptions() throws Exception {
        String topic = broker.topic("topic", "first", "second");
        fill(topic, 1);
        notSupported("a shared subscription",
            session -> session.createSharedConsumer(session.createTopic(topic), "first"));
        notSupported("a durable subscription",
            session -> session.createSharedDurableConsumer(session.createTopic(topic), "first"));
        for (String subscription : List.of("first", "second")) {
            Program.equal(numbers(1), drained(topic + "/Subscriptions/" + subscription), "the copy of " + subscription);
        }
        throw new Program.Differs("An administration client creates subscriptions, and they are opened as queues: "
            + "`createQueue(\"TOPIC/Subscriptions/NAME\")`. JMS's own subscriptions are refused as not supported.");
    }

    private void rules() throws Exception {
        String queue = broker.queue("rules");
        fill(queue, 2);
        notSupported("a selector", session -> session.createConsumer(session.createQueue(queue), "JMSType = 'x'"));
        notSupported("a selector of a subscription", session -> session.createConsumer(
            session.createQueue(broker.topic("selected", "all") + "/Subscriptions/all"), "JMSType = 'x'"));
        Program.equal(numbers(2), drained(queue), "what is left after the selector");
        throw new Program.NotOffered("A selector is refused as not supported, and no message is removed. Use rules of a subscription.");
    }

    private void transaction() throws Exception {
        String queue = broker.queue("transaction", SHORT_LOCK);
        move(queue, queue);
        Program.equal(List.of("done"), drained(queue), "what is there after the commit");
    }

    private void crossEntity() throws Exception {
        String from = broker.queue("cross-from", SHORT_LOCK);
        String to = broker.queue("cross-to");
        move(from, to);
        Program.equal(List.of(), drained(from), "what is left after the commit");
        Program.equal(List.of("done"), drained(to), "what was sent to the other queue");
    }

    /**
     * Receive from one queue and send to another, once rolled back and once committed.
     *
     * <p>The client settles what it received before it rolls back, so that the message comes again when its lock lapses.
     */
    private void move(String from, String to) throws Exception {
        fill(from, 1);
        within(Session.SESSION_TRANSACTED, session -> {
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            MessageProducer producer = session.createProducer(session.createQueue(to));
            Program.equal("0", text(consumer.receive(SOON_MS)), "the first");
            producer.send(session.createTextMessage("undone"));
            session.rollback();
            Message again = consumer.receive(SOON_MS);
            Program.equal("0", text(again), "what comes again after the rollback");
            Program.that(again.getJMSRedelivered(), "it is marked as delivered before");
            producer.send(session.createTextMessage("done"));
            session.commit();
        });
    }
}
