"""How far a stream is behind: told with every progress report of a query.

Spark shows what a source calls its latest offset, and puts it into `progress.sources[…].latestOffset`. Ours
has besides the ends of the queues what lies between them and the end of the batch.
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
    """Of one source of a query."""

    messages: int
    messages_min: int
    messages_max: int
    messages_avg: float
    """Of the single queues."""
    bytes: int
    """As stored. Of a queue with more than a million waiting messages, or a thousand at a broker that is not
    MetaQ's, the rest is estimated by those."""
    seconds: float | None
    """How long the oldest message has waited, by its broker's clock; None where a broker does not tell that,
    as those that are not MetaQ's."""


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
    """Of every MetaQ source of a query, by what it tells of its progress: `query.lastProgress`, or what a
    StreamingQueryListener is given."""
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
