"""The committed offsets of all groups. The data plane keeps them; this module writes and loads them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec

from metaq._core import BrokerPlane, Clock, Store
from metaq.broker.state.groups import Groups
from metaq.broker.state.versions import VERSIONS, stored_version
from metaq.journal.journal import Change, Journal
from metaq.protocol import names
from metaq.protocol.bodies import ConsumerOffsets, DataVersion
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.offsets import GetAllConsumerOffset
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.ranges import Int32, Int64
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

OFFSETS = "offsets"
"""In the journal: `topic@group@part` → queue → committed offset. A part is 64 queues of a topic, so that a
commit to one queue of many does not write all of them."""
RESETS = "resets"
"""In the journal, with the same keys: the resets that consumers have not followed yet."""
PART_QUEUES = 64
WRITTEN_AT_ONCE = 1_000
"""Keys that the journal writes together, while the event loop waits."""
QUEUE_BYTES = 8
"""About the size of a queue in the table for replicas."""
RECORD_BYTES_MIN = 91
"""No message takes less of the commit log."""

OffsetTable = Mapping[str, Mapping[int, int]]
_Changed = tuple[Mapping[int, int], Mapping[int, int]]
"""`topic@group` → queue → committed offset."""

_BARE_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


class Offsets:
    """Writes the offsets that have changed, and tells retention below which offsets it may delete."""

    def __init__(
        self,
        plane: BrokerPlane,
        store: Store,
        clock: Clock,
        journal: Journal,
        groups: Groups,
        pools: WorkPools | None = None,
        *,
        watch: Callable[[OffsetTable], None] | None = None,
        protect_from_percent: Callable[[], int] = lambda: 0,
    ) -> None:
        """`watch` gets every change of committed offsets, in the thread that looks for changes. Below
        `protect_from_percent` of disk use, retention does not ask what is consumed."""
        self._watch = watch
        self._protect_from_percent = protect_from_percent
        self._collecting = threading.Lock()
        self._plane = plane
        self._store = store
        self._clock = clock
        self._groups = groups
        self._journal = journal
        self._pools = pools or WorkPools()
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self._parts: dict[str, int] = {}
        """How many parts a key may have in the journal, where it is more than one."""
        self._unwritten: dict[str, _Changed] = {}
        """Taken from the data plane, and not in the journal yet."""
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Loads the journal into a plane that has not started. Raises MetadataDamaged."""
        self._data_version = stored_version(self._journal, OFFSETS) or self._data_version
        offsets, resets = offsets_in(self._journal, OFFSETS), offsets_in(self._journal, RESETS)
        self._parts = {key: parts for key, queues in offsets.items() if (parts := _part_count(queues)) > 1}
        self._plane.load_offsets(offsets)
        if self._watch is not None:
            self._watch(offsets)
        for key, queues in resets.items():
            topic, group = topic_and_group(key)
            for queue_id, queue_offset in queues.items():
                self._plane.reset_offset(group, topic, queue_id, queue_offset)

    def check_room(self, group: str, wanted: OffsetTable) -> None:
        """Raises Refused if a reset of the group to these offsets, by topic, would make too many. The data
        plane owns the limits: whatever consumers commit counts too."""
        fault = self._plane.check_resets(group, {topic: list(queues) for topic, queues in wanted.items()})
        if fault is not None:
            raise Refused(ResponseCode.SYSTEM_BUSY, fault)

    async def persist(self) -> bool:
        """Writes what has changed since the last time; False if nothing has."""
        async with self._writing:
            await asyncio.to_thread(self.collect)
            has_written = False
            for _ in range(-(-len(self._unwritten) // WRITTEN_AT_ONCE)):
                has_written |= await self._write_some()
            return has_written

    async def _write_some(self) -> bool:
        taken, changes = await asyncio.to_thread(self._take_changes)
        if not changes:
            return False
        version = self._data_version.next(self._clock.now_ms())
        try:
            await self._journal.write([*changes, (VERSIONS, OFFSETS, version.encode())])
        except BaseException:
            with self._collecting:
                self._unwritten = taken | self._unwritten
            raise
        self._data_version = version
        for key, (committed, resets) in taken.items():
            if not committed and not resets:
                self._parts.pop(key, None)
        return True

    def collect(self) -> None:
        """Takes over the changes since the last time, to be written later. The cost follows the changes, not
        the size of the table. Call it in a thread."""
        with self._collecting:
            for changed in self._taken():
                self._unwritten.update(changed)
                if self._watch is not None:
                    self._watch({key: committed for key, (committed, _) in changed.items()})

    def _taken(self) -> Iterator[Mapping[str, _Changed]]:
        """The changes of the data plane in parts: commits wait while it puts one together."""
        is_more = True
        while is_more:
            changed, is_more = self._plane.take_changed_offsets()
            yield changed

    def _take_changes(self) -> tuple[dict[str, _Changed], list[Change]]:
        with self._collecting:
            taken = dict(islice(self._unwritten.items(), WRITTEN_AT_ONCE))
            for key in taken:
                del self._unwritten[key]
        changes: list[Change] = []
        for key, (committed, resets) in taken.items():
            parts = max(self._parts.get(key, 1), _part_count(committed))
            if parts > 1:
                self._parts[key] = parts
            changes += offset_changes(OFFSETS, key, committed, parts)
            changes += offset_changes(RESETS, key, resets, parts)
        return taken, changes

    def follow(self, key: str, value: bytes | None) -> None:
        """Takes over the offsets that this replica's master has written. Raises ValueError."""
        _check_part(key)
        topic, group = topic_and_group(key.rpartition("@")[0])
        if value is None:
            if key.endswith("@0"):
                self._plane.remove_offsets(group=group, topic=topic)
            return
        for queue_id, committed_offset in _decode_part(value).items():
            self._plane.assign_offset(group, topic, queue_id, committed_offset)

    def take_kept(self) -> list[tuple[str, str, int, int]]:
        """Takes (group, topic, queue, offset) for every offset that was committed here without a master."""
        # A replica writes no changes, so nobody else takes them.
        for _ in self._taken():
            pass
        found: list[tuple[str, str, int, int]] = []
        for key, committed in self._plane.take_kept_offsets():
            topic, group = topic_and_group(key)
            found += [(group, topic, queue_id, offset) for queue_id, offset in committed.items()]
        return found

    def show_kept(self, offsets: Iterable[tuple[str, str, int, int]]) -> None:
        """Shows offsets that were committed here, without a master, before the last restart."""
        for group, topic, queue_id, committed_offset in offsets:
            self._plane.keep_offset(group, topic, queue_id, committed_offset)

    def advance(self, offsets: Iterable[tuple[str, str, int, int]]) -> None:
        """Takes over offsets (group, topic, queue, offset) that are higher than those of the journal.

        A replica accepts any offset, because it may lag behind. Those that the log of this master is too
        short for are left out."""
        unconfirmed_bytes = self._store.end_offset() - self._store.confirmed_offset()
        hidden_max = unconfirmed_bytes // RECORD_BYTES_MIN
        for group, topic, queue_id, committed_offset in offsets:
            end = self._store.max_offset(topic, queue_id)
            if committed_offset <= end + hidden_max:
                self._plane.advance_offset(group, topic, queue_id, committed_offset)
            else:
                peer_log.write(
                    _log,
                    logging.WARNING,
                    "",
                    "offset %d of group %s is left out: queue %d of topic %s ends at %d",
                    *(committed_offset, group, queue_id, topic, end),
                )

    async def protect(self) -> None:
        """Tells the store which messages nobody has consumed, so that it does not delete them to make room.
        While the disk has room, the store does not ask, and nobody looks at all offsets."""
        await asyncio.to_thread(self._protect)

    def _protect(self) -> None:
        if self._store.figures().disk_used_percent >= self._protect_from_percent():
            self._store.protect(self._lowest_offsets())

    def _lowest_offsets(self) -> dict[tuple[str, int], int]:
        lowest = lowest_offsets(self._plane.offsets(), {group.group_name for group in self._groups})
        # A queue that is not named counts as unread. Nobody has to read these.
        for topic in names.DISPENSABLE:
            for queue_id in self._store.queue_ids(topic):
                lowest.setdefault((topic, queue_id), self._store.max_offset(topic, queue_id))
        # The broker itself reads the messages that wait for a delay.
        for level, delivered_offset in (self._plane.delay_offsets() or {}).items():
            lowest[names.SCHEDULE_TOPIC, level - 1] = delivered_offset
        # It also reads the half messages, and open ones must stay.
        transactions = self._plane.transaction_offsets()
        if transactions is not None:
            lowest[names.HALF_TOPIC, 0], lowest[names.HALF_DONE_TOPIC, 0] = transactions
        return lowest

    @handles(GetAllConsumerOffset)
    async def get_all_consumer_offset(self, command: GetAllConsumerOffset, request: Request) -> Response:
        version = self._data_version

        def collect() -> bytes:
            groups = [config.group_name for config in self._groups]
            known = frozenset(groups)
            answer = BoundedAnswer(GetAllConsumerOffset)
            table: dict[str, dict[int, int]] = {}

            def add(topic: str, group: str) -> None:
                queues = self._plane.offsets_of(group, topic)
                answer.add(len(topic) + len(group) + QUEUE_BYTES * len(queues), lines=len(queues))
                table[f"{topic}@{group}"] = queues

            for group in answer.stepwise(groups):
                for topic in answer.stepwise(self._plane.topics_of_group(group)):
                    add(topic, group)
            # A group that was deleted may have left offsets. Apache's brokers send them as well.
            for topic in answer.stepwise(self._store.topics()):
                for group in answer.stepwise(self._plane.groups_of_topic(topic)):
                    if group not in known:
                        add(topic, group)
            return answer.encoded(_OffsetFile(table, version))

        return Response(body=await self._pools.administration.run(request, collect))


@dataclass(frozen=True, slots=True)
class _OffsetFile:
    """The table for replicas."""

    table: OffsetTable
    version: DataVersion

    def encode(self) -> bytes:
        return encode_offsets(self.table, self.version)


def offset_changes(table: str, key: str, queues: Mapping[int, int], parts: int) -> Iterable[Change]:
    """The changes that give a key of the journal these queues, and no others, if it has up to `parts`
    parts."""
    of_part: dict[int, dict[int, int]] = {}
    for queue_id, queue_offset in queues.items():
        of_part.setdefault(queue_id // PART_QUEUES, {})[queue_id] = queue_offset
    for part in {*of_part, *range(parts)}:
        chosen = of_part.get(part)
        yield table, f"{key}@{part}", msgspec.json.encode(chosen) if chosen else None


def offsets_in(journal: Journal, table: str) -> dict[str, dict[int, int]]:
    """`topic@group` → queue → offset. Raises MetadataDamaged."""
    offsets: dict[str, dict[int, int]] = {}
    for key, queues in journal.decoded(table, _decode_part, _check_part).items():
        offsets.setdefault(key.rpartition("@")[0], {}).update(queues)
    return offsets


def _check_part(key: str) -> None:
    """Raises ValueError for the part of an offset file of RocketMQ that holds what cannot be read."""
    if not key.rpartition("@")[2].isdecimal():
        raise ValueError("a queue or an offset is out of its range")


def _decode_part(content: bytes) -> dict[int, int]:
    return msgspec.json.decode(content, type=dict[Int32, Int64])


def _part_count(queues: Mapping[int, int]) -> int:
    return max(queues, default=0) // PART_QUEUES + 1


def encode_offsets(table: OffsetTable, version: DataVersion, resets: OffsetTable | None = None) -> bytes:
    """The file's content, with bare integers as keys, as Apache writes them. Encoded by hand because this
    runs every few seconds and the table can be large."""
    parts = [b'"dataVersion":' + version.encode(), b'"offsetTable":' + _encode_table(table)]
    if resets:
        parts.append(b'"resetTable":' + _encode_table(resets))
    return b"{" + b",".join(parts) + b"}\n"


def _encode_table(table: OffsetTable) -> bytes:
    entries = ",\n".join(f"{json.dumps(key)}:{{{_queues(queues)}}}" for key, queues in sorted(table.items()))
    return f"{{\n{entries}\n}}".encode()


def _queues(queues: Mapping[int, int]) -> str:
    return ",".join(f"{queue_id}:{queue_offset}" for queue_id, queue_offset in sorted(queues.items()))


def decode_offsets(content: bytes) -> ConsumerOffsets:
    return ConsumerOffsets.decode(quoted_keys(content))


def quoted_keys(content: bytes) -> bytes:
    """Turns Apache's files into JSON. Names hold no braces or commas, so whatever looks like a key is one."""
    return _BARE_KEY.sub(rb'\1"\2"\3', content)


def topic_and_group(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group


def lowest_offsets(table: OffsetTable, groups: set[str]) -> dict[tuple[str, int], int]:
    """The offset of the slowest of these groups for each queue."""
    lowest: dict[tuple[str, int], int] = {}
    for key, queues in table.items():
        topic, group = topic_and_group(key)
        if group in groups:
            for queue_id, committed_offset in queues.items():
                place = (topic, queue_id)
                lowest[place] = min(committed_offset, lowest.get(place, committed_offset))
    return lowest
