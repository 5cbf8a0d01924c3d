package metaq.interop;

import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The old pull consumer: the test names the queue, the offset and the number of messages. */
final class PullConsumers {
    private PullConsumers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("pull_consumer", PullConsumers::start);
        operations.put("subscribe_queues", request ->
            Messages.queues(consumer(request).fetchSubscribeMessageQueues(request.get("topic").getAsString())));
        operations.put("pull", PullConsumers::pull);
        operations.put("queue_bounds", PullConsumers::bounds);
        operations.put("search_offset", request ->
            consumer(request).searchOffset(Messages.queue(request), request.get("timestamp_ms").getAsLong()));
        operations.put("commit_offset", request -> {
            consumer(request).getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(
                Messages.queue(request), request.get("queue_offset").getAsLong(), Clients.flag(request, "oneway", true));
            return null;
        });
        operations.put("committed_offset", request ->
            consumer(request).fetchConsumeOffset(Messages.queue(request), true));
    }

    private static Object start(JsonObject request) throws Exception {
        DefaultMQPullConsumer consumer =
            Clients.configure(new DefaultMQPullConsumer(request.get("group").getAsString()), request);
        consumer.start();
        Clients.keep(request, consumer, consumer::shutdown);
        return consumer.buildMQClientId();
    }

    private static Object pull(JsonObject request) throws Exception {
        MessageQueue queue = Messages.queue(request);
        long queueOffset = request.get("queue_offset").getAsLong();
        String expression = Clients.text(request, "expression", "*");
        int most = Clients.number(request, "most", 32);
        PullResult pulled;
        if (request.has("sql")) {
            var selector = MessageSelector.bySql(request.get("sql").getAsString());
            pulled = consumer(request).pull(queue, selector, queueOffset, most);
        } else if (Clients.flag(request, "hold", false)) {
            pulled = consumer(request).pullBlockIfNotFound(queue, expression, queueOffset, most);
        } else {
            pulled = consumer(request).pull(queue, expression, queueOffset, most);
        }
        List<MessageExt> found = pulled.getMsgFoundList();
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("status", pulled.getPullStatus().name());
        told.put("next_offset", pulled.getNextBeginOffset());
        told.put("min_offset", pulled.getMinOffset());
        told.put("max_offset", pulled.getMaxOffset());
        told.put("messages", Messages.describe(found == null ? List.of() : found));
        return told;
    }

    private static Object bounds(JsonObject request) throws Exception {
        MessageQueue queue = Messages.queue(request);
        Map<String, Object> told = Messages.describe(queue);
        told.put("min_offset", consumer(request).minOffset(queue));
        told.put("max_offset", consumer(request).maxOffset(queue));
        told.put("earliest_store_timestamp_ms", consumer(request).earliestMsgStoreTime(queue));
        return told;
    }

    private static DefaultMQPullConsumer consumer(JsonObject request) {
        return Clients.get(request, DefaultMQPullConsumer.class);
    }
}
