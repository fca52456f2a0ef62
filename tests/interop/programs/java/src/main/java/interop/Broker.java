package interop;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.http.HttpPipelineCallContext;
import com.azure.core.http.HttpPipelineNextPolicy;
import com.azure.core.http.HttpResponse;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationAsyncClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import java.net.MalformedURLException;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import reactor.core.publisher.Mono;

/** The broker that is tried: how to connect to it, and the few steps that most features take. */
final class Broker {
    static final Duration SOON = Duration.ofSeconds(10);
    /** So long nothing has to come before "nothing comes" is believed. */
    static final Duration NOTHING = Duration.ofMillis(500);

    final ServiceBusAdministrationClient administration;
    final ServiceBusAdministrationAsyncClient asynchronousAdministration;
    final String tls;
    private final Map<String, String> environment;
    private final Set<String> given = ConcurrentHashMap.newKeySet();
    private final String run = "java-" + UUID.randomUUID().toString().substring(0, 8) + "-";

    Broker(Map<String, String> environment) {
        this.environment = environment;
        // The client keeps only the host of the connection string, so a policy puts the port into each request.
        this.tls = setting("PEEKLOCK_TEST_CONNECTION_STRING");
        int port = URI.create(tls.substring(tls.indexOf("sb://"), tls.indexOf(';'))).getPort();
        var builder = new ServiceBusAdministrationClientBuilder().connectionString(tls);
        if (port != -1) {
            builder.addPolicy(new PortPolicy(port));
        }
        this.administration = builder.buildClient();
        this.asynchronousAdministration = builder.buildAsyncClient();
    }

    String setting(String name) {
        String value = environment.get(name);
        if (value == null) {
            throw new IllegalStateException("the environment variable " + name + " is not set");
        }
        return value;
    }

    /** Clients of one builder share a connection, which is closed with the last of them. */
    ServiceBusClientBuilder client() {
        return client(tls);
    }

    ServiceBusClientBuilder client(String connectionString) {
        AmqpRetryOptions retries = new AmqpRetryOptions().setTryTimeout(Duration.ofSeconds(10)).setMaxRetries(2);
        return new ServiceBusClientBuilder().connectionString(connectionString).retryOptions(retries);
    }

    String connectionString(String keyName, String key) {
        return tls.split(";")[0] + ";SharedAccessKeyName="
            + keyName + ";SharedAccessKey=" + key;
    }

    /** The whole name of an entity of this run. */
    String name(String what) {
        String name = run + what;
        given.add(name);
        return name;
    }

    /** Remove what this run has made; a topic goes by the same request as a queue. */
    void removeEntities() {
        for (String name : given) {
            try {
                administration.deleteQueue(name);
            } catch (ResourceNotFoundException removed) {
                // the feature has removed it, or never made it
            }
        }
    }

    /** Create a queue of this name in the program's own part of the namespace; returns the whole name. */
    String queue(String name) {
        return queue(name, options -> { });
    }

    String queue(String name, Consumer<CreateQueueOptions> settings) {
        CreateQueueOptions options = new CreateQueueOptions();
        settings.accept(options);
        return administration.createQueue(name(name), options).getName();
    }

    static ServiceBusReceiverClient receiver(ServiceBusClientBuilder client, String queue) {
        return client.receiver().queueName(queue).disableAutoComplete().buildClient();
    }

    static ServiceBusReceiverClient taker(ServiceBusClientBuilder client, String queue) {
        return client.receiver()
            .queueName(queue)
            .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE)
            .disableAutoComplete()
            .buildClient();
    }

    static ServiceBusSenderClient sender(ServiceBusClientBuilder client, String queue) {
        return client.sender().queueName(queue).buildClient();
    }

    /** Messages "0", "1", ... with these bodies and ids. */
    static List<ServiceBusMessage> numbered(int count) {
        return IntStream.range(0, count)
            .mapToObj(Integer::toString)
            .map(text -> new ServiceBusMessage(text).setMessageId(text))
            .toList();
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return some(receiver, 1).get(0);
    }

    /** Receive exactly so many messages, in as many calls as it takes. */
    static List<ServiceBusReceivedMessage> some(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> received = new ArrayList<>();
        while (received.size() < count) {
            int before = received.size();
            receiver.receiveMessages(count - before, SOON).forEach(received::add);
            Check.that(received.size() > before, received.size() + " of " + count + " messages came");
        }
        return received;
    }

    static void nothing(ServiceBusReceiverClient receiver) {
        List<String> received =
            receiver.receiveMessages(1, NOTHING).stream().map(message -> message.getBody().toString()).toList();
        Check.equal(List.of(), received, "what is left in " + receiver.getEntityPath());
    }

    static List<String> bodies(List<ServiceBusReceivedMessage> messages) {
        return messages.stream().map(message -> message.getBody().toString()).toList();
    }

    private record PortPolicy(int port) implements HttpPipelinePolicy {
        @Override
        public Mono<HttpResponse> process(HttpPipelineCallContext context, HttpPipelineNextPolicy next) {
            try {
                var request = context.getHttpRequest();
                request.setUrl(UrlBuilder.parse(request.getUrl()).setPort(port).toUrl());
            } catch (MalformedURLException impossible) {
                return Mono.error(impossible);
            }
            return next.process();
        }
    }
}
