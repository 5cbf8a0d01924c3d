"""A broker's figures under the names that Apache's tools look for."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from metaq._core import (
    WIRE_VERSION,
    BrokerPlane,
    FrameError,
    Listener,
    PlaneFigures,
    Store,
    StoreFigures,
    decode_records,
)
from metaq.broker.options import BrokerOptions
from metaq.broker.state.stats import BROKER_GET, BROKER_PUT, Statistics
from metaq.protocol import names

VERSION_NAME = "V5_5_0"
POOLS = ("send", "pull", "litePull", "query", "ack")


@dataclass(frozen=True, slots=True)
class Sources:
    """The places where a broker's figures are counted."""

    listener: Listener
    plane: BrokerPlane
    store: Store
    statistics: Statistics


def runtime_info(options: BrokerOptions, sources: Sources, started_ms: int) -> dict[str, str]:
    store, statistics = sources.store, sources.statistics
    traffic, waiting, stored = sources.listener.figures(), sources.plane.figures(), store.figures()
    disk = shutil.disk_usage(options.store.directory)
    log_max = stored.commit_log_max_offset
    disk_ratio = f"{stored.disk_used_percent / 100:.2f}"
    average_size = traffic.bytes_in / traffic.messages_in if traffic.messages_in else 0.0
    put, get = statistics.broker_triple(BROKER_PUT), statistics.broker_triple(BROKER_GET)
    values: dict[str, str | int] = {
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": WIRE_VERSION,
        "brokerActive": "true",
        "bootTimestamp": started_ms,
        "startAcceptSendRequestTimeStamp": 0,
        "commitLogMinOffset": stored.commit_log_min_offset,
        "commitLogMaxOffset": log_max,
        "dispatchBehindBytes": max(log_max - stored.dispatched_offset, 0),
        "dispatchMaxBuffer": 0,
        "remainHowManyDataToFlush": f"{max(log_max - stored.flushed_offset, 0)} B",
        "commitLogDiskRatio": disk_ratio,
        "consumeQueueDiskRatio": disk_ratio,
        "commitLogDirCapacity": f"Total : {_gibibytes(disk.total)}, Free : {_gibibytes(disk.free)}.",
        "earliestMessageTimeStamp": earliest_ms(store, stored),
        "pageCacheLockTimeMills": 0,
        "putMessageTimesTotal": traffic.messages_in,
        "putMessageSizeTotal": traffic.bytes_in,
        "putMessageAverageSize": f"{average_size:.1f}",
        "getMessageTimesTotal": traffic.messages_out,
        "msgPutTotalYesterdayMorning": statistics.mornings["put_yesterday"],
        "msgPutTotalTodayMorning": statistics.mornings["put_today"],
        "msgPutTotalTodayNow": traffic.messages_in,
        "msgGetTotalYesterdayMorning": statistics.mornings["get_yesterday"],
        "msgGetTotalTodayMorning": statistics.mornings["get_today"],
        "msgGetTotalTodayNow": traffic.messages_out,
        "sendSlowedTotal": traffic.sends_slowed,
        "sendOverLimitTotal": traffic.sends_over_limit,
        "pullPacedTotal": traffic.pulls_paced,
        "limitsWaiting": waiting.limits_waiting,
        "connectionMemoryBytes": traffic.memory_bytes,
        "connectionMemoryBytesPeak": traffic.memory_bytes_peak,
        "connectionMemoryBytesMax": options.server.memory_bytes_max,
        "clientsMemoryBytesMax": options.clients.bytes_max,
        "groupMemoryBytes": traffic.group_memory_bytes,
        "groupMemoryBytesPeak": traffic.group_memory_bytes_peak,
        "connectionsCutTotal": traffic.connections_cut,
        "transactionsOpen": waiting.transactions_open,
        "putTps": put,
        "getTransferredTps": get,
        "getFoundTps": get,
        "getTotalTps": get,
        "totalMemKBytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024,
        "runtime": f"started at {started_ms}",
        **_no_pools(),
        **_timers(waiting, store),
        **_delays(sources.plane, store),
    }
    return {key: str(value) for key, value in values.items()}


def _no_pools() -> dict[str, str | int]:
    """Figures of thread pools. There are none here, but tools expect the figures."""
    figures: dict[str, str | int] = {}
    for pool in POOLS:
        figures |= {f"{pool}ThreadPoolQueueSize": 0, f"{pool}ThreadPoolQueueCapacity": 0}
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return figures | {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 0}


def _timers(waiting: PlaneFigures, store: Store) -> dict[str, str | int]:
    """Messages that wait for a given moment: how late the next one is, how many are unread, how many wait,
    and how many were delivered or recalled since the start."""
    behind = store.max_offset(names.TIMER_TOPIC, 0) - waiting.timers_queue_offset
    return {
        "timerReadBehind": waiting.timers_behind_ms // 1000,
        "timerOffsetBehind": max(behind, 0),
        "timerCongestNum": waiting.timers_pending,
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "timerDeliveredTotal": waiting.timers_delivered,
        "timerRecalledTotal": waiting.timers_recalled,
    }


def _delays(plane: BrokerPlane, store: Store) -> dict[str, str | int]:
    """The delivered offset and the end of each delay level in use."""
    offsets = plane.delay_offsets() or {}
    return {
        f"scheduleMessageOffset_{level}": f"{delivered},{store.max_offset(names.SCHEDULE_TOPIC, level - 1)}"
        for level, delivered in offsets.items()
    }


def earliest_ms(store: Store, figures: StoreFigures) -> int:
    """When the oldest message was stored; -1 if there is none."""
    stored = store.record_at(figures.commit_log_min_offset)
    try:
        return decode_records(stored)[0].store_timestamp_ms if stored else -1
    except FrameError:
        return -1


def _gibibytes(size: int) -> str:
    return f"{size / 1024**3:.2f} GiB"
