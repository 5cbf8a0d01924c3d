"""Copies the control state of an Apache master into the journal."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from metaq.broker.replication.apache_source import ApacheSource
from metaq.broker.state import delay_progress, groups, offsets, topics
from metaq.broker.state.offsets import OffsetTable
from metaq.broker.state.versions import VERSIONS
from metaq.journal.journal import Change, Entry, Journal
from metaq.protocol.bodies import DataVersion, SubscriptionGroupTable, TopicConfigTable

QUEUE_ID_MAX = 2**31 - 1
OFFSET_MAX = 2**62
LEVELS_MAX = 1_000


@dataclass(slots=True)
class _Copied:
    """The state that the journal holds already."""

    topics: DataVersion | None = None
    groups: DataVersion | None = None
    offsets: OffsetTable | None = None
    offsets_body: bytes = b""


class ApacheState:
    """Topics and groups are read again only when their version has changed, offsets every time."""

    def __init__(self, source: ApacheSource, journal: Journal) -> None:
        self._source = source
        self._journal = journal
        self._copied = _Copied()

    async def copy(self) -> int:
        """Writes what has changed since the last time and returns the number of changes.

        Raises MetaqError of the source, NotWritten, or MetadataDamaged.
        """
        seen = dataclasses.replace(self._copied)
        changes = [
            *await self._topic_changes(seen),
            *await self._group_changes(seen),
            *await self._offset_changes(seen),
            *await self._delay_changes(),
        ]
        if changes:
            await self._write(changes)
        self._copied = seen
        return len(changes)

    async def _write(self, changes: Iterable[Change]) -> None:
        """Appends the changes. The journal of a replica refuses changes of its own, but takes entries."""
        journal = self._journal
        if not journal.is_following:
            await journal.write([*changes])
            return
        newest = {(table, key): value for table, key, value in changes}
        changed = [
            (table, key, value) for (table, key), value in newest.items() if journal.get(table, key) != value
        ]
        first = journal.point.version + 1
        await journal.apply(
            [Entry(journal.epoch, version, *change) for version, change in enumerate(changed, start=first)]
        )

    async def _topic_changes(self, seen: _Copied) -> list[Change]:
        table = await self._source.topics(seen.topics)
        if table is None:
            return []
        seen.topics = table.data_version
        before = [*self._journal.decoded(topics.TABLE, bytes)]
        return await asyncio.to_thread(lambda: list(topic_changes(before, table)))

    async def _group_changes(self, seen: _Copied) -> list[Change]:
        table = await self._source.groups(seen.groups)
        if table is None:
            return []
        seen.groups = table.data_version
        before = [*self._journal.decoded(groups.TABLE, bytes)]
        forbidden = [*self._journal.decoded(groups.FORBIDDEN, bytes)]
        return await asyncio.to_thread(lambda: list(group_changes(before, forbidden, table)))

    async def _offset_changes(self, seen: _Copied) -> list[Change]:
        body = await self._source.offsets()
        if body == seen.offsets_body:
            return []
        before = seen.offsets
        if before is None:
            before = offsets.offsets_in(self._journal, offsets.OFFSETS)
        stored = await asyncio.to_thread(offsets.decode_offsets, body)
        after = await asyncio.to_thread(sound_offsets, stored.offset_table)
        changes = await asyncio.to_thread(lambda: list(offset_changes(before, after)))
        seen.offsets, seen.offsets_body = after, body
        if changes:
            changes.append((VERSIONS, offsets.OFFSETS, (stored.data_version or DataVersion()).encode()))
        return changes

    async def _delay_changes(self) -> list[Change]:
        levels = (await self._source.delays()).offset_table
        return [
            (delay_progress.TABLE, str(level), b"%d" % queue_offset)
            for level, queue_offset in levels.items()
            if 0 < level <= LEVELS_MAX and 0 <= queue_offset <= OFFSET_MAX
        ]


def topic_changes(before: Iterable[str], table: TopicConfigTable) -> Iterable[Change]:
    yield VERSIONS, topics.TABLE, table.data_version.encode()
    for name, config in table.topic_config_table.items():
        yield topics.TABLE, name, msgspec.structs.replace(config, topic_name=name).encode()
    yield from _removals(topics.TABLE, before, table.topic_config_table)


def group_changes(
    before: Iterable[str], forbidden_before: Iterable[str], table: SubscriptionGroupTable
) -> Iterable[Change]:
    yield VERSIONS, groups.TABLE, table.data_version.encode()
    for name, config in table.subscription_group_table.items():
        yield groups.TABLE, name, msgspec.structs.replace(config, group_name=name).encode()
    yield from _removals(groups.TABLE, before, table.subscription_group_table)
    for name, forbidden in table.forbidden_table.items():
        yield groups.FORBIDDEN, name, msgspec.json.encode(forbidden)
    yield from _removals(groups.FORBIDDEN, forbidden_before, table.forbidden_table)


def _removals(table: str, before: Iterable[str], kept: Mapping[str, object]) -> Iterable[Change]:
    for key in before:
        if key not in kept:
            yield table, key, None


def offset_changes(before: OffsetTable, after: OffsetTable) -> Iterable[Change]:
    for key, queues in after.items():
        old = before.get(key, {})
        if queues != old:
            yield from offsets.offset_changes(offsets.OFFSETS, key, queues, _parts(old))
    for key, old in before.items():
        if key not in after:
            yield from offsets.offset_changes(offsets.OFFSETS, key, {}, _parts(old))


def _parts(queues: Mapping[int, int]) -> int:
    return max(queues, default=-1) // offsets.PART_QUEUES + 1


def sound_offsets(table: OffsetTable) -> OffsetTable:
    """Leaves out what no queue can have."""
    return {
        key: {
            queue_id: queue_offset
            for queue_id, queue_offset in queues.items()
            if 0 <= queue_id <= QUEUE_ID_MAX and 0 <= queue_offset <= OFFSET_MAX
        }
        for key, queues in table.items()
    }
