package metaq.interop;

import com.google.gson.JsonObject;
import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The producer of transactions. The message contains the answers of its listener: the property {@code local} for the
 * transaction itself, and {@code checks} for the checks, one word each. The last word also answers all later checks.
 */
final class TransactionProducers {
    private TransactionProducers() {
    }

    static void register(Map<String, Driver.Operation> operations) {
        operations.put("transaction_producer", TransactionProducers::start);
    }

    private static Object start(JsonObject request) throws Exception {
        String group = request.get("group").getAsString();
        TransactionMQProducer producer = Clients.configure(
            Clients.flag(request, "trace", false)
                ? new TransactionMQProducer(null, group, null, true, null)
                : new TransactionMQProducer(group),
            request);
        producer.setSendMsgTimeout(Clients.number(request, "timeout_ms", 10000));
        producer.setTransactionListener(listener(request.get("handle").getAsString()));
        producer.start();
        Clients.keep(request, producer, producer::shutdown);
        return producer.buildMQClientId();
    }

    private static TransactionListener listener(String handle) {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(message.getUserProperty("local"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> told = Messages.describe(message);
                told.put("transaction_id", message.getTransactionId());
                Driver.event("check", handle, told);
                String[] answers = message.getUserProperty("checks").split(",");
                int times = Integer.parseInt(message.getUserProperty("TRANSACTION_CHECK_TIMES"));
                return state(answers[Math.min(times, answers.length) - 1]);
            }
        };
    }

    private static LocalTransactionState state(String word) {
        switch (word) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
