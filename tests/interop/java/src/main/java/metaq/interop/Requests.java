package metaq.interop;

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that wait for a reply, and consumers that give one. */
final class Requests {
    private Requests() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("request", request -> {
            DefaultMQProducer producer = Clients.get(request, DefaultMQProducer.class);
            Message question = Messages.build(request.get("topic").getAsString(), request);
            Message reply = producer.request(question, Clients.number(request, "timeout_ms", 10_000));
            return Map.of(
                "body", new String(reply.getBody(), StandardCharsets.UTF_8),
                "properties", reply.getProperties());
        });
        operations.put("replier", Requests::startReplier);
    }

    /** Answers every message with {@code re:} and its body; the outcome of the reply is an event. */
    private static Object startReplier(JsonObject request) throws Exception {
        String handle = request.get("handle").getAsString();
        String group = request.get("group").getAsString();
        DefaultMQProducer producer = Clients.configure(new DefaultMQProducer(group + "_replies"), request);
        producer.setRetryTimesWhenSendFailed(0);
        DefaultMQPushConsumer consumer = Clients.configure(new DefaultMQPushConsumer(group), request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.get("topic").getAsString(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                reply(producer, message, handle);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.start();
        consumer.start();
        Clients.keep(request, consumer, () -> {
            consumer.shutdown();
            producer.shutdown();
        });
        return consumer.buildMQClientId();
    }

    private static void reply(DefaultMQProducer producer, MessageExt message, String handle) {
        try {
            String body = "re:" + new String(message.getBody(), StandardCharsets.UTF_8);
            Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
            Driver.event("replied", handle, Messages.describe(producer.send(reply)));
        } catch (Exception failure) {
            Driver.event("unreplied", handle, Driver.describe(failure));
        }
    }
}
