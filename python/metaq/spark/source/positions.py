"""Turns the positions of options into queue offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Literal

from metaq.admin import Bounds
from metaq.client.session.routes import Queue
from metaq.spark.errors import OptionError
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.offsets import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    GroupOffset,
    Position,
)
from metaq.spark.source.options import SourceOptions

Side = Literal["starting", "ending"]


def resolve(
    cluster: Cluster, options: SourceOptions, side: Side, bounds: Mapping[Queue, Bounds]
) -> dict[Queue, int]:
    """Returns the offset of each queue. Raises OptionError if the option does not fit the queues."""
    position: Position = options.start if side == "starting" else options.end
    if isinstance(position, AtOffsets):
        _require_same(f"{side}Offsets", position.offsets, bounds)
        return {queue: _offset(position.offsets[queue], found) for queue, found in bounds.items()}
    if isinstance(position, AtOffset):
        return {queue: max(min(position.offset, found.end), found.first) for queue, found in bounds.items()}
    if isinstance(position, AtTime):
        moment_ms = position.time.at(time.time_ns() // 1_000_000)
        return _at(cluster, options, side, dict.fromkeys(bounds, moment_ms), bounds, f"{side}Timestamp")
    if isinstance(position, AtTimes):
        option = f"{side}OffsetsByTimestamp"
        _require_same(option, position.times, bounds)
        return _at(cluster, options, side, position.times, bounds, option)
    if isinstance(position, GroupOffset):
        assert options.group is not None, "checked with the options"
        committed = cluster.committed(options.group, bounds)
        return {
            queue: found.first if (place := committed[queue]) is None or place < 0 else place
            for queue, found in bounds.items()
        }
    is_earliest = isinstance(position, Earliest)
    return {queue: found.first if is_earliest else found.end for queue, found in bounds.items()}


def _offset(offset: int, found: Bounds) -> int:
    return {EARLIEST: found.first, LATEST: found.end}.get(offset, offset)


def _require_same(option: str, named: Iterable[Queue], there: Iterable[Queue]) -> None:
    """Raises OptionError unless the option names every queue: the others would start at a position that
    nobody chose."""
    named, there = set(named), set(there)
    for queues, what in ((named - there, "names queues that are not there"), (there - named, "leaves out")):
        if queues:
            shown = ", ".join(f"{queue.topic}/{queue.broker}/{queue.id}" for queue in sorted(queues)[:5])
            more = f" and {len(queues) - 5} more" if len(queues) > 5 else ""
            wanted = ", ".join(f"{queue.topic}/{queue.broker}/{queue.id}" for queue in sorted(there)[:20])
            raise OptionError(
                f"option {option} {what}: {shown}{more}", hint=f"it takes exactly {wanted or 'no queue'}"
            )


def _at(
    cluster: Cluster,
    options: SourceOptions,
    side: Side,
    times_ms: Mapping[Queue, int],
    bounds: Mapping[Queue, Bounds],
    option: str,
) -> dict[Queue, int]:
    found = cluster.offsets_at({queue: times_ms[queue] for queue in bounds})
    if side == "starting" and options.strategy == "error":
        late = sorted(queue for queue, offset in found.items() if offset >= bounds[queue].end)
        if late:
            queue = late[0]
            raise OptionError(
                f"option {option}: queue {queue.id} of {queue.topic} on {queue.broker} has no message stored"
                f" at {times_ms[queue]} or later",
                hint="startingOffsetsByTimestampStrategy=latest begins such queues with the next message",
            )
    # Messages that came meanwhile are not in these bounds.
    return {
        queue: max(min(offset, bounds[queue].end), bounds[queue].first) for queue, offset in found.items()
    }
