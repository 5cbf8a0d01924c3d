"""Batch markers. A marker is the record that lists the half messages of a batch; those are committed.

A query has a topic with one queue for its markers, so that they are in order. Jobs that run once share a
topic, in which their marker has a key. See docs/decisions/0001-exactly-once-spark-sink.md.
"""

from __future__ import annotations

import hashlib
import logging
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from metaq._core import Record, decode_records
from metaq.client.message import BODY_BYTES_MAX, outgoing
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.row_sender import HalfBatch
from metaq.client.producer.sending import Sender
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import MetaqError, NoRoute
from metaq.protocol.bodies import ALL_TAGS, READ, TAG, WRITE
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import PULL_HAS_SUBSCRIPTION, PullMessage, QueryMessage
from metaq.protocol.commands.offsets import GetMaxOffset, GetMinOffset, QueueOffset
from metaq.protocol.commands.topics import UpdateAndCreateTopic
from metaq.protocol.names import MASTER_ID, TOOLS_GROUP
from metaq.retry import Retry, steady
from metaq.spark.errors import OptionError, SparkError

_log = logging.getLogger(__name__)

TOPIC_PREFIX: Final = "METAQ_SPARK_"
JOBS_TOPIC: Final = "METAQ_SPARK_JOBS"
PAGE: Final = 32
PLAIN_BYTES_MAX: Final = 16 * BODY_BYTES_MAX
"""The largest marker before it is compressed."""
RATIO_MAX: Final = 32
"""Markers become up to six times smaller. What becomes larger than this when it is read fills the memory of
a driver, and anybody can write to a topic."""
RATIO_FROM_BYTES: Final = 64 * 1024
PLACES_MAX: Final = 1_000_000
"""The half messages and chains of a marker. One takes up to 130 bytes of memory, and as little as 3 bytes in
the marker."""
PLACES_FROM: Final = 64 * 1024
"""A marker may list this many, and beyond them one for each of its bytes. In markers of this sink, a place
takes more than three."""
CREATED_WITHIN_S: Final = 10.0
SEEN_PAUSE_S: Final = 0.05
_DAY_MS: Final = 86_400_000
CLOCKS_DIFFER_MS: Final = 600_000
"""The largest difference between the clocks of two drivers."""

_announced: weakref.WeakKeyDictionary[Session, set[tuple[str, str]]] = weakref.WeakKeyDictionary()
"""Topics of markers, and brokers that were given them; routes show them a moment later."""


class Identity(msgspec.Struct, frozen=True):
    """The identity of rows that are shown once: a batch of a query, or a job."""

    name: str
    number: int
    is_job: bool = False
    made_ms: int = 0
    """When a job began."""

    @property
    def topic(self) -> str:
        """Returns the topic of its marker."""
        return JOBS_TOPIC if self.is_job else TOPIC_PREFIX + self.name


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """Half messages of one broker. If order matters, those of one queue are committed one after the other."""

    broker: str
    is_ordered: bool
    places: list[tuple[int, int]]
    """Offset in the queue of half messages, and physical offset."""


class _RawChain(msgspec.Struct, frozen=True, array_like=True):
    """A chain whose places are not read yet."""

    broker: str
    is_ordered: bool
    places: msgspec.Raw


class _RawChains(msgspec.Struct, frozen=True):
    """The part of a marker that may be long."""

    chains: msgspec.Raw


class Marker(msgspec.Struct, frozen=True):
    """A decision about a batch."""

    name: str
    number: int
    digest: str
    """The digest of the half messages; it differs for another try of the same batch."""
    is_commit: bool
    group: str
    topics: list[str]
    chains: list[Chain]
    made_ms: int

    @classmethod
    def of(
        cls, identity: Identity, group: str, half_batches: Sequence[HalfBatch], *, is_commit: bool
    ) -> Marker:
        chains: dict[tuple[str, object], Chain] = {}
        for half_batch in half_batches:
            key = (
                half_batch.broker,
                (half_batch.topic, half_batch.queue_id) if half_batch.is_ordered else None,
            )
            chain = chains.setdefault(key, Chain(half_batch.broker, half_batch.is_ordered, []))
            chain.places.append((half_batch.half_offset, half_batch.physical_offset))
        places = sorted(
            (half_batch.broker, half_batch.half_offset, half_batch.physical_offset)
            for half_batch in half_batches
        )
        digest = hashlib.sha256(msgspec.json.encode(places)).hexdigest()[:32]
        topics = sorted({half_batch.topic for half_batch in half_batches})
        now_ms = time.time_ns() // 1_000_000
        return cls(
            identity.name, identity.number, digest, is_commit, group, topics, list(chains.values()), now_ms
        )

    def encode(self) -> bytes:
        plain = msgspec.msgpack.encode(self)
        places = sum(len(chain.places) for chain in self.chains)
        body = zlib.compress(plain)
        if len(plain) > _plain_bytes_max(body) or places + len(self.chains) > _places_max(body):
            body = zlib.compress(plain, 0)
        if (
            len(body) > BODY_BYTES_MAX
            or len(plain) > PLAIN_BYTES_MAX
            or places + len(self.chains) > _places_max(body)
        ):
            raise OptionError(
                f"a batch of {places} half messages is too large",
                hint="make batches smaller, or batchBytes larger",
            )
        return body

    @classmethod
    def decode(cls, body: bytes) -> Marker:
        """Reads a marker. Raises ValueError if it is not one: anybody can write to a topic."""
        plain = _plain(body)
        try:
            listed = msgspec.msgpack.decode(plain, type=_RawChains).chains
            left = _places_max(body) - _array_length(listed)
            if left >= 0:
                left -= sum(
                    _array_length(chain.places)
                    for chain in msgspec.msgpack.decode(listed, type=list[_RawChain])
                )
            if left < 0:
                raise ValueError(f"it lists more than {_places_max(body)} half messages and chains")
            return msgspec.msgpack.decode(plain, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def lists(self, broker: str, half_offset: int) -> bool:
        """Returns whether the half message belongs to the batch."""
        mine = (chain for chain in self.chains if chain.broker == broker)
        return any(half_offset == place for chain in mine for place, _ in chain.places)


class StoredMarker(msgspec.Struct, frozen=True):
    """A marker as it was read from its topic. Only the one that counts is read as a whole."""

    name: str
    number: int
    digest: str
    is_commit: bool
    made_ms: int
    body: bytes = b""
    """As it was sent. Empty for markers of other names, which only tell how far the topic was read."""

    @classmethod
    def decode(cls, body: bytes, name: str) -> StoredMarker:
        """Reads the marker without its half messages. Raises ValueError if it is not one."""
        try:
            head = msgspec.msgpack.decode(_plain(body), type=_Head)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error
        kept = body if head.name == name else b""
        return cls(head.name, head.number, head.digest, head.is_commit, head.made_ms, kept)

    def is_of(self, marker: Marker) -> bool:
        """Returns whether both decide the same about the same half messages."""
        mine = (self.name, self.number, self.digest, self.is_commit)
        return mine == (marker.name, marker.number, marker.digest, marker.is_commit)


class _Head(msgspec.Struct, frozen=True):
    """The fields of a marker that `StoredMarker` has."""

    name: str
    number: int
    digest: str
    is_commit: bool
    made_ms: int


def _plain(body: bytes) -> bytes:
    """Decompresses a marker. Raises ValueError if it is too large."""
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(body, _plain_bytes_max(body))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError("it is cut short, or too large")
    if unpacking.unused_data:
        # These bytes would raise the limits, which depend on the length of the body.
        raise ValueError("something follows it")
    return plain


def _plain_bytes_max(body: bytes) -> int:
    return min(max(RATIO_MAX * len(body), RATIO_FROM_BYTES), PLAIN_BYTES_MAX)


def _places_max(body: bytes) -> int:
    return min(max(len(body), PLACES_FROM), PLACES_MAX)


def _array_length(packed: msgspec.Raw) -> int:
    """Returns the length of an array from its first bytes, without making its elements.

    1001nnnn | 0xdc length:u16 | 0xdd length:u32
    """
    data = memoryview(packed)
    kind = data[0]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(kind)
    if size is None:
        raise ValueError("a list is expected")
    return int.from_bytes(data[1 : 1 + size], "big")


def winner(markers: Iterable[StoredMarker], number: int) -> Marker | None:
    """Returns the decision that counts: the first commit of the batch that was not given up before."""
    given_up: set[str] = set()
    for marker in markers:
        if marker.number != number:
            continue
        if not marker.is_commit:
            given_up.add(marker.digest)
        elif marker.digest not in given_up:
            try:
                return Marker.decode(marker.body)
            except ValueError as error:
                _log.warning("a marker of %s/%d does not count: %s", marker.name, number, error)
    return None


class Expired(SparkError):
    """The markers are too old and were deleted: nobody knows what became of a batch."""


class MarkerNotSeen(SparkError):
    """A marker was acknowledged but cannot be read: nobody knows whether it counts."""


class Markers:
    """The markers of one topic, on the event loop of a session."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self.topic = identity.topic
        self._chosen: Queue | None = None

    async def exist(self) -> bool:
        """Returns whether the topic exists."""
        try:
            await self._session.routes.get(self.topic)
        except NoRoute:
            return False
        return True

    async def create(self, near: str) -> None:
        """Creates the topic on the first broker that has the topic `near`."""
        masters = await self._masters(near)
        if not masters:
            raise NoRoute(f"no broker of {near} is available for {self.topic}")
        await self._create_on(masters[0], READ | WRITE)
        tries = Retry(CREATED_WITHIN_S, steady(0.05))
        while not await self.exist():
            if not await tries.pause():
                raise NoRoute(f"{self.topic} was created, but no name server lists it yet")

    async def announce(self, near: str) -> None:
        """Creates the topic, read-only and empty, on the other brokers that have the topic `near`.

        The name server then lists the topic even while the broker with the markers is away. A writer sees
        that there are markers and waits, instead of starting a second list. Errors are only logged: the next
        batch tries again.
        """
        if self._identity.is_job:
            return
        announced = _announced.setdefault(self._session, set())
        try:
            route = await self._session.routes.get(self.topic)
            if not route.writable:
                return  # The broker with the markers is away: it must not become read-only.
            for broker in await self._masters(near):
                if broker not in route.brokers and (self.topic, broker) not in announced:
                    await self._create_on(broker, READ)
                    announced.add((self.topic, broker))
        except MetaqError as error:
            _log.info("%s is not announced on all brokers yet: %s", self.topic, error)

    async def _masters(self, near: str) -> list[str]:
        route = await self._session.routes.get(near, creatable=True)
        return sorted(broker for broker, addresses in route.brokers.items() if MASTER_ID in addresses)

    async def _create_on(self, broker: str, permission: int) -> None:
        command = UpdateAndCreateTopic(
            topic=self.topic, read_queue_nums=1, write_queue_nums=1, perm=permission
        )
        (await self._session.call(broker, command)).check()

    async def append(self, marker: Marker, timeout_s: float) -> None:
        """Writes a marker durably. Raises NotSent or NotDurable; the marker may be stored even so."""
        sender = Sender(self._session, ProducerOptions(marker.group, timeout_s=timeout_s, compression=None))
        keys = (_key(self._identity),) if self._identity.is_job else ()
        message = outgoing(self.topic, marker.encode(), self._session.unique_ids.next(), keys=keys)
        await sender.send(message, timeout_s, queue=await self._queue())

    async def read(self) -> list[StoredMarker]:
        """Returns the markers from the identity's batch on, in order. Raises Expired."""
        identity = self._identity
        queue = await self._queue()
        begin, end = await self._offset(GetMinOffset, queue), await self._offset(GetMaxOffset, queue)
        found: list[StoredMarker] = []
        oldest: StoredMarker | None = None
        while end > begin and not (oldest is not None and _is_before(oldest, identity)):
            start = max(end - PAGE, begin)
            page = await self._page(queue, start, end)
            own = [marker for marker in page if marker.name == identity.name]
            oldest = next(iter(page if identity.is_job else own), oldest)
            found = own + found
            end = start
        if not found and end > 0 and not identity.is_job:
            raise Expired(
                f"the broker has deleted the markers of {identity.name}, so nobody knows whether batch"
                f" {identity.number} was written",
                hint="if it was not, start the query once with exactlyOnceFromAnyBatch=true",
            )
        return found

    async def append_and_read(self, marker: Marker, timeout_s: float) -> list[StoredMarker]:
        """Writes a marker and returns all markers as soon as it can be read, which may be after its
        acknowledgement. Raises MarkerNotSeen."""
        await self.append(marker, timeout_s)
        tries = Retry(timeout_s, steady(SEEN_PAUSE_S))
        while True:
            try:
                found = await self.read()
            except Expired:
                found = []
            if any(stored.is_of(marker) for stored in found):
                return found
            if not await tries.pause():
                raise MarkerNotSeen(
                    f"the marker of {marker.name}/{marker.number} was acknowledged, but cannot be read in"
                    f" {self.topic}",
                    hint="nothing was rolled back: repeat the write, which finds the decision",
                )

    async def find(self) -> list[StoredMarker]:
        """Returns the markers for a caller that can wait: brokers index the key of a job a moment later."""
        return await (self._by_key() if self._identity.is_job else self.read())

    async def _page(self, queue: Queue, start: int, end: int) -> list[StoredMarker]:
        found: list[StoredMarker] = []
        while start < end:
            command = PullMessage(
                consumer_group=TOOLS_GROUP,
                topic=self.topic,
                queue_id=queue.id,
                queue_offset=start,
                max_msg_nums=end - start,
                sys_flag=PULL_HAS_SUBSCRIPTION,
                subscription=ALL_TAGS,
                expression_type=TAG,
            )
            reply = (await self._session.call(queue.broker, command)).check()
            records = [record for record in decode_records(reply.body) if record.queue_offset < end]
            if not records:
                raise NoRoute(f"queue offset {start} of {self.topic} cannot be read")
            found += _decoded(records, self._identity.name)
            start = records[-1].queue_offset + 1
        return found

    async def _by_key(self) -> list[StoredMarker]:
        now_ms = time.time_ns() // 1_000_000
        command = QueryMessage(
            topic=self.topic,
            key=_key(self._identity),
            max_num=PAGE,
            begin_timestamp=0,
            end_timestamp=now_ms + _DAY_MS,
        )
        found: list[StoredMarker] = []
        route = await self._session.routes.get(self.topic)
        for broker in sorted({queue.broker for queue in route.readable}):
            reply = await self._session.call(broker, command)
            if reply.code != ResponseCode.QUERY_NOT_FOUND:
                records = sorted(decode_records(reply.check().body), key=lambda record: record.queue_offset)
                name = self._identity.name
                found += [marker for marker in _decoded(records, name) if marker.name == name]
        return found

    async def _queue(self) -> Queue:
        """Returns always the same queue: a marker must be read where it was written."""
        if self._chosen is None:
            route = await self._session.routes.get(self.topic)
            if not route.writable:
                route = await self._session.routes.get(self.topic, refresh=True)
            if not route.writable:
                raise NoRoute(
                    f"{self.topic}, which holds the markers of {self._identity.name}, cannot be written to",
                    hint="its broker is away: start it, and repeat the write",
                )
            self._chosen = route.writable[0]
        return self._chosen

    async def _offset(self, command: type[GetMinOffset] | type[GetMaxOffset], queue: Queue) -> int:
        reply = await self._session.call(queue.broker, command(topic=self.topic, queue_id=queue.id))
        return reply.check().header(QueueOffset).queue_offset


def _is_before(marker: StoredMarker, identity: Identity) -> bool:
    if identity.is_job:
        return marker.made_ms < identity.made_ms - CLOCKS_DIFFER_MS
    return marker.number < identity.number


def _key(identity: Identity) -> str:
    return identity.name


def _decoded(records: Iterable[Record], name: str) -> list[StoredMarker]:
    """Returns the markers among the records. One bad record must not stop every job."""
    found: list[StoredMarker] = []
    for record in records:
        try:
            found.append(StoredMarker.decode(record.body, name))
        except ValueError as error:
            _log.warning("%s/%d is not a marker: %s", record.topic, record.queue_offset, error)
    return found
