package interop;

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** The Service Bus that is tried: its address and key, and entities, which JMS cannot make, by HTTPS. */
final class Broker {
    private static final Pattern PARTS = Pattern.compile(
        "Endpoint=sb://(?<host>[^:/;]+)(:(?<port>\\d+))?/?;SharedAccessKeyName=(?<name>[^;]+);SharedAccessKey=(?<key>[^;]+)");

    final String keyName;
    final String key;
    private final String host;
    private final String port;
    private final String run = "qpid-jms-" + UUID.randomUUID().toString().substring(0, 8) + "-";
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> made = new ArrayList<>();

    Broker(String connectionString) {
        Matcher parts = PARTS.matcher(connectionString);
        if (!parts.find()) {
            throw new IllegalArgumentException("no connection string with an endpoint and a key");
        }
        host = parts.group("host");
        port = parts.group("port");
        keyName = parts.group("name");
        key = parts.group("key");
    }

    /** Without prefetch: what a consumer has fetched ahead stays locked when it is closed, until the lock lapses. */
    String amqp() {
        return "amqps://" + host + ":" + (port == null ? "5671" : port) + "?amqp.idleTimeout=120000&jms.prefetchPolicy.all=0";
    }

    String name(String what) {
        return run + what;
    }

    String queue(String what) throws Exception {
        return queue(what, "");
    }

    /** Make a queue; settings are elements of its description. */
    String queue(String what, String settings) throws Exception {
        return make(name(what), "QueueDescription", settings);
    }

    String topic(String what, String... subscriptions) throws Exception {
        String topic = make(name(what), "TopicDescription", "");
        for (String subscription : subscriptions) {
            request("PUT", topic + "/Subscriptions/" + subscription, "SubscriptionDescription", "");
        }
        return topic;
    }

    void removeEntities() throws Exception {
        for (String path : made) {
            request("DELETE", path, null, "");
        }
    }

    private String make(String path, String kind, String settings) throws Exception {
        request("PUT", path, kind, settings);
        made.add(path);
        return path;
    }

    private void request(String method, String path, String kind, String settings) throws Exception {
        String url = "https://" + host + (port == null ? "" : ":" + port) + "/" + path;
        String body = kind == null ? "" : "<entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">"
            + "<" + kind + " xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">" + settings
            + "</" + kind + "></content></entry>";
        var answer = http.send(HttpRequest.newBuilder(URI.create(url + "?api-version=2021-05"))
            .header("Authorization", signature(url))
            .header("Content-Type", "application/atom+xml;type=entry;charset=utf-8")
            .method(method, BodyPublishers.ofString(body))
            .build(), BodyHandlers.ofString());
        Program.that(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
    }

    private String signature(String url) throws Exception {
        String resource = URLEncoder.encode(url, StandardCharsets.UTF_8);
        long expiry = Instant.now().getEpochSecond() + 3600;
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
        byte[] digest = mac.doFinal((resource + "\n" + expiry).getBytes(StandardCharsets.UTF_8));
        String signed = URLEncoder.encode(Base64.getEncoder().encodeToString(digest), StandardCharsets.UTF_8);
        return "SharedAccessSignature sr=" + resource + "&sig=" + signed + "&se=" + expiry + "&skn=" + keyName;
    }
}
