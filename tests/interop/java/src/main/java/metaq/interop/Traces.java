package metaq.interop;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/** The body of a message of the trace topic, as Apache's own decoder reads it. */
final class Traces {
    private Traces() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("decode_trace", Traces::decode);
    }

    private static Object decode(JsonObject request) {
        List<Map<String, Object>> told = new ArrayList<>();
        for (TraceContext context :
            TraceDataEncoder.decoderFromTraceDataString(request.get("data").getAsString())) {
            TraceBean bean = context.getTraceBeans().get(0);
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("type", context.getTraceType().name());
            one.put("timestamp_ms", context.getTimeStamp());
            one.put("region", context.getRegionId());
            one.put("group", context.getGroupName());
            one.put("request_id", context.getRequestId());
            one.put("cost_ms", context.getCostTime());
            one.put("success", context.isSuccess());
            one.put("context_code", context.getContextCode());
            one.put("topic", bean.getTopic());
            one.put("id", bean.getMsgId());
            one.put("offset_id", bean.getOffsetMsgId());
            one.put("tags", bean.getTags());
            one.put("keys", bean.getKeys());
            one.put("store_host", bean.getStoreHost());
            one.put("body_bytes", bean.getBodyLength());
            one.put("retries", bean.getRetryTimes());
            one.put("message_type", bean.getMsgType() == null ? null : bean.getMsgType().name());
            one.put("transaction_id", bean.getTransactionId());
            one.put("transaction_state",
                bean.getTransactionState() == null ? null : bean.getTransactionState().name());
            one.put("from_check", bean.isFromTransactionCheck());
            told.add(one);
        }
        return told;
    }
}
