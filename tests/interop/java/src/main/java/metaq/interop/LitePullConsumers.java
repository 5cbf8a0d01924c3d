package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** The lite pull consumer: subscribed (the group shares the queues) or assigned (the test names the queues). */
final class LitePullConsumers {
    private LitePullConsumers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("lite_consumer", LitePullConsumers::start);
        operations.put("lite_queues", request ->
            Messages.queues(consumer(request).fetchMessageQueues(request.get("topic").getAsString())));
        operations.put("lite_assign", request -> {
            List<MessageQueue> queues = new ArrayList<>();
            for (JsonElement queue : request.getAsJsonArray("queues")) {
                queues.add(Messages.queue(queue.getAsJsonObject()));
            }
            consumer(request).assign(queues);
            return null;
        });
        operations.put("lite_seek", request -> {
            consumer(request).seek(Messages.queue(request), request.get("queue_offset").getAsLong());
            return null;
        });
        operations.put("lite_poll", request ->
            Messages.describe(consumer(request).poll(Clients.number(request, "timeout_ms", 1000))));
        operations.put("lite_commit", request -> {
            consumer(request).commitSync();
            return null;
        });
        operations.put("lite_committed", request -> consumer(request).committed(Messages.queue(request)));
    }

    private static Object start(JsonObject request) throws Exception {
        DefaultLitePullConsumer consumer =
            Clients.configure(new DefaultLitePullConsumer(request.get("group").getAsString()), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(Clients.flag(request, "auto_commit", true));
        if (request.has("topic")) {
            consumer.subscribe(request.get("topic").getAsString(), Clients.text(request, "expression", "*"));
        }
        consumer.start();
        Clients.keep(request, consumer, consumer::shutdown);
        return consumer.buildMQClientId();
    }

    private static DefaultLitePullConsumer consumer(JsonObject request) {
        return Clients.get(request, DefaultLitePullConsumer.class);
    }
}
