package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Takes a feature a line and answers with what came of it, as ../README.md of the programs says. */
final class Program {
    private static final Pattern FEATURE = Pattern.compile("\"feature\"\\s*:\\s*\"([^\"]*)\"");
    private static final long SECONDS_PER_FEATURE = 29;

    interface Action {
        void run() throws Exception;
    }

    /** The client does it, but a user would notice a difference from Azure. */
    static final class Differs extends RuntimeException {
        Differs(String how) {
            super(how);
        }
    }

    /** The client has no such thing. */
    static final class NotOffered extends RuntimeException {
        NotOffered(String how) {
            super(how);
        }
    }

    private Program() {
    }

    static void serve(Map<String, Action> features) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService worker = Executors.newCachedThreadPool();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Matcher found = FEATURE.matcher(line);
            if (!found.find()) {
                throw new IOException("no request: " + line);
            }
            String feature = found.group(1);
            Future<String> answer = worker.submit(() -> tried(features.get(feature)));
            String outcome;
            try {
                outcome = answer.get(SECONDS_PER_FEATURE, TimeUnit.SECONDS);
            } catch (TimeoutException late) {
                answer.cancel(true);
                outcome = outcome("failed", "error", "not done after " + SECONDS_PER_FEATURE + " s");
            }
            System.out.println("{\"feature\": " + quoted(feature) + ", " + outcome + "}");
            System.out.flush();
        }
    }

    private static String tried(Action action) {
        if (action == null) {
            return outcome("failed", "error", "this program does not know the feature");
        }
        try {
            action.run();
            return "\"status\": \"works\"";
        } catch (Differs differs) {
            return outcome("differs", "how", differs.getMessage());
        } catch (NotOffered missing) {
            return outcome("not offered", "how", missing.getMessage());
        } catch (Throwable error) {
            error.printStackTrace();
            return outcome("failed", "error", error.toString());
        }
    }

    private static String outcome(String status, String key, String text) {
        return "\"status\": " + quoted(status) + ", " + quoted(key) + ": " + quoted(text);
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                out.append('\\').append(one);
            } else if (one < ' ') {
                out.append(String.format("\\u%04x", (int) one));
            } else {
                out.append(one);
            }
        }
        return out.append('"').toString();
    }

    static void that(boolean holds, String claim) {
        if (!holds) {
            throw new AssertionError(claim);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!Objects.deepEquals(expected, found)) {
            throw new AssertionError(what + " is " + found + ", not " + expected);
        }
    }

    /** Run the action, which must fail with an exception of this class, and return that. */
    static <E extends Throwable> E fails(Class<E> with, String what, Action action) {
        try {
            action.run();
        } catch (Throwable error) {
            if (with.isInstance(error)) {
                return with.cast(error);
            }
            throw new AssertionError(what + " failed with " + error + ", not with " + with.getSimpleName(), error);
        }
        throw new AssertionError(what + " did not fail");
    }
}
