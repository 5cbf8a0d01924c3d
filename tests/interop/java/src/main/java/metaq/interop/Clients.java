package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.ClientConfig;

/** The running clients, by the handle that the test gave them. */
final class Clients {
    private record Started(Object client, AutoCloseable stop) {
    }

    private static final Map<String, Started> STARTED = new ConcurrentHashMap<>();

    private Clients() {
    }

    /** Settings of every kind of client. A unique instance name separates the clients of one process. */
    static <C extends ClientConfig> C configure(C client, JsonObject request) {
        client.setNamesrvAddr(text(request, "namesrv", null));
        client.setInstanceName(text(request, "instance", text(request, "handle", null)));
        client.setClientIP("127.0.0.1");
        client.setVipChannelEnabled(flag(request, "vip", false));
        client.setPersistConsumerOffsetInterval(number(request, "persist_interval_ms", 5000));
        client.setHeartbeatBrokerInterval(number(request, "heartbeat_interval_ms", 30000));
        client.setPollNameServerInterval(number(request, "route_interval_ms", 30000));
        if (request.has("callback_threads")) {
            client.setClientCallbackExecutorThreads(number(request, "callback_threads", 0));
        }
        if (request.has("namespace")) {
            client.setNamespace(request.get("namespace").getAsString());
        }
        if (request.has("namespace_v2")) {
            setNamespaceV2(client, request.get("namespace_v2").getAsString());
        }
        return client;
    }

    /** Clients before 5.1 have no such method, and this program is built with them too. */
    private static void setNamespaceV2(ClientConfig client, String namespace) {
        try {
            ClientConfig.class.getMethod("setNamespaceV2", String.class).invoke(client, namespace);
        } catch (ReflectiveOperationException missing) {
            throw new IllegalArgumentException("this client has namespaces in names alone", missing);
        }
    }

    static void keep(JsonObject request, Object client, AutoCloseable stop) {
        STARTED.put(request.get("handle").getAsString(), new Started(client, stop));
    }

    static <C> C get(JsonObject request, Class<C> kind) {
        Started started = STARTED.get(request.get("handle").getAsString());
        if (started == null) {
            throw new IllegalArgumentException("no client was started as " + request.get("handle"));
        }
        return kind.cast(started.client());
    }

    static Object stop(JsonObject request) throws Exception {
        Started started = STARTED.remove(request.get("handle").getAsString());
        if (started != null) {
            try (Shutdown quick = new Shutdown(Thread.currentThread())) {
                started.stop().close();
            }
        }
        return started != null;
    }

    static String text(JsonObject request, String name, String otherwise) {
        JsonElement value = request.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsString();
    }

    static int number(JsonObject request, String name, int otherwise) {
        JsonElement value = request.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsInt();
    }

    static boolean flag(JsonObject request, String name, boolean otherwise) {
        JsonElement value = request.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsBoolean();
    }
}
