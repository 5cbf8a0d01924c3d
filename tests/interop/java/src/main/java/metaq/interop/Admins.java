package metaq.interop;

import com.google.gson.JsonObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The few administration calls that tests of clients need.
 *
 * <p>{@code var} throughout: the classes of the answers moved to other packages between 4.x and 5.x.
 */
final class Admins {
    private static final long TIMEOUT_MS = 10_000;

    private Admins() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("admin", Admins::start);
        operations.put("create_topic", request -> {
            TopicConfig topic = new TopicConfig(request.get("topic").getAsString());
            topic.setReadQueueNums(Clients.number(request, "queues", 4));
            topic.setWriteQueueNums(Clients.number(request, "queues", 4));
            topic.setPerm(Clients.number(request, "permission", 6));
            admin(request).createAndUpdateTopicConfig(request.get("address").getAsString(), topic);
            return null;
        });
        operations.put("topic_route", Admins::route);
        operations.put("resume_half", Admins::resume);
        operations.put("set_group", Admins::setGroup);
        operations.put("topic_stats", Admins::stats);
        operations.put("topic_names", request -> admin(request).fetchAllTopicList().getTopicList());
        operations.put("consumer_connections", request -> {
            List<String> ids = new ArrayList<>();
            for (var connection : admin(request)
                .examineConsumerConnectionInfo(request.get("group").getAsString()).getConnectionSet()) {
                ids.add(connection.getClientId());
            }
            return ids;
        });
        operations.put("topic_groups", request ->
            admin(request).queryTopicConsumeByWho(request.get("topic").getAsString()).getGroupList());
        operations.put("consume_stats", Admins::consumeStats);
        operations.put("time_spans", Admins::timeSpans);
        operations.put("reset_offsets", Admins::resetOffsets);
        operations.put("clone_offsets", request -> {
            admin(request).cloneGroupOffset(
                request.get("group").getAsString(), request.get("to").getAsString(), request.get("topic").getAsString(),
                Clients.flag(request, "offline", false));
            return null;
        });
    }

    /** The class of a group's settings moved too. The parameter of the method shows which class to create. */
    private static Object setGroup(JsonObject request) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals("createAndUpdateSubscriptionGroupConfig")) {
                Class<?> kind = method.getParameterTypes()[1];
                Object group = kind.getConstructor().newInstance();
                kind.getMethod("setGroupName", String.class).invoke(group, request.get("group").getAsString());
                kind.getMethod("setRetryMaxTimes", int.class).invoke(group, Clients.number(request, "tries_max", 16));
                kind.getMethod("setRetryQueueNums", int.class).invoke(group, Clients.number(request, "retry_queues", 1));
                try {
                    return method.invoke(admin(request), request.get("address").getAsString(), group);
                } catch (InvocationTargetException refused) {
                    throw (Exception) refused.getCause();
                }
            }
        }
        throw new NoSuchMethodException("createAndUpdateSubscriptionGroupConfig");
    }

    private static Object resume(JsonObject request) throws Exception {
        return admin(request).resumeCheckHalfMessage(
            request.get("topic").getAsString(), request.get("message_id").getAsString());
    }

    private static Object start(JsonObject request) throws Exception {
        DefaultMQAdminExt admin = Clients.configure(new DefaultMQAdminExt(TIMEOUT_MS), request);
        admin.setAdminExtGroup(request.get("handle").getAsString());
        admin.start();
        Clients.keep(request, admin, admin::shutdown);
        return null;
    }

    private static Object route(JsonObject request) throws Exception {
        var route = admin(request).examineTopicRouteInfo(request.get("topic").getAsString());
        List<Map<String, Object>> queues = new ArrayList<>();
        for (var data : route.getQueueDatas()) {
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("broker", data.getBrokerName());
            told.put("read_queues", data.getReadQueueNums());
            told.put("write_queues", data.getWriteQueueNums());
            told.put("permission", data.getPerm());
            queues.add(told);
        }
        Map<String, Object> brokers = new LinkedHashMap<>();
        for (var data : route.getBrokerDatas()) {
            Map<String, Object> addresses = new LinkedHashMap<>();
            data.getBrokerAddrs().forEach((id, address) -> addresses.put(String.valueOf(id), address));
            brokers.put(data.getBrokerName(), Map.of("cluster", data.getCluster(), "addresses", addresses));
        }
        return Map.of("queues", queues, "brokers", brokers);
    }

    private static Object stats(JsonObject request) throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        admin(request).examineTopicStats(request.get("topic").getAsString()).getOffsetTable()
            .forEach((queue, bounds) -> {
                Map<String, Object> told = Messages.describe(queue);
                told.put("min_offset", bounds.getMinOffset());
                told.put("max_offset", bounds.getMaxOffset());
                told.put("last_update_ms", bounds.getLastUpdateTimestamp());
                queues.add(told);
            });
        return queues;
    }

    /** The committed offsets of a group, and the ends of the queues. */
    private static Object consumeStats(JsonObject request) throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        admin(request).examineConsumeStats(request.get("group").getAsString()).getOffsetTable()
            .forEach((queue, place) -> {
                Map<String, Object> told = Messages.describe(queue);
                told.put("max_offset", place.getBrokerOffset());
                told.put("committed_offset", place.getConsumerOffset());
                told.put("consumed_ms", place.getLastTimestamp());
                queues.add(told);
            });
        return queues;
    }

    /** The times up to which a group has consumed. */
    private static Object timeSpans(JsonObject request) throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        for (var span : admin(request).queryConsumeTimeSpan(
            request.get("topic").getAsString(), request.get("group").getAsString())) {
            Map<String, Object> told = Messages.describe(span.getMessageQueue());
            told.put("first_ms", span.getMinTimeStamp());
            told.put("last_ms", span.getMaxTimeStamp());
            told.put("consumed_ms", span.getConsumeTimeStamp());
            told.put("behind_ms", span.getDelayTime());
            queues.add(told);
        }
        return queues;
    }

    /** The offset at which the group continues in each queue. */
    private static Object resetOffsets(JsonObject request) throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        admin(request).resetOffsetByTimestamp(
            request.get("topic").getAsString(), request.get("group").getAsString(),
            request.get("timestamp_ms").getAsLong(), Clients.flag(request, "force", true))
            .forEach((queue, queueOffset) -> {
                Map<String, Object> told = Messages.describe(queue);
                told.put("queue_offset", queueOffset);
                queues.add(told);
            });
        return queues;
    }

    private static DefaultMQAdminExt admin(JsonObject request) {
        return Clients.get(request, DefaultMQAdminExt.class);
    }
}
