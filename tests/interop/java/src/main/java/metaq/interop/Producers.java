package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way in which Apache's producer can send a message. */
final class Producers {
    /** Sends one message in one way; returns null for a oneway send, which has no answer. */
    private interface Sender {
        SendResult send(DefaultMQProducer producer, Message message, JsonObject described) throws Exception;
    }

    /** The remainder of the key selects the queue, so that messages with one key keep their order. */
    private static final MessageQueueSelector BY_KEY =
        (queues, message, key) -> queues.get(Math.floorMod(key.hashCode(), queues.size()));

    private static final long ASYNC_TIMEOUT_S = 30;

    private Producers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        Map<String, Sender> senders = new HashMap<>();
        senders.put("sync", (producer, message, described) -> producer.send(message));
        senders.put("queue", (producer, message, described) -> producer.send(message, Messages.queue(described)));
        senders.put("selected", (producer, message, described) ->
            producer.send(message, BY_KEY, described.get("order_key").getAsString()));
        senders.put("hashed", (producer, message, described) ->
            producer.send(message, new SelectMessageQueueByHash(), described.get("order_key").getAsString()));
        senders.put("transaction", (producer, message, described) ->
            ((TransactionMQProducer) producer).sendMessageInTransaction(message, null));
        senders.put("oneway", (producer, message, described) -> {
            producer.sendOneway(message);
            return null;
        });

        operations.put("producer", Producers::start);
        operations.put("send", request -> {
            String how = Clients.text(request, "how", "sync");
            switch (how) {
                case "batch":
                    return sendBatch(request);
                case "async":
                    return sendAsync(request);
                default:
                    return sendEach(request, senders.get(how));
            }
        });
        operations.put("stream", Producers::stream);
        operations.put("view", request -> Messages.describe(
            Clients.get(request, DefaultMQProducer.class)
                .viewMessage(request.get("topic").getAsString(), request.get("message_id").getAsString())));
        operations.put("query", request -> Messages.describe(
            Clients.get(request, DefaultMQProducer.class).queryMessage(
                request.get("topic").getAsString(), request.get("key").getAsString(), Clients.number(request, "most", 32),
                request.get("begin_ms").getAsLong(), request.get("end_ms").getAsLong()).getMessageList()));
        operations.put("publish_queues", request -> Messages.queues(
            Clients.get(request, DefaultMQProducer.class)
                .fetchPublishMessageQueues(request.get("topic").getAsString())));
    }

    private static Object start(JsonObject request) throws Exception {
        String group = request.get("group").getAsString();
        DefaultMQProducer producer = Clients.configure(
            Clients.flag(request, "trace", false)
                ? new DefaultMQProducer(group, true, null)
                : new DefaultMQProducer(group),
            request);
        producer.setSendMsgTimeout(Clients.number(request, "timeout_ms", 10000));
        producer.setRetryTimesWhenSendFailed(Clients.number(request, "retries", 2));
        producer.setRetryTimesWhenSendAsyncFailed(Clients.number(request, "retries", 2));
        producer.setCompressMsgBodyOverHowmuch(Clients.number(request, "compress_over_bytes", 4096));
        if (request.has("compression")) {
            setCompression(producer, request.get("compression").getAsString());
        }
        producer.setMaxMessageSize(Clients.number(request, "message_bytes_max", 4 * 1024 * 1024));
        producer.setDefaultTopicQueueNums(Clients.number(request, "default_topic_queues", 4));
        producer.start();
        Clients.keep(request, producer, producer::shutdown);
        return producer.buildMQClientId();
    }

    /** Clients before 5.0 have zlib alone, and this program is built with them too. */
    private static void setCompression(DefaultMQProducer producer, String name) {
        try {
            Class<?> kind = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            Object wanted = kind.getMethod("valueOf", String.class).invoke(null, name);
            DefaultMQProducer.class.getMethod("setCompressType", kind).invoke(producer, wanted);
        } catch (ReflectiveOperationException missing) {
            throw new IllegalArgumentException("this client cannot choose its compression", missing);
        }
    }

    /** A list as long as the messages; with {@code "failures": "told"}, a failed send is an entry and does not end the call. */
    private static Object sendEach(JsonObject request, Sender sender) throws Exception {
        DefaultMQProducer producer = Clients.get(request, DefaultMQProducer.class);
        boolean tolerant = "told".equals(Clients.text(request, "failures", null));
        List<Object> results = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            JsonObject described = element.getAsJsonObject();
            Message message = Messages.build(request.get("topic").getAsString(), described);
            described.add("topic", request.get("topic"));
            try {
                SendResult sent = sender.send(producer, message, described);
                results.add(sent == null ? null : Messages.describe(sent));
            } catch (Exception failure) {
                if (!tolerant) {
                    throw failure;
                }
                results.add(Map.of("error", Driver.describe(failure)));
            }
        }
        return results;
    }

    private static Object sendBatch(JsonObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            messages.add(Messages.build(request.get("topic").getAsString(), element.getAsJsonObject()));
        }
        return Messages.describe(Clients.get(request, DefaultMQProducer.class).send(messages));
    }

    private static Object sendAsync(JsonObject request) throws Exception {
        DefaultMQProducer producer = Clients.get(request, DefaultMQProducer.class);
        List<CompletableFuture<Object>> pending = new ArrayList<>();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            CompletableFuture<Object> result = new CompletableFuture<>();
            pending.add(result);
            Message message = Messages.build(request.get("topic").getAsString(), element.getAsJsonObject());
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    result.complete(Messages.describe(sent));
                }

                @Override
                public void onException(Throwable failure) {
                    result.completeExceptionally(failure);
                }
            });
        }
        List<Object> results = new ArrayList<>();
        for (CompletableFuture<Object> result : pending) {
            results.add(result.get(ASYNC_TIMEOUT_S, TimeUnit.SECONDS));
        }
        return results;
    }

    /** Sends one message after another until the handle is stopped; each outcome is an event. */
    private static Object stream(JsonObject request) {
        JsonObject of = new JsonObject();
        of.add("handle", request.get("producer"));
        DefaultMQProducer producer = Clients.get(of, DefaultMQProducer.class);
        String handle = request.get("handle").getAsString();
        String topic = request.get("topic").getAsString();
        int pauseMs = Clients.number(request, "pause_ms", 2);
        // Not an interruption: the client may swallow one.
        AtomicBoolean wanted = new AtomicBoolean(true);
        Thread sender = new Thread(() -> {
            for (int number = 0; wanted.get(); number++) {
                sendOne(producer, topic, handle, handle + "-" + number);
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(pauseMs));
            }
        });
        sender.start();
        Clients.keep(request, sender, () -> {
            wanted.set(false);
            sender.join();
        });
        return null;
    }

    private static void sendOne(DefaultMQProducer producer, String topic, String handle, String body) {
        Map<String, Object> outcome;
        try {
            outcome = Messages.describe(producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8))));
        } catch (Exception failure) {
            outcome = Driver.describe(failure);
        }
        outcome.put("body", body);
        Driver.event(outcome.containsKey("status") ? "acknowledged" : "refused", handle, outcome);
    }
}
