package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers: every message is an event, which is written before the client gets the result. */
final class PushConsumers {
    private PushConsumers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("push_consumer", PushConsumers::start);
        operations.put("assignment", request -> Messages.queues(
            Clients.get(request, DefaultMQPushConsumer.class)
                .getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()));
        operations.put("consumed_offsets", PushConsumers::consumedOffsets);
    }

    private static Object start(JsonObject request) throws Exception {
        String group = request.get("group").getAsString();
        DefaultMQPushConsumer consumer = Clients.configure(
            Clients.flag(request, "trace", false)
                ? new DefaultMQPushConsumer(group, true, null)
                : new DefaultMQPushConsumer(group),
            request);
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf("CONSUME_FROM_" + Clients.text(request, "from", "FIRST_OFFSET")));
        if (request.has("from_time")) {
            consumer.setConsumeTimestamp(request.get("from_time").getAsString());
        }
        // The enum moved to another package between 4.x and 5.x; its value shows where it is.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), Clients.text(request, "model", "CLUSTERING")));
        consumer.setConsumeThreadMin(Clients.number(request, "threads", 4));
        consumer.setConsumeThreadMax(Clients.number(request, "threads", 4));
        consumer.setConsumeMessageBatchMaxSize(Clients.number(request, "batch", 1));
        consumer.setMaxReconsumeTimes(Clients.number(request, "tries_max", -1));
        consumer.setSuspendCurrentQueueTimeMillis(Clients.number(request, "suspend_ms", 1000));
        for (JsonElement topic : request.getAsJsonArray("topics")) {
            if (request.has("sql")) {
                consumer.subscribe(topic.getAsString(), MessageSelector.bySql(request.get("sql").getAsString()));
            } else {
                consumer.subscribe(topic.getAsString(), Clients.text(request, "expression", "*"));
            }
        }

        String handle = request.get("handle").getAsString();
        int pauseMs = Clients.number(request, "pause_ms", 0);
        boolean fails = Clients.flag(request, "fails", true);
        int retryLevel = Clients.number(request, "retry_level", 0);
        if (Clients.flag(request, "orderly", false)) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                tell(handle, messages, pauseMs);
                return fails && isToFail(messages)
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                tell(handle, messages, pauseMs);
                context.setDelayLevelWhenNextConsume(retryLevel);
                return fails && isToFail(messages)
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Clients.keep(request, consumer, consumer::shutdown);
        return consumer.buildMQClientId();
    }

    /** The offset that the client will commit next for each queue. */
    private static Object consumedOffsets(JsonObject request) {
        var consumer = Clients.get(request, DefaultMQPushConsumer.class).getDefaultMQPushConsumerImpl();
        List<Map<String, Object>> queues = new ArrayList<>();
        for (MessageQueue queue : consumer.getRebalanceImpl().getProcessQueueTable().keySet()) {
            Map<String, Object> told = Messages.describe(queue);
            told.put("queue_offset", consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
            queues.add(told);
        }
        return queues;
    }

    /** The property {@code fails} of a message says how often its processing fails. */
    private static boolean isToFail(Iterable<MessageExt> messages) {
        for (MessageExt message : messages) {
            String times = message.getUserProperty("fails");
            if (times != null && message.getReconsumeTimes() < Integer.parseInt(times)) {
                return true;
            }
        }
        return false;
    }

    private static void tell(String handle, Iterable<MessageExt> messages, int pauseMs) {
        for (MessageExt message : messages) {
            Driver.event("message", handle, Messages.describe(message));
            if (pauseMs > 0) {
                pause(pauseMs);
            }
        }
    }

    private static void pause(int pauseMs) {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException stopping) {
            Thread.currentThread().interrupt();
        }
    }
}
