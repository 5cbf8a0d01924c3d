import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.File;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Apache's own message store on a directory: `write` appends messages of every shape, `read` prints everything that
 * it contains. Both print one JSON object on the last line of stdout.
 *
 * <pre>
 * ApacheStore write DIR SEED   appends and stops cleanly; prints each message as stored
 * ApacheStore crash DIR SEED   the same, but dies right after the last append
 * ApacheStore read DIR         prints every queue message by message, and what key and time queries find
 * ApacheStore verify DIR       prints whether Apache finds the checksum of each record of the queues right
 * </pre>
 * A last argument `checksums` turns on enabledAppendPropCRC and forceVerifyPropCRC.
 */
public final class ApacheStore {
    // The same small sizes as the Python side, so that every kind of file rolls.
    private static final int COMMIT_LOG_FILE_BYTES = 64 * 1024;
    private static final int CONSUME_QUEUE_FILE_ENTRIES = 50;
    private static final int INDEX_SLOTS = 101;
    private static final int INDEX_ENTRIES = 400;
    private static final int ROUNDS = 120;
    private static final long DISPATCH_TIMEOUT_MS = 30_000;

    private static final SocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final SocketAddress STORE_HOST_V6 = new InetSocketAddress("fe80::1:2", 10911);
    private static final SocketAddress BORN_HOST = new InetSocketAddress("10.1.2.3", 54321);
    private static final SocketAddress BORN_HOST_V6 = new InetSocketAddress("2001:db8::7", 65001);
    private static final String LONG_TOPIC = "%RETRY%" + "g".repeat(180);

    private final DefaultMessageStore store;

    private ApacheStore(String directory, boolean checksums) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(COMMIT_LOG_FILE_BYTES);
        config.setMappedFileSizeConsumeQueue(CONSUME_QUEUE_FILE_ENTRIES * 20);
        config.setMaxHashSlotNum(INDEX_SLOTS);
        config.setMaxIndexNum(INDEX_ENTRIES);
        config.setMaxMsgsNumBatch(100_000);
        config.setHaListenPort(0);
        config.setCleanResourceInterval(600_000);
        config.setEnabledAppendPropCRC(checksums);
        config.setForceVerifyPropCRC(checksums);
        store = new DefaultMessageStore(config, new BrokerStatsManager("store", true),
            (topic, queueId, queueOffset, tagsCode, storeTime, filterBitMap, properties) -> { },
            new BrokerConfig(), new ConcurrentHashMap<>());
    }

    public static void main(String[] arguments) {
        PrintStream result = System.out;
        System.setOut(System.err);
        try {
            result.println(JSON.toJSONString(run(arguments), JSONWriter.Feature.WriteNulls));
            result.flush();
            if (arguments[0].equals("crash")) {
                Runtime.getRuntime().halt(0);
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            // The store's own threads would keep the process alive.
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    private static Object run(String[] arguments) throws Exception {
        List<String> options = List.of(arguments).subList(2, arguments.length);
        ApacheStore self = new ApacheStore(arguments[1], options.contains("checksums"));
        if (!self.store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        self.store.start();
        Object told = switch (arguments[0]) {
            case "read" -> self.read();
            case "verify" -> self.verify();
            default -> self.write(arguments[2]);
        };
        if (!arguments[0].equals("crash")) {
            self.waitForDispatch();
            self.store.shutdown();
        }
        return told;
    }

    // ------------------------------------------------------------------------------------------------ write

    private Map<String, Object> write(String seed) throws Exception {
        List<Map<String, Object>> written = new ArrayList<>();
        for (int round = 0; round < ROUNDS; round++) {
            written.add(put(plain(seed, round)));
            written.add(put(longTopic(seed, round)));
            written.add(put(versionSix(seed, round)));
            written.addAll(putBatch(seed, round));
            if (round % 10 == 0) {
                written.add(put(transaction(seed, round, MessageSysFlag.TRANSACTION_PREPARED_TYPE)));
                written.add(put(transaction(seed, round, MessageSysFlag.TRANSACTION_ROLLBACK_TYPE)));
                Thread.sleep(3);
            }
        }
        return Map.of("written", written);
    }

    private MessageExtBrokerInner plain(String seed, int round) {
        MessageExtBrokerInner message = message("orders", round % 4, "plain " + seed + " " + round);
        if (round % 3 != 0) {
            message.setTags("tag" + round % 3);
        }
        message.setKeys(seed + "_key" + round + " " + seed + "_shared");
        message.setFlag(round);
        message.setReconsumeTimes(round % 5);
        MessageAccessor.putProperty(message, "größe", "ü" + round);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, seed + "_unique" + round);
        return sealed(message);
    }

    private MessageExtBrokerInner longTopic(String seed, int round) {
        MessageExtBrokerInner message = message(LONG_TOPIC, 0, "long " + seed + " " + round + "x".repeat(round * 7));
        message.setKeys(seed + "_long" + round);
        return sealed(message);
    }

    private MessageExtBrokerInner versionSix(String seed, int round) {
        MessageExtBrokerInner message = message("six", round % 2, "six " + seed + " " + round);
        message.setBornHost(BORN_HOST_V6);
        message.setBornHostV6Flag();
        if (round % 2 == 0) {
            message.setStoreHost(STORE_HOST_V6);
            message.setStoreHostAddressV6Flag();
        }
        return sealed(message);
    }

    private MessageExtBrokerInner transaction(String seed, int round, int type) {
        MessageExtBrokerInner message = message("orders", 0, "transaction " + seed + " " + round);
        message.setSysFlag(type);
        message.setPreparedTransactionOffset(round);
        return sealed(message);
    }

    private static MessageExtBrokerInner message(String topic, int queueId, String body) {
        return fill(new MessageExtBrokerInner(), topic, queueId, body.getBytes(StandardCharsets.UTF_8));
    }

    private static <M extends MessageExtBrokerInner> M fill(M message, String topic, int queueId, byte[] body) {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        MessageAccessor.putProperty(message, "round", "trip");
        return message;
    }

    private static MessageExtBrokerInner sealed(MessageExtBrokerInner message) {
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private Map<String, Object> put(MessageExtBrokerInner message) {
        PutMessageResult outcome = store.putMessage(message);
        if (!outcome.isOk()) {
            throw new IllegalStateException("not stored: " + outcome);
        }
        return facts(store.lookMessageByOffset(outcome.getAppendMessageResult().getWroteOffset()));
    }

    private List<Map<String, Object>> putBatch(String seed, int round) {
        List<Message> parts = new ArrayList<>();
        for (int part = 0; part < 1 + round % 4; part++) {
            Message message = new Message("batches", "tag" + part, seed + "_batch" + round,
                ("batch " + seed + " " + round + " " + part).getBytes(StandardCharsets.UTF_8));
            message.setFlag(part);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                seed + "_part" + round + "_" + part);
            parts.add(message);
        }
        MessageExtBatch batch = fill(new MessageExtBatch(), "batches", round % 3, MessageDecoder.encodeMessages(parts));
        PutMessageResult outcome = store.putMessages(batch);
        if (!outcome.isOk()) {
            throw new IllegalStateException("not stored: " + outcome);
        }
        List<Map<String, Object>> written = new ArrayList<>();
        long physicalOffset = outcome.getAppendMessageResult().getWroteOffset();
        for (int part = 0; part < parts.size(); part++) {
            MessageExt stored = store.lookMessageByOffset(physicalOffset);
            written.add(facts(stored));
            physicalOffset += stored.getStoreSize();
        }
        return written;
    }

    private void waitForDispatch() throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_TIMEOUT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch is still behind");
            }
            Thread.sleep(5);
        }
    }

    // ------------------------------------------------------------------------------------------------- read

    private Map<String, Object> read() throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        for (Map.Entry<String, TreeSet<Integer>> topic : topics().entrySet()) {
            for (int queueId : topic.getValue()) {
                queues.add(readQueue(topic.getKey(), queueId));
            }
        }
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("queues", queues);
        told.put("commit_log_min_offset", store.getMinPhyOffset());
        told.put("commit_log_max_offset", store.getMaxPhyOffset());
        return told;
    }

    private Map<String, Object> verify() throws Exception {
        Map<String, Boolean> verified = new TreeMap<>();
        for (Map.Entry<String, TreeSet<Integer>> topic : topics().entrySet()) {
            for (int queueId : topic.getValue()) {
                long end = store.getMaxOffsetInQueue(topic.getKey(), queueId);
                for (long queueOffset = store.getMinOffsetInQueue(topic.getKey(), queueId); queueOffset < end; queueOffset++) {
                    GetMessageResult got = store.getMessage("readers", topic.getKey(), queueId, queueOffset, 1, null);
                    ByteBuffer record = got.getMessageBufferList().get(0);
                    long physicalOffset = record.getLong(record.position() + 28);
                    verified.put(Long.toString(physicalOffset),
                        store.getCommitLog().checkMessageAndReturnSize(record, true, false, true).isSuccess());
                    got.release();
                }
            }
        }
        return Map.of("verified", verified);
    }

    private TreeMap<String, TreeSet<Integer>> topics() {
        TreeMap<String, TreeSet<Integer>> found = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, queues) -> found.put(topic, new TreeSet<>(queues.keySet())));
        return found;
    }

    private Map<String, Object> readQueue(String topic, int queueId) throws Exception {
        long begin = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        List<Map<String, Object>> messages = new ArrayList<>();
        for (long queueOffset = begin; queueOffset < end; queueOffset++) {
            messages.add(readOne(topic, queueId, queueOffset));
        }
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("topic", topic);
        told.put("queue_id", queueId);
        told.put("min_offset", begin);
        told.put("max_offset", end);
        told.put("messages", messages);
        return told;
    }

    private Map<String, Object> readOne(String topic, int queueId, long queueOffset) {
        GetMessageResult got = store.getMessage("readers", topic, queueId, queueOffset, 1, null);
        if (got == null || got.getStatus() != GetMessageStatus.FOUND) {
            throw new IllegalStateException(topic + "/" + queueId + " at " + queueOffset + ": " + got);
        }
        MessageExt message = MessageDecoder.decode(got.getMessageBufferList().get(0), true, false);
        got.release();
        MessageExt looked = store.lookMessageByOffset(message.getCommitLogOffset());
        Map<String, Object> facts = facts(message);
        if (!facts.equals(facts(looked))) {
            throw new IllegalStateException("by offset " + facts(looked) + ", by queue " + facts);
        }
        long storedAt = message.getStoreTimestamp();
        facts.put("first_not_before", store.getOffsetInQueueByTime(topic, queueId, storedAt, BoundaryType.LOWER));
        facts.put("last_not_after", store.getOffsetInQueueByTime(topic, queueId, storedAt, BoundaryType.UPPER));
        facts.put("found_by_key", foundByKey(message));
        return facts;
    }

    private Map<String, List<Long>> foundByKey(MessageExt message) {
        List<String> keys = new ArrayList<>();
        if (message.getKeys() != null) {
            keys.addAll(List.of(message.getKeys().split(MessageConst.KEY_SEPARATOR)));
        }
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (unique != null) {
            keys.add(unique);
        }
        Map<String, List<Long>> found = new TreeMap<>();
        for (String key : keys) {
            List<Long> offsets = new ArrayList<>();
            for (ByteBuffer record : store.queryMessage(message.getTopic(), key, 10_000, 0, Long.MAX_VALUE).getMessageBufferList()) {
                offsets.add(MessageDecoder.decode(record, false, false).getCommitLogOffset());
            }
            offsets.sort(null);
            found.put(key, offsets);
        }
        return found;
    }

    // ---------------------------------------------------------------------------------------------- message

    private static Map<String, Object> facts(MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("queue_id", message.getQueueId());
        facts.put("queue_offset", message.getQueueOffset());
        facts.put("physical_offset", message.getCommitLogOffset());
        facts.put("flag", message.getFlag());
        facts.put("system_flag", message.getSysFlag());
        facts.put("born_timestamp_ms", message.getBornTimestamp());
        facts.put("born_host", host(message.getBornHost()));
        facts.put("store_timestamp_ms", message.getStoreTimestamp());
        facts.put("store_host", host(message.getStoreHost()));
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        facts.put("body", HexFormat.of().formatHex(message.getBody()));
        facts.put("properties", new TreeMap<>(message.getProperties()));
        return facts;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return HexFormat.of().formatHex(host.getAddress().getAddress()) + ":" + host.getPort();
    }
}
