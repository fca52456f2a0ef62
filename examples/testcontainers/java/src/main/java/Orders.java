// Send and receive one message, with a broker in a container of its own, or the one of the environment.

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import java.time.Duration;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;

public class Orders {
    static final String CONFIG =
        "{\"UserConfig\": {\"Namespaces\": [{\"Name\": \"sbemulatorns\", \"Queues\": [{\"Name\": \"orders\"}]}]}}";

    // start
    static GenericContainer<?> broker() {
        return new GenericContainer<>("peeklock")
            .withExposedPorts(5672, 5300)
            .withEnv("CONFIG_JSON", CONFIG)
            .waitingFor(Wait.forHttp("/health").forPort(5300));
    }

    static String connectionString(GenericContainer<?> broker) {
        return "Endpoint=sb://" + broker.getHost() + ":" + broker.getMappedPort(5672)
            + ";SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;";
    }
    // end

    public static void main(String[] arguments) {
        String given = System.getenv("SERVICEBUS_CONNECTION_STRING");
        if (given != null) {
            run(given);
            return;
        }
        try (GenericContainer<?> broker = broker()) {
            broker.start();
            run(connectionString(broker));
        }
    }

    static void run(String connectionString) {
        AmqpRetryOptions retries = new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(Duration.ofSeconds(10));
        ServiceBusClientBuilder client =
            new ServiceBusClientBuilder().connectionString(connectionString).retryOptions(retries);
        try (var sender = client.sender().queueName("orders").buildClient();
                var receiver = client.receiver().queueName("orders").buildClient()) {
            sender.sendMessage(new ServiceBusMessage("hello"));
            receiver.receiveMessages(1, Duration.ofSeconds(10)).forEach(message -> {
                System.out.println("received: " + message.getBody());
                receiver.complete(message);
            });
        }
    }
}
