package interop;

import java.util.Arrays;
import java.util.Map;
import java.util.Objects;

/** What a feature has to show is said in these words; a claim that does not hold ends the feature. */
final class Check {
    private Check() {
    }

    /** Thrown where the client does it, but unlike Azure in something that a user would notice. */
    static final class Differs extends RuntimeException {
        Differs(String how) {
            super(how);
        }
    }

    /** Thrown where the client has no such thing. */
    static final class NotOffered extends RuntimeException {
        NotOffered(String how) {
            super(how);
        }
    }

    interface Action {
        void run() throws Exception;
    }

    static void that(boolean holds, String claim) {
        if (!holds) {
            throw new AssertionError(claim);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!Objects.deepEquals(expected, found)) {
            throw new AssertionError(what + " is " + shown(found) + ", not " + shown(expected));
        }
    }

    /** Run the action, which has to fail with an exception of this class, and return that. */
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

    private static String shown(Object value) {
        if (value instanceof byte[] bytes) {
            return Arrays.toString(bytes);
        }
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(entry -> entry.getKey() + " = " + shown(entry.getValue())).toList()
                .toString();
        }
        return value == null || value instanceof String ? "'" + value + "'"
            : value + " (" + value.getClass().getSimpleName() + ")";
    }
}
