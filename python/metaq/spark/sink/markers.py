"""Batch markers: the one record that says which half messages make up a batch. What it names is committed.

A query has a topic with one queue for its markers, so that they are in order; jobs that come once share one,
where their marker is found by its key. See docs/decisions/0001-exactly-once-spark-sink.md.
"""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from metaq._core import Record, decode_records
from metaq.client.message import BODY_BYTES_MAX, outgoing
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.row_sender import Part
from metaq.client.producer.sending import Sender
from metaq.client.session.routes import MASTER_ID, Queue
from metaq.client.session.session import Session
from metaq.errors import NoRoute
from metaq.protocol.codes import ResponseCode
from metaq.protocol.messages import PullMessage, QueryMessage
from metaq.protocol.names import TOOLS_GROUP
from metaq.protocol.offsets import GetMaxOffset, GetMinOffset, QueueOffset
from metaq.protocol.topics import UpdateAndCreateTopic
from metaq.retry import Retry, steady
from metaq.spark.errors import OptionError, SparkError

_log = logging.getLogger(__name__)

TOPIC_PREFIX: Final = "METAQ_SPARK_"
JOBS_TOPIC: Final = "METAQ_SPARK_JOBS"
PAGE: Final = 32
PLAIN_BYTES_MAX: Final = 16 * BODY_BYTES_MAX
"""Of a marker before it is compressed."""
CREATED_WITHIN_S: Final = 10.0
SEEN_PAUSE_S: Final = 0.05
_SUBSCRIPTION_GIVEN: Final = 4
_DAY_MS: Final = 86_400_000
CLOCKS_DIFFER_MS: Final = 600_000
"""Of two drivers, at most."""


class Identity(msgspec.Struct, frozen=True):
    """What is shown once: a batch of a query, or a job."""

    name: str
    number: int
    is_job: bool = False
    made_ms: int = 0
    """When a job began."""

    @property
    def topic(self) -> str:
        """Where its marker is."""
        return JOBS_TOPIC if self.is_job else TOPIC_PREFIX + self.name


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """Half messages of one broker. Those of one queue are committed one after the other where it counts."""

    broker: str
    is_ordered: bool
    places: list[tuple[int, int]]
    """Place in the queue of half messages, and in the commit log."""


class Marker(msgspec.Struct, frozen=True):
    """A decision about a batch."""

    name: str
    number: int
    digest: str
    """Of the half messages: another attempt at the same batch has another one."""
    is_commit: bool
    group: str
    topics: list[str]
    chains: list[Chain]
    made_ms: int

    @classmethod
    def of(cls, identity: Identity, group: str, parts: Sequence[Part], *, is_commit: bool) -> Marker:
        chains: dict[tuple[str, object], Chain] = {}
        for part in parts:
            key = (part.broker, (part.topic, part.queue_id) if part.is_ordered else None)
            chain = chains.setdefault(key, Chain(part.broker, part.is_ordered, []))
            chain.places.append((part.half_offset, part.physical_offset))
        places = sorted((part.broker, part.half_offset, part.physical_offset) for part in parts)
        digest = hashlib.sha256(msgspec.json.encode(places)).hexdigest()[:32]
        topics = sorted({part.topic for part in parts})
        now_ms = time.time_ns() // 1_000_000
        return cls(
            identity.name, identity.number, digest, is_commit, group, topics, list(chains.values()), now_ms
        )

    def encode(self) -> bytes:
        plain = msgspec.msgpack.encode(self)
        body = zlib.compress(plain)
        if len(body) > BODY_BYTES_MAX or len(plain) > PLAIN_BYTES_MAX:
            raise OptionError(
                f"a batch of {sum(len(chain.places) for chain in self.chains)} half messages is too large",
                hint="make batches smaller, or batchBytes larger",
            )
        return body

    @classmethod
    def decode(cls, body: bytes) -> Marker:
        """Raises ValueError for what is none: anybody can write to a topic."""
        unpacking = zlib.decompressobj()
        try:
            plain = unpacking.decompress(body, PLAIN_BYTES_MAX)
            if not unpacking.eof:
                raise ValueError("it is cut short, or too large")
            return msgspec.msgpack.decode(plain, type=cls)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from error

    def is_same(self, other: Marker) -> bool:
        """Whether both decide the same about the same half messages."""
        mine = (self.name, self.number, self.digest, self.is_commit)
        return mine == (other.name, other.number, other.digest, other.is_commit)

    def lists(self, broker: str, half_offset: int) -> bool:
        """Whether that half message belongs to it."""
        mine = (chain for chain in self.chains if chain.broker == broker)
        return any(half_offset == place for chain in mine for place, _ in chain.places)


def winner(markers: Iterable[Marker], number: int) -> Marker | None:
    """The decision that counts: the first commit of that batch whose attempt was not given up before."""
    given_up: set[str] = set()
    for marker in markers:
        if marker.number != number:
            continue
        if not marker.is_commit:
            given_up.add(marker.digest)
        elif marker.digest not in given_up:
            return marker
    return None


class Expired(SparkError):
    """There were markers, which are too old to be there still: what became of a batch cannot be told."""


class MarkerNotSeen(SparkError):
    """A marker was acknowledged, but cannot be read: whether it is the one that counts cannot be told."""


class Markers:
    """Those of one identity's topic, on the event loop of a session."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self.topic = identity.topic
        self._chosen: Queue | None = None

    async def exist(self) -> bool:
        """Whether the topic is there."""
        try:
            await self._session.routes.get(self.topic)
        except NoRoute:
            return False
        return True

    async def create(self, near: str) -> None:
        """On one broker, the first of those that have the topic `near`."""
        route = await self._session.routes.get(near, creatable=True)
        masters = sorted(broker for broker, addresses in route.brokers.items() if MASTER_ID in addresses)
        if not masters:
            raise NoRoute(f"no broker of {near} is there to keep {self.topic}")
        command = UpdateAndCreateTopic(topic=self.topic, read_queue_nums=1, write_queue_nums=1, perm=6)
        (await self._session.call(masters[0], command)).check()
        tries = Retry(CREATED_WITHIN_S, steady(0.05))
        while not await self.exist():
            if not await tries.pause():
                raise NoRoute(f"{self.topic} was created, but no name server lists it yet")

    async def append(self, marker: Marker, timeout_s: float) -> None:
        """Durably; raises NotSent, NotDurable. One that was not acknowledged may be there all the same."""
        sender = Sender(self._session, ProducerOptions(marker.group, timeout_s=timeout_s, compression=None))
        keys = (_key(self._identity),) if self._identity.is_job else ()
        message = outgoing(self.topic, marker.encode(), self._session.unique_ids.next(), keys=keys)
        await sender.send(message, timeout_s, queue=await self._queue())

    async def read(self) -> list[Marker]:
        """From the last one back to the identity's batch or one before it, in their order; raises Expired."""
        identity = self._identity
        queue = await self._queue()
        begin, end = await self._offset(GetMinOffset, queue), await self._offset(GetMaxOffset, queue)
        found: list[Marker] = []
        while end > begin and not (found and _is_before(found[0], identity)):
            start = max(end - PAGE, begin)
            found = await self._page(queue, start, end) + found
            end = start
        if not found and end > 0 and not identity.is_job:
            raise Expired(
                f"the markers of {identity.name} are older than the broker keeps messages: whether batch"
                f" {identity.number} was written cannot be told",
                hint="where it was not, give the option exactlyOnceFromAnyBatch=true for the next start",
            )
        return [marker for marker in found if marker.name == identity.name]

    async def append_and_read(self, marker: Marker, timeout_s: float) -> list[Marker]:
        """What is there once the marker is, which may be after its acknowledgement; raises MarkerNotSeen."""
        await self.append(marker, timeout_s)
        tries = Retry(timeout_s, steady(SEEN_PAUSE_S))
        while True:
            try:
                found = await self.read()
            except Expired:
                found = []
            if any(marker.is_same(other) for other in found):
                return found
            if not await tries.pause():
                raise MarkerNotSeen(
                    f"the marker of {marker.name}/{marker.number} was acknowledged, but is not to be read in"
                    f" {self.topic}",
                    hint="nothing was taken back: do the same write again, which finds what was decided",
                )

    async def find(self) -> list[Marker]:
        """The same for who can wait: a job's by its key, which brokers learn a moment later."""
        return await (self._by_key() if self._identity.is_job else self.read())

    async def _page(self, queue: Queue, start: int, end: int) -> list[Marker]:
        found: list[Marker] = []
        while start < end:
            command = PullMessage(
                consumer_group=TOOLS_GROUP,
                topic=self.topic,
                queue_id=queue.id,
                queue_offset=start,
                max_msg_nums=end - start,
                sys_flag=_SUBSCRIPTION_GIVEN,
                subscription="*",
                expression_type="TAG",
            )
            reply = (await self._session.call(queue.broker, command)).check()
            records = [record for record in decode_records(reply.body) if record.queue_offset < end]
            if not records:
                raise NoRoute(f"queue offset {start} of {self.topic} cannot be read")
            found += _decoded(records)
            start = records[-1].queue_offset + 1
        return found

    async def _by_key(self) -> list[Marker]:
        now_ms = time.time_ns() // 1_000_000
        command = QueryMessage(
            topic=self.topic,
            key=_key(self._identity),
            max_num=PAGE,
            begin_timestamp=0,
            end_timestamp=now_ms + _DAY_MS,
        )
        found: list[Marker] = []
        route = await self._session.routes.get(self.topic)
        for broker in sorted({queue.broker for queue in route.readable}):
            reply = await self._session.call(broker, command)
            if reply.code != ResponseCode.QUERY_NOT_FOUND:
                records = sorted(decode_records(reply.check().body), key=lambda record: record.queue_offset)
                found += [marker for marker in _decoded(records) if marker.name == self._identity.name]
        return found

    async def _queue(self) -> Queue:
        """Always the same: a marker must be looked for where it was written."""
        if self._chosen is None:
            route = await self._session.routes.get(self.topic)
            if not route.writable:
                raise NoRoute(f"{self.topic} cannot be written to")
            self._chosen = route.writable[0]
        return self._chosen

    async def _offset(self, command: type[GetMinOffset] | type[GetMaxOffset], queue: Queue) -> int:
        reply = await self._session.call(queue.broker, command(topic=self.topic, queue_id=queue.id))
        return reply.check().header(QueueOffset).queue_offset


def _is_before(marker: Marker, identity: Identity) -> bool:
    if identity.is_job:
        return marker.made_ms < identity.made_ms - CLOCKS_DIFFER_MS
    return marker.number < identity.number


def _key(identity: Identity) -> str:
    return identity.name


def _decoded(records: Iterable[Record]) -> list[Marker]:
    """Without what is no marker: one bad record must not stop every job."""
    found: list[Marker] = []
    for record in records:
        try:
            found.append(Marker.decode(record.body))
        except ValueError as error:
            _log.warning("%s/%d is no marker: %s", record.topic, record.queue_offset, error)
    return found
