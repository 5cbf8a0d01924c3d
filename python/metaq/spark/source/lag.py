"""The lag of a stream, which every progress report of a query contains.

Spark shows the latest offset of a source as `progress.sources[…].latestOffset`. Ours contains the ends of the
queues, and how far the batch is behind them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaq.client.session.routes import Queue
from metaq.spark.source.offsets import nested


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one source of a query."""

    messages: int
    messages_min: int
    messages_max: int
    messages_avg: float
    """Minimum, maximum and average are of single queues."""
    bytes: int
    """As stored. If more than a million messages wait in a queue, or a thousand on a broker that is not
    MetaQ's, the rest is estimated from those."""
    seconds: float | None
    """How long the oldest message has waited, by its broker's clock; None if a broker does not tell. Only
    MetaQ's do."""


def report(
    ends: Mapping[Queue, int], behind: Mapping[Queue, int], size_bytes: int, delay_s: float | None
) -> dict[str, Any]:
    counts = list(behind.values()) or [0]
    return {
        "queues": nested(ends),
        "lag": {
            "messages": sum(counts),
            "messagesMin": min(counts),
            "messagesMax": max(counts),
            "messagesAvg": round(sum(counts) / len(counts), 2),
            "bytes": size_bytes,
            "seconds": None if delay_s is None else round(delay_s, 3),
        },
    }


def lags(progress: Any) -> list[Lag]:
    """Returns the lag of every MetaQ source of a query, from `query.lastProgress` or from the progress that a
    StreamingQueryListener gets."""
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    found = []
    for source in sources:
        latest = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
        if isinstance(latest, str):
            latest = json.loads(latest)
        if not isinstance(latest, Mapping) or "lag" not in latest:
            continue
        lag = latest["lag"]
        found.append(
            Lag(
                messages=lag["messages"],
                messages_min=lag["messagesMin"],
                messages_max=lag["messagesMax"],
                messages_avg=lag["messagesAvg"],
                bytes=lag["bytes"],
                seconds=lag.get("seconds"),
            )
        )
    return found
