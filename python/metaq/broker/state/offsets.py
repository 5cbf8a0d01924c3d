"""The committed offsets of all groups. The data plane keeps them; this module writes and loads them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

from metaq._core import BrokerPlane, Clock, Store
from metaq.broker.state.groups import Groups
from metaq.metadata import MetadataFile
from metaq.protocol import names
from metaq.protocol.bodies import ConsumerOffsets, DataVersion
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.offsets import GetAllConsumerOffset

OffsetTable = Mapping[str, Mapping[int, int]]
"""`topic@group` → queue → committed offset."""

_BARE_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


class Offsets:
    """The file consumerOffset.json, and the offsets below which retention may delete."""

    def __init__(
        self, plane: BrokerPlane, store: Store, clock: Clock, directory: Path, groups: Groups
    ) -> None:
        self._plane = plane
        self._store = store
        self._clock = clock
        self._groups = groups
        self._file = MetadataFile(directory / "consumerOffset.json")
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self._version_kept = -1
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Loads the file into a plane that has not started."""
        stored = self._file.load(decode_offsets)
        if stored is not None:
            self._data_version = stored.data_version or self._data_version
            self._plane.load_offsets(stored.offset_table)
            for key, queues in (stored.reset_table or {}).items():
                topic, group = topic_and_group(key)
                for queue_id, queue_offset in queues.items():
                    self._plane.reset_offset(group, topic, queue_id, queue_offset)
            self._version_kept = self._plane.offsets_version()

    async def persist(self) -> bool:
        """Writes the table if it has changed since the last time; True if it did."""
        async with self._writing:
            version = self._plane.offsets_version()
            if version == self._version_kept:
                return False
            self._data_version = self._data_version.next(self._clock.now_ms())
            await asyncio.to_thread(self._write, version)
            self._version_kept = version
            return True

    def _write(self, version: int) -> None:
        # In this order: if a consumer follows a reset in between, the file must not keep the reset together
        # with the offsets that came after it.
        offsets = self._plane.offsets()
        content = encode_offsets(offsets, self._data_version, self._plane.resets())
        self._file.write(content, version)

    async def protect(self) -> None:
        """Tells the store which messages nobody has consumed, so that it does not delete them to make
        room."""
        await asyncio.to_thread(lambda: self._store.protect(self._lowest_offsets()))

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
        return Response(body=await asyncio.to_thread(lambda: encode_offsets(self._plane.offsets(), version)))


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


def groups_of_topic(table: OffsetTable, topic: str) -> list[str]:
    """The groups that have consumed the topic."""
    pairs = map(topic_and_group, table)
    return sorted(group for of_topic, group in pairs if of_topic == topic)


def topics_of_group(table: OffsetTable, group: str) -> list[str]:
    """The topics that the group has consumed."""
    pairs = map(topic_and_group, table)
    return sorted(topic for topic, of_group in pairs if of_group == group)


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
