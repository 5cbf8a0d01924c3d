"""A broker's figures under the names that Apache's tools look for."""

from __future__ import annotations

import os
import shutil

from metaq._core import WIRE_VERSION, FrameError, Server, Store, decode_records
from metaq.broker.options import BrokerOptions
from metaq.broker.state.stats import BROKER_GET, BROKER_PUT, Statistics
from metaq.protocol import names

VERSION_NAME = "V5_5_0"
POOLS = ("send", "pull", "litePull", "query", "ack")


def runtime_info(
    options: BrokerOptions, server: Server, store: Store, statistics: Statistics, started_ms: int
) -> dict[str, str]:
    figures, counters = store.figures(), server.counters()
    disk = shutil.disk_usage(options.store.directory)
    log_max = figures.get("commit_log_max_offset", 0)
    messages_in, bytes_in = counters.get("messages_in", 0), counters.get("bytes_in", 0)
    messages_out = counters.get("messages_out", 0)
    put, get = statistics.broker_triple(BROKER_PUT), statistics.broker_triple(BROKER_GET)
    values: dict[str, str | int] = {
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": WIRE_VERSION,
        "brokerActive": "true",
        "bootTimestamp": started_ms,
        "startAcceptSendRequestTimeStamp": 0,
        "commitLogMinOffset": figures.get("commit_log_min_offset", 0),
        "commitLogMaxOffset": log_max,
        "dispatchBehindBytes": max(log_max - figures.get("dispatched_offset", log_max), 0),
        "dispatchMaxBuffer": 0,
        "remainHowManyDataToFlush": f"{max(log_max - figures.get('flushed_offset', log_max), 0)} B",
        "commitLogDiskRatio": f"{figures.get('disk_used_percent', 0) / 100:.2f}",
        "consumeQueueDiskRatio": f"{figures.get('disk_used_percent', 0) / 100:.2f}",
        "commitLogDirCapacity": f"Total : {_gibibytes(disk.total)}, Free : {_gibibytes(disk.free)}.",
        "earliestMessageTimeStamp": _earliest_ms(store, figures.get("commit_log_min_offset", 0)),
        "pageCacheLockTimeMills": 0,
        "putMessageTimesTotal": messages_in,
        "putMessageSizeTotal": bytes_in,
        "putMessageAverageSize": f"{bytes_in / messages_in if messages_in else 0.0:.1f}",
        "getMessageTimesTotal": messages_out,
        "msgPutTotalYesterdayMorning": statistics.mornings["put_yesterday"],
        "msgPutTotalTodayMorning": statistics.mornings["put_today"],
        "msgPutTotalTodayNow": messages_in,
        "msgGetTotalYesterdayMorning": statistics.mornings["get_yesterday"],
        "msgGetTotalTodayMorning": statistics.mornings["get_today"],
        "msgGetTotalTodayNow": messages_out,
        "sendSlowedTotal": counters.get("sends_slowed", 0),
        "sendOverLimitTotal": counters.get("sends_over_limit", 0),
        "pullPacedTotal": counters.get("pulls_paced", 0),
        "limitsWaiting": counters.get("limits_waiting", 0),
        "transactionsOpen": counters.get("transactions_open", 0),
        "putTps": put,
        "getTransferredTps": get,
        "getFoundTps": get,
        "getTotalTps": get,
        "totalMemKBytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024,
        "runtime": f"started at {started_ms}",
        **_no_pools(),
        **_timers(counters, store),
        **_delays(server, store),
    }
    return {key: str(value) for key, value in values.items()}


def _no_pools() -> dict[str, str | int]:
    """Requests do not queue for threads here; tools want the figures all the same."""
    figures: dict[str, str | int] = {}
    for pool in POOLS:
        figures |= {f"{pool}ThreadPoolQueueSize": 0, f"{pool}ThreadPoolQueueCapacity": 0}
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return figures | {"EndTransactionQueueSize": 0, "EndTransactionThreadPoolQueueCapacity": 0}


def _timers(counters: dict[str, int], store: Store) -> dict[str, str | int]:
    """Of the messages that wait for a given moment: how late the next one is, how many are not read yet, how
    many wait, and what has come and gone since the start."""
    behind = store.max_offset(names.TIMER_TOPIC, 0) - counters.get("timers_queue_offset", 0)
    return {
        "timerReadBehind": counters.get("timers_behind_ms", 0) // 1000,
        "timerOffsetBehind": max(behind, 0),
        "timerCongestNum": counters.get("timers_pending", 0),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "timerDeliveredTotal": counters.get("timers_delivered", 0),
        "timerRecalledTotal": counters.get("timers_recalled", 0),
    }


def _delays(server: Server, store: Store) -> dict[str, str | int]:
    """Of each delay level that is in use: how far it is delivered, and how far it reaches."""
    offsets = server.delay_offsets() or {}
    return {
        f"scheduleMessageOffset_{level}": f"{delivered},{store.max_offset(names.SCHEDULE_TOPIC, level - 1)}"
        for level, delivered in offsets.items()
    }


def _earliest_ms(store: Store, first_physical_offset: int) -> int:
    stored = store.record_at(first_physical_offset)
    try:
        return decode_records(stored)[0].store_timestamp_ms if stored else -1
    except FrameError:
        return -1


def _gibibytes(size: int) -> str:
    return f"{size / 1024**3:.2f} GiB"
