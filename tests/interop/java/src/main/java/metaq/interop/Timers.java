package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Messages for a given moment, and their recall. Only clients from 5.0 on have the methods, so they are looked up: this
 * file is compiled with older ones too.
 */
final class Timers {
    private Timers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("send_timed", Timers::send);
        operations.put("recall", request -> call(
            Clients.get(request, DefaultMQProducer.class), "recallMessage",
            new Class<?>[] {String.class, String.class},
            request.get("topic").getAsString(), request.get("recall_handle").getAsString()));
    }

    /** Each message names a method of {@code Message} under {@code timing}, and its argument under {@code time}. */
    private static Object send(JsonObject request) throws Exception {
        DefaultMQProducer producer = Clients.get(request, DefaultMQProducer.class);
        List<Object> results = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            JsonObject described = element.getAsJsonObject();
            Message message = Messages.build(request.get("topic").getAsString(), described);
            call(message, described.get("timing").getAsString(), new Class<?>[] {long.class},
                described.get("time").getAsLong());
            SendResult sent = producer.send(message);
            Map<String, Object> told = Messages.describe(sent);
            told.put("recall_handle", call(sent, "getRecallHandle", new Class<?>[0]));
            results.add(told);
        }
        return results;
    }

    private static Object call(Object target, String name, Class<?>[] kinds, Object... arguments) throws Exception {
        Method method = target.getClass().getMethod(name, kinds);
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof Exception) {
                throw (Exception) failure.getCause();
            }
            throw failure;
        }
    }
}
