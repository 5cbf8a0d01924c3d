"""The batch source: `spark.read.format("metaq")`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq.admin import Bounds
from metaq.client.session.routes import Queue
from metaq.protocol.names import MASTER_ID
from metaq.spark.errors import DataLost
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.offsets import AtOffsets, GroupOffset, Range, plan
from metaq.spark.source.options import SourceOptions
from metaq.spark.source.positions import resolve
from metaq.spark.source.pushdown import Narrowed
from metaq.spark.source.read import Reading

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RangePartition(InputPartition):
    """A range of a queue and the address of its broker."""

    part: Range
    address: str


class BatchReader(DataSourceReader):
    """Plans on the driver and reads on the executors."""

    def __init__(self, options: SourceOptions, narrowed: Narrowed | None = None) -> None:
        self._options = options
        self._narrowed = narrowed or Narrowed()

    def partitions(self) -> list[RangePartition]:
        options = self._options
        with Cluster(options.nameservers, options.timeout_s) as cluster:
            queues = [queue for queue in cluster.queues(options.subscribed) if self._narrowed.wants(queue)]
            bounds = cluster.bounds(queues)
            ranges = [self._narrowed.cut(part) for part in batch_ranges(cluster, options, bounds)]
            return tasks(cluster, options, self._narrowed.cut_times(cluster, ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark makes one up if there are none.
            return iter(())
        options = self._narrowed.filtered(self._options)
        return Reading(options).batches(partition.part, partition.address)


def batch_ranges(cluster: Cluster, options: SourceOptions, bounds: Mapping[Queue, Bounds]) -> list[Range]:
    """Returns the ranges to read. Raises DataLost for given offsets that a queue no longer holds, or not
    yet."""
    starts = resolve(cluster, options, "starting", bounds)
    ends = resolve(cluster, options, "ending", bounds)
    named = isinstance(options.start, AtOffsets | GroupOffset), isinstance(options.end, AtOffsets)
    ranges = []
    for queue, found in bounds.items():
        first, end = starts[queue], ends[queue]
        if named[0] and first < found.first:
            lost(
                options, Range(queue, first, min(end, found.first)), f"the queue begins at {found.first} now"
            )
        if named[1] and end > found.end:
            _beyond_end(options, queue, "endingOffsets", end, found.end)
        if named[0] and first > found.end:
            # A running group may have passed the end since that was read.
            end_now = cluster.bounds([queue])[queue].end
            if first > end_now:
                _beyond_end(options, queue, "startingOffsets", first, end_now)
        ranges.append(Range(queue, max(first, found.first), min(end, found.end)))
    return ranges


def _beyond_end(options: SourceOptions, queue: Queue, option: str, wanted: int, end: int) -> None:
    """Raises DataLost for an offset that the queue has not reached, or logs a warning."""
    name = f"{queue.topic}/{queue.broker}/{queue.id}"
    is_group = option == "startingOffsets" and isinstance(options.start, GroupOffset)
    what = f"the offset of group {options.group}" if is_group else f"option {option}"
    problem = f"{what} is {wanted} for {name}, but the queue ends at {end}"
    if options.fails_on_data_loss:
        raise DataLost(
            problem,
            hint="the offset is wrong, or the topic was created again: failOnDataLoss=false reads the rest",
        )
    _log.warning("going on without lost messages: %s", problem)


def lost(options: SourceOptions, part: Range, reason: str) -> None:
    """Raises DataLost, or logs a warning if the options say so."""
    if options.fails_on_data_loss:
        raise DataLost(
            f"messages are lost: {part}: {reason}", hint="failOnDataLoss=false goes on without them"
        )
    _log.warning("going on without lost messages: %s: %s", part, reason)


def tasks(cluster: Cluster, options: SourceOptions, ranges: Iterable[Range]) -> list[RangePartition]:
    parts = plan(ranges, partitions_min=options.partitions_min, records_max=options.partition_records_max)
    furthest: dict[Queue, int] = {}
    for part in parts:
        furthest[part.queue] = max(furthest.get(part.queue, 0), part.to_offset)
    addresses = {queue: _address(cluster, options, queue, end) for queue, end in furthest.items()}
    return [RangePartition(part, addresses[part.queue]) for part in parts]


def _address(cluster: Cluster, options: SourceOptions, queue: Queue, end: int) -> str:
    """Returns the address of a replica that has everything, if one is wanted; otherwise the master's."""
    known = cluster.addresses(queue)
    if options.prefers_replicas or MASTER_ID not in known:
        ends = cluster.replica_ends(queue)
        reached = sorted(
            broker_id for broker_id, there in ends.items() if there >= end and broker_id in known
        )
        if reached:
            return known[reached[queue.id % len(reached)]]
    return known.get(MASTER_ID) or next(iter(known.values()))
