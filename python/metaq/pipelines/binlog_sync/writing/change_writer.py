"""Puts changes and barriers into the outbox, each into the right queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metaq.client.session.routes import Queue
from metaq.pipelines.binlog_sync.envelope import (
    Barrier,
    QueueChooser,
    barrier_message,
    encode_change,
    rows_head,
)
from metaq.pipelines.binlog_sync.values.rows import Row
from metaq.pipelines.binlog_sync.writing.outbox import Lane, Outbox

Change = tuple[str, str, Row, Row | None]
"""A sequence number, an operation, a row, and the row before the change if messages have it."""


@dataclass(frozen=True, slots=True)
class TableLanes:
    """The lanes of one version of a table, one for each queue."""

    choose: QueueChooser
    by_queue: list[Lane]


class ChangeWriter:
    """Writes to the queues of one topic."""

    def __init__(self, outbox: Outbox, queues: list[Queue]) -> None:
        self._outbox = outbox
        self._queues = queues

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def open_lanes(self, database: str, table: str, schema: int, key: tuple[str, ...]) -> TableLanes:
        """Returns new lanes for a version of a table."""
        tag = f"{database}.{table}"
        head = rows_head(database, table, schema)
        return TableLanes(
            QueueChooser(database, table, key, len(self._queues)),
            [Lane(queue, tag, head) for queue in self._queues],
        )

    def write(self, lanes: TableLanes, committed_s: int, changes: Iterable[Change]) -> None:
        """Writes changes in their order; raises Stopped, MetaqError."""
        choose = lanes.choose
        by_queue: dict[int, list[bytes]] = {}
        for sequence, operation, row, before in changes:
            change = encode_change(sequence, operation, row, before)
            queue = choose(row)
            if queue in by_queue:
                by_queue[queue].append(change)
            else:
                by_queue[queue] = [change]
        for queue, encoded in by_queue.items():
            self._outbox.put(lanes.by_queue[queue], committed_s, encoded)

    def send_barrier(self, barrier: Barrier, tag: str) -> None:
        """Sends a barrier to every queue; raises Stopped, MetaqError."""
        self._outbox.send_barrier(self._queues, tag, lambda queue: barrier_message(barrier, queue))

    def wait_all(self) -> None:
        """Waits until everything is acknowledged; raises Stopped, MetaqError."""
        self._outbox.wait_all()
