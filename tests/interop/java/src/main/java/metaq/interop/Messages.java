package metaq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages, queues and results as JSON; a body longer than this is reported as its digest alone. */
final class Messages {
    private static final int BODY_SHOWN_BYTES_MAX = 1024;

    private Messages() {
    }

    static Message build(String topic, JsonObject described) {
        String encoded = Clients.text(described, "body_base64", null);
        byte[] body = encoded != null
            ? Base64.getDecoder().decode(encoded)
            : described.get("body").getAsString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, body);
        message.setFlag(Clients.number(described, "flag", 0));
        if (described.has("tags")) {
            message.setTags(described.get("tags").getAsString());
        }
        if (described.has("keys")) {
            message.setKeys(described.get("keys").getAsString());
        }
        if (described.has("delay_level")) {
            message.setDelayTimeLevel(described.get("delay_level").getAsInt());
        }
        if (described.has("sharding_key")) {
            MessageAccessor.putProperty(message, "__SHARDINGKEY", described.get("sharding_key").getAsString());
        }
        if (described.has("priority")) {
            setPriority(message, described.get("priority").getAsInt());
        }
        if (described.has("properties")) {
            for (Map.Entry<String, JsonElement> property : described.getAsJsonObject("properties").entrySet()) {
                message.putUserProperty(property.getKey(), property.getValue().getAsString());
            }
        }
        return message;
    }

    /** Clients before 5.4 have no such method, and this program is built with them too. */
    private static void setPriority(Message message, int priority) {
        try {
            Message.class.getMethod("setPriority", int.class).invoke(message, priority);
        } catch (ReflectiveOperationException missing) {
            throw new IllegalArgumentException("this client has no priorities", missing);
        }
    }

    static Map<String, Object> describe(MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, Object> told = describe(
            new MessageQueue(message.getTopic(), message.getBrokerName(), message.getQueueId()));
        told.put("queue_offset", message.getQueueOffset());
        told.put("physical_offset", message.getCommitLogOffset());
        told.put("id", message.getMsgId());
        told.put("offset_id",
            message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        told.put("body", body.length > BODY_SHOWN_BYTES_MAX ? null : new String(body, StandardCharsets.UTF_8));
        told.put("body_bytes", body.length);
        told.put("body_sha256", sha256(body));
        told.put("tags", message.getTags());
        told.put("keys", message.getKeys());
        told.put("flag", message.getFlag());
        told.put("system_flag", message.getSysFlag());
        told.put("properties", message.getProperties());
        told.put("stored_bytes", message.getStoreSize());
        told.put("born_timestamp_ms", message.getBornTimestamp());
        told.put("store_timestamp_ms", message.getStoreTimestamp());
        told.put("born_host", message.getBornHostString());
        told.put("store_host", String.valueOf(message.getStoreHost()));
        told.put("reconsume_times", message.getReconsumeTimes());
        return told;
    }

    static List<Map<String, Object>> describe(List<MessageExt> messages) {
        List<Map<String, Object>> told = new ArrayList<>();
        for (MessageExt message : messages) {
            told.add(describe(message));
        }
        return told;
    }

    static Map<String, Object> describe(SendResult sent) {
        Map<String, Object> told = describe(sent.getMessageQueue());
        told.put("status", sent.getSendStatus().name());
        told.put("id", sent.getMsgId());
        told.put("offset_id", sent.getOffsetMsgId());
        told.put("queue_offset", sent.getQueueOffset());
        told.put("region", sent.getRegionId());
        return told;
    }

    static Map<String, Object> describe(MessageQueue queue) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("topic", queue.getTopic());
        told.put("broker", queue.getBrokerName());
        told.put("queue_id", queue.getQueueId());
        return told;
    }

    static List<Map<String, Object>> queues(Iterable<MessageQueue> queues) {
        List<Map<String, Object>> told = new ArrayList<>();
        for (MessageQueue queue : queues) {
            told.add(describe(queue));
        }
        return told;
    }

    /** The queue a request names by {@code topic}, {@code broker} and {@code queue_id}. */
    static MessageQueue queue(JsonObject request) {
        return new MessageQueue(
            request.get("topic").getAsString(), request.get("broker").getAsString(), request.get("queue_id").getAsInt());
    }

    private static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
