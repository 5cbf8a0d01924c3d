"""Reads a range of a queue on an executor and yields Arrow batches."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq._core import Network, Scan, ScanBatch, ScanStop
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError, UnreadableBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import ProtocolError, Refused, Unreachable
from metaq.protocol.names import MASTER_ID, TOOLS_GROUP
from metaq.protocol.properties import SYSTEM_NAMES
from metaq.retry import Backoff, Retry
from metaq.settings import NetworkSettings, ScanSettings
from metaq.spark.errors import DataLost
from metaq.spark.schema import ArrowColumns
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.offsets import Range
from metaq.spark.source.options import SourceOptions, Subscribed

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

TAKE_S: Final = 30.0
BACKOFF: Final = Backoff(first_s=0.2, max_s=2.0)
_GONE: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER)
"""Codes with which a broker refuses a topic or a queue that it does not have."""

_DAEMON: Final = "pyspark.daemon"
"""The program whose forks are Spark's workers."""

_networks: dict[int, Network] = {}
"""By process id: workers are forked, and threads do not survive a fork."""


def _network() -> Network:
    process = os.getpid()
    if process not in _networks:
        _networks.clear()
        _networks[process] = Network(NetworkSettings())
    return _networks[process]


def is_abandoned(closed: GeneratorExit) -> bool:
    """Returns whether this is a worker that Spark has hung up on: a `limit` or `show` has enough rows.

    Spark ends such a process with the code 1, but first it prints a traceback about the broken pipe.
    """
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_hung_up = isinstance(closed.__context__, BrokenPipeError | ConnectionResetError)
    return is_hung_up and program is not None and program.name == _DAEMON


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that a task needs besides its range. Spark sends it to the executors."""

    options: SourceOptions

    def batches(self, part: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows. Raises DataLost, UnreadableBody, or the last error when the time is over."""
        try:
            yield from _RangeReader(self.options, part, address).batches()
        except GeneratorExit as closed:
            if is_abandoned(closed):
                os._exit(1)
            raise


class _RangeReader:
    def __init__(self, options: SourceOptions, part: Range, address: str) -> None:
        self._options = options
        self._part = part
        self._position = part.from_offset
        self._address = address
        self._filter = options.filter(part.queue.topic)
        self._settings = ScanSettings(
            group=options.group or TOOLS_GROUP,
            columns=options.columns,
            hidden_names=frozenset() if options.shows_system_properties else SYSTEM_NAMES,
            inflated_bytes_max=INFLATED_BYTES_MAX,
        )
        self._is_master = False
        """The address is the master's, as a name server gave it."""
        self._failed: set[str] = set()
        """The nodes that have failed since one gave something or since the last pause."""
        self._tries = self._begin_tries()

    def _begin_tries(self) -> Retry:
        return Retry(self._options.timeout_s, BACKOFF)

    def batches(self) -> Iterator[pa.RecordBatch]:
        arrow = ArrowColumns(self._options.columns)
        schema = arrow.schema()
        while self._position < self._part.to_offset:
            scan = Scan(
                _network(),
                self._settings,
                self._part.queue,
                self._filter,
                self._address,
                self._position,
                self._part.to_offset,
            )
            try:
                stop: ScanStop | None = None
                while stop is None:
                    batch, stop = scan.take(TAKE_S)
                    if batch is not None:
                        self._check(batch)
                        if batch.rows:
                            yield arrow.record_batch(schema, batch)
            finally:
                scan.close()
            self._decide(stop)

    def _check(self, batch: ScanBatch) -> None:
        self._position = batch.to_offset
        self._failed.clear()
        self._tries = self._begin_tries()
        covered = batch.to_offset - batch.from_offset
        if covered != batch.rows and not self._options.is_filtered:
            part = Range(self._part.queue, batch.from_offset, batch.to_offset)
            self._lost(part, f"the broker gave {batch.rows} of these {covered} messages")
        if batch.unreadable:
            self._unreadable(batch.unreadable)

    def _unreadable(self, unreadable: list[tuple[int, str]]) -> None:
        queue = self._part.queue
        queue_offset, reason = unreadable[0]
        place = Range(queue, queue_offset, queue_offset + 1)
        text = f"{place}: the body cannot be decompressed: {reason}"
        fails = self._options.fails_on_unreadable_body
        if self._options.fails_on_data_loss if fails is None else fails:
            raise UnreadableBody(text, hint="failOnUnreadableBody=false gives such rows without a body")
        for queue_offset, reason in unreadable:
            place = Range(queue, queue_offset, queue_offset + 1)
            _log.warning("going on without a body that cannot be decompressed: %s: %s", place, reason)

    def _decide(self, stop: ScanStop) -> None:
        """Continues, waits, or raises."""
        here = Range(self._part.queue, self._position, self._part.to_offset)
        if stop.kind == "done":
            return
        is_loss = stop.kind == "moved" or (stop.kind == "refused" and stop.value in _GONE)
        if is_loss and not self._is_master:
            # A replica may have fewer messages than its master: only the master decides.
            self._address_master(here)
        elif stop.kind == "moved":
            if stop.value > self._position:
                gone = Range(here.queue, here.from_offset, min(stop.value, here.to_offset))
                self._lost(gone, f"the queue begins at {stop.value} now")
            else:
                self._lost(here, f"the queue ends at {stop.value} now")
        elif stop.kind == "refused":
            error = Refused(stop.value, stop.text)
            if stop.value in _GONE:
                self._lost(here, str(error))
            elif error.retriable or not self._is_master:
                self._wait(error)
            else:
                raise error
        elif stop.kind == "malformed":
            raise ProtocolError(f"{here}: {stop.text}")
        elif stop.kind == "stalled":
            self._wait(DataLost(f"{here}: the broker has nothing to give there"))
        else:
            self._wait(Unreachable(f"{here}: {stop.text or 'the connections were closed'}"))

    def _lost(self, part: Range, reason: str) -> None:
        if self._options.fails_on_data_loss:
            raise DataLost(
                f"messages are lost: {part}: {reason}", hint="failOnDataLoss=false goes on without them"
            )
        _log.warning("going on without lost messages: %s: %s", part, reason)
        self._position = max(self._position, part.to_offset)

    def _wait(self, error: MetaqError) -> None:
        """Continues at another node of the broker. If all of them have failed, waits: the error may pass, and
        the broker may move meanwhile."""
        _log.info("trying again: %s", error)
        self._failed.add(self._address)
        if self._use_node():
            return
        self._failed.clear()
        if self._tries.pause_blocking():
            self._use_node()
        elif isinstance(error, DataLost):
            self._lost(Range(self._part.queue, self._position, self._part.to_offset), str(error))
        else:
            raise error

    def _address_master(self, here: Range) -> None:
        self._failed.add(self._address)
        address = self._nodes().get(MASTER_ID)
        if address is None:
            self._wait(Unreachable(f"{here}: no name server knows its master"))
        else:
            self._address, self._is_master = address, True

    def _use_node(self) -> bool:
        """Selects a node that has not failed; returns False if there is none.

        Replicas come first if they are preferred, otherwise the master does. All nodes have the same bytes at
        the same offsets, so a task may change the node at any message.
        """
        nodes = self._nodes()
        replicas = sorted(nodes.keys() - {MASTER_ID})
        turn = self._part.queue.id % len(replicas) if replicas else 0
        replicas = replicas[turn:] + replicas[:turn]
        order = [*replicas, MASTER_ID] if self._options.prefers_replicas else [MASTER_ID, *replicas]
        for broker_id in order:
            address = nodes.get(broker_id)
            if address is not None and address not in self._failed:
                self._address, self._is_master = address, broker_id == MASTER_ID
                return True
        return False

    def _nodes(self) -> dict[int, str]:
        """Returns the addresses of the broker's nodes by id; none if no name server answers."""
        queue: Queue = self._part.queue
        try:
            with Cluster(self._options.nameservers, 0.0) as cluster:
                cluster.queues(Subscribed(topics=(queue.topic,)))
                return cluster.addresses(queue)
        except MetaqError as error:
            _log.info("the route of %s is not known now: %s", queue.topic, error)
            return {}
