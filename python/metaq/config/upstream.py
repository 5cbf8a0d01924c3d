"""Reads broker.conf of Apache RocketMQ, which is a Java properties file, and translates its keys.

A key without effect here and an unknown key are reported and ignored. A role that MetaQ does not have stops
the start, because a slave that came up as a master would accept writes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from metaq.errors import ConfigError

Translate = Callable[[str], object]


def _same(value: str) -> object:
    return value


def _flush(value: str) -> object:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}.get(value, value)


def _queue_entries(value: str) -> object:
    return int(value) // 20


def _ms_to_s(value: str) -> object:
    return int(value) / 1000


def _s_to_ms(value: str) -> object:
    return int(value) * 1000


# Apache's key → our option, and the function that translates the value.
SAME: dict[str, tuple[str, Translate]] = {
    "accessMessageInMemoryMaxRatio": ("in_memory_percent", _same),
    "autoCreateSubscriptionGroup": ("auto_create_group", _same),
    "autoCreateTopicEnable": ("auto_create_topic", _same),
    "bindAddress": ("host", _same),
    "haListenPort": ("replication_listen", _same),
    "haMasterAddress": ("master", _same),
    "brokerClusterName": ("cluster", _same),
    "brokerId": ("id", _same),
    "brokerIP1": ("advertised_host", _same),
    "brokerName": ("name", _same),
    "brokerPermission": ("permission", _same),
    "channelExpiredTimeout": ("client_expiry_s", _ms_to_s),
    "defaultTopicQueueNums": ("default_topic_queues", _same),
    "deleteWhen": ("delete_when", _same),
    "diskMaxUsedSpaceRatio": ("disk_clean_percent", _same),
    "diskSpaceCleanForciblyRatio": ("disk_force_clean_percent", _same),
    "diskSpaceWarningLevelRatio": ("disk_refuse_percent", _same),
    "enabledAppendPropCRC": ("record_checksums", _same),
    "enablePropertyFilter": ("enable_property_filter", _same),
    "fileReservedTime": ("file_reserved_hours", _same),
    "flushConsumerOffsetInterval": ("offsets_persist_interval_s", _ms_to_s),
    "flushDiskType": ("flush", _flush),
    "flushIntervalCommitLog": ("flush_interval_ms", _same),
    "flushIntervalConsumeQueue": ("queue_flush_interval_ms", _same),
    "kvConfigPath": ("kv_file", _same),
    "listenPort": ("broker_port", _same),
    "longPollingEnable": ("long_polling", _same),
    "mappedFileSizeCommitLog": ("commit_log_file_bytes", _same),
    "mappedFileSizeConsumeQueue": ("consume_queue_file_entries", _queue_entries),
    "maxHashSlotNum": ("index_slots", _same),
    "maxIndexNum": ("index_entries", _same),
    "messageDelayLevel": ("delay_levels", _same),
    "maxMessageSize": ("message_size_bytes_max", _same),
    "maxTransferBytesOnMessageInMemory": ("pull_bytes_max", _same),
    "maxTransferCountOnMessageInMemory": ("pull_messages_max", _same),
    "namesrvAddr": ("namesrv", _same),
    "recallMessageEnable": ("recall_messages", _same),
    "regionId": ("region", _same),
    "registerNameServerPeriod": ("register_interval_s", _ms_to_s),
    "serverChannelMaxIdleTimeSeconds": ("idle_timeout_ms", _s_to_ms),
    "osPageCacheBusyTimeOutMills": ("append_wait_ms_max", _same),
    "shortPollingTimeMills": ("short_polling_ms", _same),
    "slaveReadEnable": ("slave_read", _same),
    "storePathRootDir": ("data", _same),
    "storeReplyMessageEnable": ("store_replies", _same),
    "syncFlushTimeout": ("flush_timeout_ms", _same),
    "timerMaxDelaySec": ("timer_max_delay_s", _same),
    "transactionCheckInterval": ("transaction_check_interval_s", _ms_to_s),
    "transactionCheckMax": ("transaction_check_max", _same),
    "transactionTimeOut": ("transaction_timeout_ms", _same),
    "useServerSideResetOffset": ("server_side_reset", _same),
}

# Keys of Apache's example files and tuning guides that have no effect here.
WITHOUT_EFFECT = frozenset(
    {
        "aclEnable",
        "brokerFastFailureEnable",
        "brokerIP2",
        "brokerTopicEnable",
        "clusterTopicEnable",
        "compressedRegister",
        "enableControllerMode",
        "enableDLegerCommitLog",
        "fetchNamesrvAddrByAddressServer",
        "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval",
        "flushConsumeQueueLeastPages",
        "messageIndexEnable",
        "msgTraceTopicName",
        "pullMessageThreadPoolNums",
        "rocketmqHome",
        "sendMessageThreadPoolNums",
        "sendThreadPoolQueueCapacity",
        "serverSelectorThreads",
        "serverWorkerThreads",
        "storePathAbortFile",
        "storePathCommitLog",
        "storePathConsumeQueue",
        "storePathIndex",
        "storePathStoreCheckpoint",
        "timerWheelEnable",
        "traceTopicEnable",
        "transientStorePoolEnable",
        "transientStorePoolSize",
        "useEpollNativeSelector",
        "useReentrantLockWhenPutMessage",
        "useTLS",
        "waitTimeMillsInSendQueue",
        "warmMapedFileEnable",
    }
)


def translate(text: str, path: str) -> tuple[dict[str, object], list[str]]:
    """Returns the entries by our names, and notes about those without effect. Raises ConfigError."""
    entries: dict[str, object] = {}
    notes: list[str] = []
    for key, value in properties(text):
        if key == "brokerRole":
            if value == "SYNC_MASTER":
                # The file does not name the replicas: `--replica-ids` does.
                entries["replicas"] = "sync"
            elif value not in ("ASYNC_MASTER", "SLAVE"):
                raise ConfigError(f"{path}: brokerRole={value} is not known", hint="use ASYNC_MASTER")
        elif key in SAME:
            name, rewrite = SAME[key]
            try:
                entries[name] = rewrite(value)
            except ValueError:
                raise ConfigError(f"{path}: {key}={value} must be a whole number") from None
        elif key in WITHOUT_EFFECT:
            notes.append(f"{path}: {key} has no effect in MetaQ and is ignored")
        else:
            notes.append(f"{path}: {key} is not known and is ignored{_suggest(key)}")
    return entries, notes


def _suggest(key: str) -> str:
    lowered = {known.lower(): known for known in SAME}
    found = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.8)
    return f" (did you mean {lowered[found[0]]}?)" if found else ""


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a Java properties file, with its comments, continued lines and escapes."""
    for line in re.split(r"\r\n|\r|\n", _joined(text)):
        stripped = line.lstrip()
        if not stripped or stripped[0] in "#!":
            continue
        found = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*(.*)", stripped)
        if found:
            yield _unescaped(found[1]), _unescaped(found[2]).strip()


def _joined(text: str) -> str:
    """Joins continued lines, which end in an odd number of backslashes."""
    return re.sub(r"(?<!\\)((?:\\\\)*)\\(?:\r\n|\r|\n)[ \t]*", r"\1", text)


def _unescaped(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text)
