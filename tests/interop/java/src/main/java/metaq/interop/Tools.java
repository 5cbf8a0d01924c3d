package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's {@code mqadmin}, one command after the other in this process: a JVM for each would take most of the time.
 *
 * <p>The result of a command is its standard output and its standard error. A command that runs until it is
 * stopped is interrupted after a number of milliseconds.
 */
final class Tools {
    private static final Object ONE_AT_A_TIME = new Object();
    private static final long ENDING_MS = 60_000;

    private Tools() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("mqadmin", Tools::run);
    }

    /** Some commands of the list cannot run twice, so all of them are created again each time. */
    private static void forgetCommands() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    private static Object run(JsonObject request) throws Exception {
        List<String> arguments = new ArrayList<>();
        for (JsonElement argument : request.getAsJsonArray("arguments")) {
            arguments.add(argument.getAsString());
        }
        long timeLimitMs = Clients.number(request, "time_limit_ms", 30_000);
        synchronized (ONE_AT_A_TIME) {
            PrintStream output = System.out;
            PrintStream errors = System.err;
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            try {
                forgetCommands();
                Thread command = new Thread(() -> MQAdminStartup.main0(arguments.toArray(new String[0]), null));
                command.setDaemon(true);
                command.start();
                try (Shutdown quick = new Shutdown(command)) {
                    command.join(timeLimitMs);
                }
                boolean ended = !command.isAlive();
                if (!ended) {
                    command.interrupt();
                    // Output at its end belongs to this command, not to the next one.
                    command.join(ENDING_MS);
                }
                return Map.of(
                    "ended", ended,
                    "printed", printed.toString(StandardCharsets.UTF_8),
                    "complained", complained.toString(StandardCharsets.UTF_8));
            } finally {
                System.setOut(output);
                System.setErr(errors);
            }
        }
    }
}
