// Start a broker for the tests of a program; it ends with this process.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

public final class Broker implements AutoCloseable {
    public final String connectionString;
    private final Process process;

    public Broker(String... options) throws IOException, InterruptedException {
        Path file = Files.createTempDirectory("peeklock").resolve("ready.json");
        List<String> command = new ArrayList<>(List.of("peeklock", "serve", "--amqp-port", "0", "--http-port", "0",
            "--ready-file", file.toString(), "--exit-with-parent"));
        command.addAll(List.of(options));
        process = new ProcessBuilder(command).redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        for (int waited = 0; !Files.exists(file); waited += 20) {
            if (!process.isAlive() || waited > 30_000) {
                process.destroy();
                throw new IOException("the broker did not become ready; its log says why");
            }
            Thread.sleep(20);
        }
        var found = Pattern.compile("\"connectionString\": \"([^\"]+)\"").matcher(Files.readString(file));
        found.find();
        connectionString = found.group(1);
    }

    @Override
    public void close() {
        process.destroy();
    }
}
