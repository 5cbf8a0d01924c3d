"""Removes secrets from what is written for others to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

REMOVED: Final = "(removed)"
SECRET_LENGTH_MIN: Final = 4
"""A shorter secret is not searched for in texts: it would match everywhere."""

SECRET_NAME: Final = re.compile(r"key|secret|passw|token|credential|auth|private", re.IGNORECASE)

_PAIR: Final = re.compile(
    r"""(?ix)
    # A name is looked at once, from its beginning: brokers and logs have texts of any length.
    (["']?(?<![\w.\-])(?=[\w.\-]*(?:secret|passw(?:or)?d|token|access[_-]?key|credential))
    [\w.\-]++["']?\s*+[=:]\s*+)
    ("[^"]*"|'[^']*'|[^\s,;}&]+)
    """
)
_USER_IN_URL: Final = re.compile(r"(://)[^/@\s]+@")

BROKER_SETTINGS: Final = frozenset(
    [
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerClusterName",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "brokerName",
        "brokerPermission",
        "brokerRole",
        "channelExpiredTimeout",
        "cleanResourceInterval",
        "clusterTopicEnable",
        "defaultTopicQueueNums",
        "deleteWhen",
        "destroyMapedFileIntervalForcibly",
        "diskMaxUsedSpaceRatio",
        "enablePropertyFilter",
        "fileReservedTime",
        "flushConsumerOffsetInterval",
        "flushDiskType",
        "flushIntervalCommitLog",
        "haListenPort",
        "haMasterAddress",
        "inSyncReplicas",
        "listenPort",
        "longPollingEnable",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxMessageSize",
        "messageDelayLevel",
        "minInSyncReplicas",
        "namesrvAddr",
        "osPageCacheBusyTimeOutMills",
        "pullMessageThreadPoolNums",
        "regionId",
        "registerNameServerPeriod",
        "rejectTransactionMessage",
        "sendMessageThreadPoolNums",
        "serverChannelMaxIdleTimeSeconds",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "storePathCommitLog",
        "storePathRootDir",
        "storeReplyMessageEnable",
        "timerWheelEnable",
        "traceTopicEnable",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "transferMsgByHeap",
        "useServerSideResetOffset",
        "useTLS",
        "waitTimeMillsInSendQueue",
    ]
)
"""The settings of a broker, MetaQ's or Apache's, whose values may be shown."""


def shown_settings(values: Mapping[str, str], allowed: Iterable[str] = BROKER_SETTINGS) -> dict[str, str]:
    """Returns all settings, with the values of those that are allowed to be shown."""
    may_show = frozenset(allowed)
    return {
        name: redact(value) if name in may_show and not SECRET_NAME.search(name) else REMOVED
        for name, value in values.items()
    }


def without_secrets(values: Mapping[str, str]) -> dict[str, str | None]:
    """Returns all settings for people who may see the cluster; None for a value that may be a secret."""
    return {name: None if SECRET_NAME.search(name) else redact(value) for name, value in values.items()}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Removes these secrets from a text, and everything that looks like one: `password=…` and users in
    URLs."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= SECRET_LENGTH_MIN:
            text = text.replace(secret, REMOVED)
    return _USER_IN_URL.sub(rf"\1{REMOVED}@", _PAIR.sub(_without_value, text))


def _without_value(pair: re.Match[str]) -> str:
    """JSON stays JSON: its values keep their quotes or get some."""
    name, value = pair.groups()
    quote = value[0] if value[0] in "\"'" else '"' if name.lstrip()[0] == '"' else ""
    return f"{name}{quote}{REMOVED}{quote}"
