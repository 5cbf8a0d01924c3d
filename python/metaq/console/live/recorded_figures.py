"""The figures of a row that the history keeps.

A sum that lacks a broker is a gap, because a chart would show it as a fall.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaq.console.live.tables import BrokerRow, GroupRow, TopicRow


def topic_values(row: TopicRow) -> Mapping[str, float | None]:
    if row.stale_ms is not None or row.missing:
        return {"in": None, "out": None}
    return {"in": row.figures.messages_in_per_second, "out": row.figures.messages_out_per_second}


def group_values(row: GroupRow) -> Mapping[str, float | None]:
    if row.stale_ms is not None or row.missing:
        return {"lag": None, "lag_ms": None, "out": None}
    figures = row.figures
    # Nothing waits: then there is no age, and it is not unknown.
    lag_ms = 0 if figures.lag == 0 else figures.lag_ms
    return {"lag": figures.lag, "lag_ms": lag_ms, "out": figures.messages_out_per_second}


def broker_values(row: BrokerRow) -> Mapping[str, float | None]:
    if row.error is not None:
        return {"in": None, "out": None, "disk": None}
    health = row.health
    return {
        "in": health.messages_in_per_second,
        "out": health.messages_out_per_second,
        "disk": health.disk_used_ratio,
    }
