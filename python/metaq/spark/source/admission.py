"""How much a trigger reads: exact limits of messages and of bytes over all queues.

A message counts with the bytes that a broker stores, including header and properties. A batch never exceeds
the limit, unless its only message does. It is as full as possible: the next message of no queue would fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from metaq.admin import QueuePart
from metaq.client.session.routes import Queue
from metaq.spark.source.offsets import share

ROUNDS_MAX = 8
"""Rounds that share in proportion. After them, the rest is filled queue by queue."""


class Measure(Protocol):
    """`Cluster.measure`."""

    def __call__(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueuePart]: ...


def admit_rows(starts: Mapping[Queue, int], ends: Mapping[Queue, int], rows_max: int) -> dict[Queue, int]:
    """Returns the ends of the queues for a batch of exactly `rows_max` messages, or of all if there are
    fewer."""
    available = {queue: max(ends[queue] - starts[queue], 0) for queue in ends}
    taken = share(available, rows_max)
    return {queue: starts[queue] + taken[queue] for queue in ends}


def admit_bytes(
    starts: Mapping[Queue, int], ends: Mapping[Queue, int], bytes_max: int, measure: Measure
) -> dict[Queue, int]:
    """Returns the ends of the queues for a batch of at most `bytes_max` bytes."""
    reached = dict(starts)
    left = bytes_max

    def advance(parts: Mapping[Queue, int]) -> bool:
        """Takes the messages that fit into each queue's share. Returns whether there were any."""
        nonlocal left
        found = measure({queue: (reached[queue], ends[queue]) for queue in parts}, parts)
        moved = False
        for queue, measured in found.items():
            moved |= measured.end_offset > reached[queue]
            reached[queue] = measured.end_offset
            left -= measured.size_bytes
        return moved

    for _ in range(ROUNDS_MAX):
        waiting = {queue: ends[queue] - reached[queue] for queue in ends if reached[queue] < ends[queue]}
        if not waiting or left <= 0 or not advance(share_bytes(waiting, left)):
            break
    for queue in sorted(ends):
        # One call measures at most a million messages.
        while left > 0 and reached[queue] < ends[queue] and advance({queue: left}):
            pass
    if reached == dict(starts):
        # A message that is larger than the limit must not stop the stream.
        behind = [queue for queue in sorted(ends) if reached[queue] < ends[queue]]
        if behind:
            first = max(behind, key=lambda queue: ends[queue] - reached[queue])
            reached[first] += 1
    return {queue: reached[queue] for queue in ends}


def share_bytes(waiting: Mapping[Queue, int], left: int) -> dict[Queue, int]:
    """Shares the bytes in proportion to the messages that wait, and never more than are left."""
    total = sum(waiting.values())
    return {queue: left * count // total for queue, count in waiting.items()}
