package interop;

import com.azure.json.JsonProviders;
import com.azure.json.JsonReader;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Tries the official Java client, {@code com.azure:azure-messaging-servicebus}, and its administration client.
 *
 * <p>One JSON line a feature comes in, one goes out. Beyond the connection string two things had to be done, both because
 * the broker of the tests has an authority and a port of its own: run.sh makes a trust store from the authority, and the
 * administration client is told the port by a pipeline policy (see {@link Broker}), since it takes only the
 * host of a connection string. The data client takes host and port as they are.
 */
public final class Main {
    private static final long SECONDS_PER_FEATURE = 29;

    private final BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final Map<String, Check.Action> features = new LinkedHashMap<>();

    private Main(Broker broker) {
        new Connections(broker, this::askForRestart).addTo(features);
        new Sending(broker).addTo(features);
        new Receiving(broker).addTo(features);
        new Large(broker).addTo(features);
        new Sessions(broker).addTo(features);
        new Topics(broker).addTo(features);
        new Transactions(broker).addTo(features);
        new Administration(broker).addTo(features);
    }

    public static void main(String[] arguments) throws IOException {
        Broker broker = new Broker(System.getenv());
        try {
            new Main(broker).serve();
            broker.removeEntities();
        } finally {
            System.exit(0); // the client's threads are not ours to end
        }
    }

    private void serve() throws IOException {
        ExecutorService worker = Executors.newCachedThreadPool();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String feature = read(line).get("feature");
            Future<Map<String, String>> answer = worker.submit(() -> tried(feature));
            try {
                say(answer.get(SECONDS_PER_FEATURE, TimeUnit.SECONDS));
            } catch (TimeoutException late) {
                answer.cancel(true);
                say(answer(feature, "failed", "error", "not done after " + SECONDS_PER_FEATURE + " s"));
            } catch (InterruptedException | ExecutionException broken) {
                throw new IllegalStateException(broken);
            }
        }
    }

    private Map<String, String> tried(String feature) {
        Check.Action action = features.get(feature);
        if (action == null) {
            return answer(feature, "failed", "error", "this program does not know the feature '" + feature + "'");
        }
        try {
            action.run();
            return answer(feature, "works", null, null);
        } catch (Check.Differs differs) {
            return answer(feature, "differs", "how", differs.getMessage());
        } catch (Check.NotOffered missing) {
            return answer(feature, "not offered", "how", missing.getMessage());
        } catch (Throwable error) {
            error.printStackTrace();
            return answer(feature, "failed", "error", error.toString());
        }
    }

    /** Have the broker stopped and started again; only to be called by the feature that is being tried. */
    private void askForRestart() throws IOException {
        say(Map.of("ask", "restart"));
        String line = requests.readLine();
        Check.that(line != null && "restart".equals(read(line).get("done")), "the broker was started again");
    }

    private static Map<String, String> answer(String feature, String status, String key, String text) {
        Map<String, String> answer = new LinkedHashMap<>();
        answer.put("feature", feature);
        answer.put("status", status);
        if (key != null) {
            answer.put(key, text);
        }
        return answer;
    }

    private static Map<String, String> read(String line) throws IOException {
        try (JsonReader reader = JsonProviders.createReader(line)) {
            return reader.readMap(JsonReader::getString);
        }
    }

    private static void say(Map<String, String> answer) throws IOException {
        StringWriter text = new StringWriter();
        try (var writer = JsonProviders.createWriter(text)) {
            writer.writeMap(answer, (json, value) -> json.writeString(value));
        }
        System.out.println(text);
        System.out.flush();
    }
}
