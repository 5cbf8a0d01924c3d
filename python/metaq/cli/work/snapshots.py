"""One look at a whole cluster: its brokers, its busiest topics and the groups that are furthest behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from metaq.admin.health.state import NOT_REGISTERED
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.admin import Admin, Broker

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows as programs read them, the most interesting first, and the parts that are missing."""

    taken_ms: int
    brokers: list[Row]
    topics: list[Row]
    groups: list[Row]
    failures: list[str]

    def record(self, limit: int) -> Row:
        return {
            "taken_ms": self.taken_ms,
            "brokers": self.brokers,
            "topics": self.topics[:limit],
            "groups": self.groups[:limit],
            "failures": self.failures,
        }


def with_gone_brokers(taken: Snapshot, before: Snapshot | None) -> Snapshot:
    """Keeps brokers that were there before and are not registered any more, with unknown values: name servers
    forget a broker that dies, but whoever watches must not."""
    if before is None:
        return taken
    present = {(row["broker"], row["id"]) for row in taken.brokers}
    gone = [
        {
            **row,
            "in_per_second": None,
            "out_per_second": None,
            "disk_used_ratio": None,
            "error": NOT_REGISTERED,
        }
        for row in before.brokers
        if (row["broker"], row["id"]) not in present
    ]
    failures = [f"{row['broker']}/{row['id']}: {NOT_REGISTERED}" for row in gone]
    return replace(taken, brokers=[*taken.brokers, *gone], failures=[*taken.failures, *failures])


def take_snapshot(admin: Admin) -> Snapshot:
    """Asks a cluster. A broker that does not answer is in the failures, and its figures are unknown. Raises
    MetaqError if no name server answers."""
    brokers = [_broker_row(admin, broker) for broker in admin.brokers.cluster().brokers]
    failures = [f"{row['broker']}/{row['id']}: {row['error']}" for row in brokers if row["error"]]
    if not any(row["error"] is None and row["id"] == 0 for row in brokers):
        return Snapshot(_now_ms(), brokers, [], [], [*failures, "no master answers"])
    topics = admin.topics.figures(lambda topic: topic.kind == "normal")
    groups = admin.groups.figures(lambda group: group.kind == "normal")
    failures += [f"{one.broker}: {one.reason}" for one in (*topics.failures, *groups.failures)]
    topic_rows: list[Row] = [
        {
            "topic": one.name,
            "in_per_second": one.messages_in_per_second,
            "out_per_second": one.messages_out_per_second,
            "messages": one.messages,
            "last_stored_ms": one.last_stored_ms,
        }
        for one in topics.topics
    ]
    group_rows: list[Row] = [
        {
            "group": one.name,
            "lag": one.lag,
            "lag_ms": one.lag_ms,
            "out_per_second": one.messages_out_per_second,
            "members": one.members,
        }
        for one in groups.groups
    ]
    topic_rows.sort(key=lambda row: -(row["in_per_second"] or 0) - (row["out_per_second"] or 0))
    group_rows.sort(key=lambda row: (-(row["lag_ms"] or 0), -(row["lag"] or 0)))
    return Snapshot(_now_ms(), brokers, topic_rows, group_rows, sorted(set(failures)))


def _broker_row(admin: Admin, broker: Broker) -> Row:
    row: Row = {
        "broker": broker.name,
        "id": broker.id,
        "address": broker.address,
        "version": broker.version,
        "in_per_second": None,
        "out_per_second": None,
        "disk_used_ratio": None,
        "error": broker.error,
    }
    if broker.error is None:
        try:
            figures = admin.brokers.figures(broker.address)
        except MetaqError as error:
            return {**row, "error": str(error)}
        row["in_per_second"] = figures.messages_in_per_second
        row["out_per_second"] = figures.messages_out_per_second
        row["disk_used_ratio"] = figures.disk_used_ratio
    return row


def _now_ms() -> int:
    return round(time.time() * 1000)
