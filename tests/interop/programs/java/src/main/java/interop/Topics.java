package interop;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.util.List;
import java.util.Map;

/** Topics, subscriptions and what their rules choose. */
final class Topics {
    private final Broker broker;

    Topics(Broker broker) {
        this.broker = broker;
    }

    void addTo(Map<String, Check.Action> features) {
        features.put("subscriptions", this::subscriptions);
        features.put("rules", this::rules);
        features.put("rule-manager", this::ruleManager);
    }

    private String topic(String name, String... subscriptions) {
        String topic = broker.administration.createTopic(broker.name(name)).getName();
        for (String subscription : subscriptions) {
            broker.administration.createSubscription(topic, subscription);
        }
        return topic;
    }

    private static ServiceBusReceiverClient taker(ServiceBusClientBuilder client, String topic, String subscription) {
        return client.receiver()
            .topicName(topic)
            .subscriptionName(subscription)
            .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE)
            .buildClient();
    }

    private void subscriptions() {
        String topic = topic("topic", "one", "two");
        var client = broker.client();
        try (var sender = client.sender().topicName(topic).buildClient();
            var one = taker(client, topic, "one");
            var two = taker(client, topic, "two")) {
            sender.sendMessages(Broker.numbered(3));
            for (ServiceBusReceiverClient receiver : List.of(one, two)) {
                Check.equal(List.of("0", "1", "2"), Broker.bodies(Broker.some(receiver, 3)), "the copies of "
                    + receiver.getEntityPath());
                Broker.nothing(receiver);
            }
        }
    }

    private void rules() {
        String topic = topic("rules");
        // The administration client sends every parameter as text, so numbers stand in the expression.
        SqlRuleFilter expensive = new SqlRuleFilter("price > 100 AND colour = @colour AND sys.Label LIKE 'order%'");
        expensive.getParameters().put("@colour", "blue");
        broker.administration.createSubscription(topic, "expensive", "by-price", new CreateSubscriptionOptions(),
            new CreateRuleOptions(expensive).setAction(
                new SqlRuleAction("SET checked = TRUE; SET sys.Label = 'expensive'; REMOVE secret")));
        CorrelationRuleFilter red = new CorrelationRuleFilter("c-1");
        red.getProperties().put("colour", "red");
        broker.administration.createSubscription(topic, "red", "by-colour", new CreateSubscriptionOptions(),
            new CreateRuleOptions(red));

        var client = broker.client();
        try (var sender = client.sender().topicName(topic).buildClient();
            var byPrice = taker(client, topic, "expensive");
            var byColour = taker(client, topic, "red")) {
            sender.sendMessage(order("cheap", 5, "red").setCorrelationId("c-1"));
            sender.sendMessage(order("dear", 500, "blue").setCorrelationId("c-1"));
            sender.sendMessage(order("uncorrelated", 50, "red"));

            ServiceBusReceivedMessage dear = Broker.one(byPrice);
            Check.equal("dear", dear.getBody().toString(), "what the SQL filter chose");
            Check.equal("expensive", dear.getSubject(), "the subject that the action set");
            Check.equal(Map.of("price", 500, "colour", "blue", "checked", true, "RuleName", "by-price"),
                dear.getApplicationProperties(), "the properties after the action");
            Broker.nothing(byPrice);
            Check.equal("cheap", Broker.one(byColour).getBody().toString(), "what the correlation filter chose");
            Broker.nothing(byColour);
        }
    }

    private static ServiceBusMessage order(String body, int price, String colour) {
        ServiceBusMessage message = new ServiceBusMessage(body).setSubject("order-1");
        message.getApplicationProperties().putAll(Map.of("price", price, "colour", colour, "secret", "s"));
        return message;
    }

    private void ruleManager() {
        String topic = topic("rule-manager", "ruled");
        var client = broker.client();
        try (var manager = client.ruleManager().topicName(topic).subscriptionName("ruled").buildClient()) {
            Check.equal(List.of("$Default"), manager.listRules().stream().map(RuleProperties::getName).toList(),
                "the rules of a new subscription");
            CorrelationRuleFilter filter = new CorrelationRuleFilter().setLabel("wanted");
            filter.getProperties().put("size", 7);
            manager.createRule("by-label", new CreateRuleOptions(filter));
            manager.createRule("by-sql", new CreateRuleOptions(new SqlRuleFilter("size = 8"))
                .setAction(new SqlRuleAction("SET seen = 1")));
            manager.deleteRule("$Default");
            List<RuleProperties> rules = manager.listRules().stream().toList();
            Check.equal(List.of("by-label", "by-sql"), rules.stream().map(RuleProperties::getName).toList(),
                "the rules after two were added and one was removed");
            CorrelationRuleFilter found = (CorrelationRuleFilter) rules.get(0).getFilter();
            Check.equal("wanted", found.getLabel(), "the label of the filter");
            // The filter compares a number; the client shows it as text.
            Check.equal(Map.of("size", "7"), found.getProperties(), "the properties of the filter");
            Check.equal("size = 8", ((SqlRuleFilter) rules.get(1).getFilter()).getSqlExpression(), "the SQL filter");
            Check.equal("SET seen = 1", ((SqlRuleAction) rules.get(1).getAction()).getSqlExpression(), "the action");
        }
        try (var sender = client.sender().topicName(topic).buildClient();
            var receiver = taker(client, topic, "ruled")) {
            ServiceBusMessage wanted = new ServiceBusMessage("wanted").setSubject("wanted");
            wanted.getApplicationProperties().put("size", 7);
            sender.sendMessage(new ServiceBusMessage("unwanted").setSubject("wanted"));
            sender.sendMessage(wanted);
            Check.equal("wanted", Broker.one(receiver).getBody().toString(), "what the rules chose");
            Broker.nothing(receiver);
        }
    }
}
