package metaq.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Runs the requests of a test with Apache's client. Each line is a JSON object.
 *
 * <p>A request is {@code {"id": 1, "do": "send", …}}; its answer carries the same id and either {@code result} or
 * {@code error}. Events (a message consumed, a send acknowledged) are lines with {@code event} and the
 * {@code handle} of the client. They are written before the client gets the result, so a test that kills this process
 * still sees everything that the process had seen. The test decides what to do and what is right.
 */
public final class Driver {
    interface Operation {
        Object run(JsonObject request) throws Exception;
    }

    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final Map<String, Operation> OPERATIONS = new HashMap<>();
    /** Standard output carries answers only; the output of libraries goes to the log. */
    private static final PrintStream ANSWERS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Producers.register(OPERATIONS);
        TransactionProducers.register(OPERATIONS);
        Timers.register(OPERATIONS);
        PushConsumers.register(OPERATIONS);
        PullConsumers.register(OPERATIONS);
        LitePullConsumers.register(OPERATIONS);
        Admins.register(OPERATIONS);
        Requests.register(OPERATIONS);
        Tools.register(OPERATIONS);
        Traces.register(OPERATIONS);
        OPERATIONS.put("stop", Clients::stop);

        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        write(Map.of("event", "ready"));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            workers.execute(() -> answer(request));
        }
        // The test closed our input. Clients that still run would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JsonObject request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.get("id").getAsInt());
        try {
            Operation operation = OPERATIONS.get(request.get("do").getAsString());
            if (operation == null) {
                throw new IllegalArgumentException("no such operation: " + request.get("do"));
            }
            answer.put("result", operation.run(request));
        } catch (Throwable failure) {
            if (failure instanceof RuntimeException || failure instanceof Error) {
                failure.printStackTrace();
            }
            answer.put("error", describe(failure));
        }
        write(answer);
    }

    static void event(String event, String handle, Map<String, ?> details) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("handle", handle);
        line.putAll(details);
        write(line);
    }

    /** The class that a caller catches, its code, and the broker's code if the cause has one. */
    static Map<String, Object> describe(Throwable failure) {
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("class", failure.getClass().getSimpleName());
        error.put("code", code(failure));
        error.put("message", String.valueOf(failure.getMessage()));
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                error.put("broker_code", code(cause));
                break;
            }
        }
        return error;
    }

    private static Integer code(Throwable failure) {
        if (failure instanceof MQBrokerException) {
            return ((MQBrokerException) failure).getResponseCode();
        }
        return failure instanceof MQClientException ? ((MQClientException) failure).getResponseCode() : null;
    }

    private static void write(Map<String, ?> line) {
        String text = GSON.toJson(line);
        synchronized (ANSWERS) {
            ANSWERS.println(text);
        }
    }
}
