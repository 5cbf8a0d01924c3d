"""The stream source: `spark.readStream.format("metaq")`.

Spark calls it in a process beside the driver: where to begin (`initialOffset`), how far to go now
(`latestOffset`) and which tasks to run (`partitions`). It reports that a batch is done (`commit`) when it
plans the next one. Offsets are in `stream_offset`, limits in `admission`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from metaq.admin import Bounds
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.retry import Retry, steady
from metaq.spark.errors import WrongCheckpoint
from metaq.spark.source import lag, stream_offset
from metaq.spark.source.admission import admit_bytes, admit_rows
from metaq.spark.source.batch import RangePartition, lost, tasks
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.offsets import Range
from metaq.spark.source.options import SourceOptions
from metaq.spark.source.positions import resolve
from metaq.spark.source.read import Reading
from metaq.spark.source.resets import GroupResets
from metaq.spark.source.stream_offset import UNKNOWN, QueuePosition, StreamOffset

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

ROUTES_S: Final = 2.0
"""Seconds between looks for new queues."""
LAG_S: Final = 1.0
"""Seconds between measurements of the lag while the query is idle."""
PAUSE_S: Final = 0.5


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans beside the driver and reads on the executors, which get only its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._cluster: Cluster | None = None
        self._queues: list[Queue] = []
        self._queues_at = float("-inf")
        self._initial: dict[str, Any] | None = None
        self._target: dict[Queue, int] | None = None
        """The end of a query that reads only what is available now."""
        self._batch_at = float("-inf")
        self._away: set[Queue] = set()
        """Queues whose loss was logged."""
        self._checked: tuple[float, StreamOffset, dict[Queue, int], dict[Queue, int]] | None = None
        self._report: dict[str, Any] | None = None
        self._reported_at = float("-inf")
        self._resets = GroupResets()

    def __getstate__(self) -> SourceOptions:
        return self._options

    def __setstate__(self, options: SourceOptions) -> None:
        self._options = options
        self._begin()

    # Calls of Spark

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            bounds = self._there().bounds(self._look(refresh=True))
            starts = resolve(self._there(), self._options, "starting", bounds)
            places = self._placed(starts)
            self._initial = stream_offset.dump(places)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit; `latestOffset` applies all of them."""
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._there().ends(self._look(refresh=True))

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = self._loaded(start)
        self._find_again(begun)
        ends = self._there().ends(self._queues) if self._target is None else self._target
        reset = self._reset_to(begun, ends)
        starts = {**self._starts(begun, ends), **reset}
        chosen = self._admitted(starts, ends, limit)
        if not reset and all(
            queue in begun and begun[queue].queue_offset == end for queue, end in chosen.items()
        ):
            self._report_lag(chosen, ends, is_batch=False)
            return stream_offset.dump(begun)
        self._batch_at = time.monotonic()
        self._report_lag(chosen, ends, is_batch=True)
        return stream_offset.dump(self._ended(begun, starts, chosen, reset))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._report

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[RangePartition]:
        begun, ended = self._loaded(start), self._loaded(end)
        if not self._queues:
            self._look(refresh=True)
        ranges = []
        for queue, place in ended.items():
            first = begun[queue].queue_offset if queue in begun else 0
            if place.begins is not None:
                first = place.begins
            ranges.append(Range(queue, first, max(place.queue_offset, first)))
        for part in ranges:
            if part.length and not self._there().addresses(part.queue):
                lost(self._options, part, "its broker is no longer known")
        known = [part for part in ranges if self._there().addresses(part.queue)]
        return tasks(self._there(), self._options, known)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return Reading(self._options).batches(partition.part, partition.address)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commits the offsets to the group, so that tools show them. The checkpoint alone decides where the
        query continues. While a reset of the group is open, brokers ignore what is committed."""
        options = self._options
        if options.group is None or not options.commits:
            return
        offsets = {queue: place.queue_offset for queue, place in self._loaded(end).items()}
        try:
            self._look()
            self._there().commit(options.group, offsets)
        except MetaqError as error:
            _log.warning("the offsets of group %s are not committed: %s", options.group, error)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # The cluster

    def _there(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.nameservers, self._options.timeout_s)
        return self._cluster

    def _look(self, *, refresh: bool = False) -> list[Queue]:
        """Returns the queues that exist now."""
        now = time.monotonic()
        if refresh or now - self._queues_at > ROUTES_S:
            strict = self._options.fails_on_data_loss or self._initial is None
            self._queues = self._there().queues(self._options.subscribed, strict=strict)
            self._queues_at = now
        return self._queues

    def _loaded(self, stored: Mapping[str, Any]) -> dict[Queue, QueuePosition]:
        """Reads a stored offset. Raises WrongCheckpoint if it is of other topics."""
        places = stream_offset.load(stored)
        foreign = sorted(
            {queue.topic for queue in places if not self._options.subscribed.covers(queue.topic)}
        )
        if foreign:
            raise WrongCheckpoint(
                f"the checkpoint is of topic {', '.join(foreign)}, and the query reads"
                f" {self._options.subscribed}",
                hint="give the query another checkpointLocation, or subscribe to what it was begun with",
            )
        return places

    # The start of a batch

    def _find_again(self, begun: StreamOffset) -> None:
        """Waits for queues that are missing: a broker that restarts is away for a while."""
        tries = Retry(self._options.timeout_s if self._options.fails_on_data_loss else 0.0, steady(PAUSE_S))
        absent = sorted(begun.keys() - set(self._look()))
        while absent and tries.pause_blocking():
            absent = sorted(begun.keys() - set(self._look(refresh=True)))
        for queue in absent:
            if queue not in self._away:
                here = begun[queue].queue_offset
                lost(self._options, Range(queue, here, here), "the queue no longer exists")
        self._away = set(absent)

    def _starts(self, begun: StreamOffset, ends: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns where each queue that exists continues."""
        now = time.monotonic()
        if self._checked is not None:
            at, *checked, starts = self._checked
            # A trigger that waits for more messages asks all the time.
            if checked == [begun, ends] and now - at < LAG_S:
                return starts
        starts = self._check_starts(begun, ends)
        self._checked = (now, begun, dict(ends), starts)
        return starts

    def _reset_to(self, begun: StreamOffset, ends: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns where queues continue because somebody has reset the group."""
        options = self._options
        if options.group is None or not options.commits or self._target is not None:
            return {}
        try:
            return self._resets.follow(self._there(), options.group, begun, ends)
        except MetaqError as error:
            _log.warning("resets of group %s are not known now: %s", options.group, error)
            return {}

    def _check_starts(self, begun: StreamOffset, ends: Mapping[Queue, int]) -> dict[Queue, int]:
        options = self._options
        moved = {
            queue: QueuePosition(0) if queue not in begun else begun[queue]
            for queue in ends
            if queue not in begun or begun[queue].queue_offset != ends[queue]
        }
        bounds = self._there().bounds(moved)
        measured = self._there().measure(
            {queue: (place.queue_offset, place.queue_offset) for queue, place in moved.items()}
        )
        starts = {queue: begun[queue].queue_offset for queue in ends if queue in begun}
        for queue, place in moved.items():
            found = bounds[queue]
            if queue not in begun:
                starts[queue] = found.first
            elif fault := _fault(place, found, _known(measured[queue].before_physical_offset)):
                gone = Range(queue, place.queue_offset, max(found.first, place.queue_offset))
                lost(options, gone, fault)
                starts[queue] = found.first
        return starts

    # The end of a batch

    def _admitted(
        self, starts: Mapping[Queue, int], ends: Mapping[Queue, int], limit: ReadLimit
    ) -> dict[Queue, int]:
        options = self._options
        chosen = {queue: max(ends[queue], starts[queue]) for queue in ends}
        if isinstance(limit, ReadAllAvailable):
            return chosen
        if options.trigger_offsets_min is not None and self._target is None:
            available = sum(chosen[queue] - starts[queue] for queue in chosen)
            waited_s = time.monotonic() - self._batch_at
            if available < options.trigger_offsets_min and waited_s < options.trigger_delay_s_max:
                return {queue: starts[queue] for queue in ends}
        if options.trigger_offsets_max is not None:
            chosen = admit_rows(starts, chosen, options.trigger_offsets_max)
        if options.trigger_bytes_max is not None:
            chosen = admit_bytes(starts, chosen, options.trigger_bytes_max, self._there().measure)
        return chosen

    def _ended(
        self,
        begun: StreamOffset,
        starts: Mapping[Queue, int],
        chosen: Mapping[Queue, int],
        reset: Collection[Queue] = (),
    ) -> dict[Queue, QueuePosition]:
        """Queues that are away keep their position, in case they come back."""
        places = {queue: place for queue, place in _plain(begun).items() if queue not in chosen}
        placed = self._placed(
            {
                queue: end
                for queue, end in chosen.items()
                if queue not in begun or end != begun[queue].queue_offset
            }
        )
        for queue, end in chosen.items():
            before = begun.get(queue)
            begins = None
            if queue in reset or starts[queue] != (0 if before is None else before.queue_offset):
                begins = starts[queue]
            resets = 0
            if queue in reset:
                resets = 1 if before is None else before.resets + 1
            physical_offset = (
                placed[queue].physical_offset
                if queue in placed
                else (UNKNOWN if before is None else before.physical_offset)
            )
            places[queue] = QueuePosition(end, physical_offset, begins, resets)
        return places

    def _placed(self, offsets: Mapping[Queue, int]) -> dict[Queue, QueuePosition]:
        """Adds the physical offset of the message before each."""
        measured = self._there().measure({queue: (offset, offset) for queue, offset in offsets.items()})
        return {
            queue: QueuePosition(offset, _known(measured[queue].before_physical_offset))
            for queue, offset in offsets.items()
        }

    # Lag

    def _report_lag(self, reached: Mapping[Queue, int], ends: Mapping[Queue, int], *, is_batch: bool) -> None:
        """Measures how far behind the end of the batch is. An idle query asks a hundred times a second, so it
        is measured only once in a while."""
        now = time.monotonic()
        if not is_batch and now - self._reported_at < LAG_S:
            return
        self._reported_at = now
        behind = {queue: max(ends[queue] - reached.get(queue, 0), 0) for queue in ends}
        size_bytes = 0
        delays_ms: list[int | None] = [0]
        waiting = {queue: (reached.get(queue, 0), ends[queue]) for queue in ends if behind[queue]}
        if waiting:
            nothing = dict.fromkeys(waiting, 0)
            delays_ms += [found.delay_ms for found in self._there().measure(waiting, nothing).values()]
            for queue, found in self._there().measure(waiting).items():
                counted = max(found.end_offset - waiting[queue][0], 1)
                size_bytes += found.size_bytes * behind[queue] // counted
        known_ms = [delay_ms for delay_ms in delays_ms if delay_ms is not None]
        delay_s = max(known_ms) / 1000 if len(known_ms) == len(delays_ms) else None
        self._report = lag.report(ends, behind, size_bytes, delay_s)


def _known(physical_offset: int | None) -> int:
    """Returns the physical offset as checkpoints store it."""
    return UNKNOWN if physical_offset is None else physical_offset


def _plain(places: StreamOffset) -> dict[Queue, QueuePosition]:
    """Returns where a batch ended, without where it began: the next batch does not need that."""
    return {
        queue: QueuePosition(place.queue_offset, place.physical_offset) for queue, place in places.items()
    }


def _fault(place: QueuePosition, found: Bounds, before_physical_offset: int) -> str | None:
    """Returns why a queue cannot continue at a position; None if it can."""
    if place.queue_offset > found.end:
        return (
            f"the queue ends at {found.end} now: its topic was created again, or its broker has lost messages"
        )
    if place.queue_offset < found.first:
        return f"the queue begins at {found.first} now"
    known = place.physical_offset != UNKNOWN and before_physical_offset != UNKNOWN
    if known and place.physical_offset != before_physical_offset:
        return "the queue has other messages at these offsets now: its topic was created again"
    return None
