"""RocketMQ's files of topics, groups, offsets and delay progress: where a journal begins, and how to go back.

A broker that finds no journal reads the files in `config/` and makes them its first snapshot. From then on
the journal counts and the files are not touched. `export_config` writes them again and removes the journal,
so that whichever broker starts next finds one truth.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from metaq.broker.state import delay_progress, groups, offsets, topics
from metaq.broker.state.versions import VERSIONS, stored_version
from metaq.durable import sync_directory
from metaq.errors import CommandError
from metaq.held_file import HeldFile
from metaq.journal.journal import Change, Entry, Journal, JournalDamaged, Point, Snapshot
from metaq.journal.mark import Mark, mark_beside
from metaq.journal.set_aside import SetAside
from metaq.metadata import MetadataFile
from metaq.protocol import java_json
from metaq.protocol.bodies import (
    Body,
    DataVersion,
    DelayOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from metaq.protocol.errors import ProtocolError
from metaq.protocol.ranges import Int64

_log = logging.getLogger(__name__)

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_FILE = "delayOffset.json"
UNREADABLE_PART: Final = "unreadable"
"""In place of the number of a part, for the queues of an offset file that cannot be read."""

_QueueId = Annotated[int, msgspec.Meta(ge=0, lt=topics.QUEUES_MAX)]


async def open_journal(directory: Path, epoch: int = 1, *, has_peers: bool = False) -> Journal:
    """Opens the journal of a store. A new one begins with the files in `config/`, if there are any.

    A node whose group can give it the control state again (`has_peers`) moves a damaged journal aside and
    begins without one; `found` shows that, until `accept_mark`. Any other broker refuses to start without
    what its journal had. Raises MetadataDamaged or OSError.
    """
    await asyncio.to_thread(_warn_of_newer_files, directory)
    journal = await asyncio.to_thread(_open_files, directory, epoch, has_peers)
    found = journal.found
    try:
        if journal.is_new and not found.is_behind:
            changes = await asyncio.to_thread(read_files, directory / "config")
            entries = [
                Entry(journal.epoch, version, *change) for version, change in enumerate(changes, start=1)
            ]
            await journal.reset(Snapshot(Point(journal.epoch, len(entries)), entries))
        if not has_peers:
            if found.is_behind:
                _report_loss(directory, journal)
            await journal.accept_mark()
    except BaseException:
        await journal.close()
        raise
    return journal


def _open_files(directory: Path, epoch: int, has_peers: bool) -> Journal:
    path, mark = directory / "journal", Mark(mark_beside(directory / "journal"))
    set_aside = SetAside(directory / "set-aside")
    try:
        return Journal.open(path, epoch, set_aside=set_aside, mark=mark)
    except JournalDamaged as error:
        if not has_peers:
            raise JournalDamaged(str(error), hint=_how_to_go_on(directory)) from error
        aside = directory / f"journal.damaged-{time.time_ns()}"
        # First the note: after a kill in between, the missing journal must not look like a new one.
        mark.note_loss()
        path.rename(aside)
        sync_directory(directory)
        _log.error(
            "%s; it was moved to %s, and this node takes the topics, groups and offsets of its group's "
            "master; remove the copy when the node is in sync",
            *(error, aside),
        )
    return Journal.open(path, epoch, set_aside=set_aside, mark=mark)


def _report_loss(directory: Path, journal: Journal) -> None:
    """Refuses a start without any control state; entries that are missing at the end are reported."""
    if journal.is_new:
        raise JournalDamaged(
            f"the journal {directory / 'journal'} is missing or empty, but it had topics, groups and offsets",
            hint=_how_to_go_on(directory),
        )
    _log.error(
        "the journal %s ends before changes that were on disk once: it was cut, or it is an older copy; the "
        "newest changes of topics, groups, limits and offsets are lost",
        directory / "journal",
    )


def _how_to_go_on(directory: Path) -> str:
    return (
        "restore it from a backup, or from a stopped replica of this broker; to go on without it, move "
        f"{directory / 'journal'} and {mark_beside(directory / 'journal')} away: topics, groups, limits, "
        "committed offsets and the progress of delayed messages are then lost, or as old as the files in "
        "config/; messages are not"
    )


def _warn_of_newer_files(directory: Path) -> None:
    """Apache's broker writes its files and knows nothing of the journal."""
    written_ns = max(
        (path.stat().st_mtime_ns for path in (directory / "journal").glob("*.log")), default=None
    )
    for name in (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAY_FILE):
        path = directory / "config" / name
        if written_ns is not None and path.exists() and path.stat().st_mtime_ns > written_ns:
            _log.warning(
                "%s is newer than the journal and is not read; if another broker has used the store since, "
                "stop this one, move %s and %s away and start it again",
                path,
                directory / "journal",
                mark_beside(directory / "journal"),
            )


def read_files(directory: Path) -> list[Change]:
    """The content of the files as changes of an empty journal. Raises MetadataDamaged."""
    return [
        *_read_topics(MetadataFile(directory / TOPICS_FILE)),
        *_read_groups(MetadataFile(directory / GROUPS_FILE)),
        *_read_offsets(MetadataFile(directory / OFFSETS_FILE)),
        *_read_delays(MetadataFile(directory / DELAY_FILE)),
    ]


_NOTHING: Final = msgspec.Raw(b"null")


class _TopicsFile(msgspec.Struct, rename="camel"):
    """TopicConfigTable, with topics that may be unreadable: the start sets those aside, one by one."""

    data_version: msgspec.Raw = _NOTHING
    topic_config_table: dict[str, Any] = {}


class _GroupsFile(msgspec.Struct, rename="camel"):
    """SubscriptionGroupTable in the same way."""

    data_version: msgspec.Raw = _NOTHING
    forbidden_table: dict[str, Any] = {}
    subscription_group_table: dict[str, Any] = {}


class _OffsetsFile(msgspec.Struct, rename="camel"):
    """ConsumerOffsets in the same way."""

    data_version: msgspec.Raw = _NOTHING
    offset_table: dict[str, msgspec.Raw] = {}
    reset_table: dict[str, msgspec.Raw] | None = None


class _DelaysFile(msgspec.Struct, rename="camel"):
    """DelayOffsets in the same way."""

    data_version: msgspec.Raw = _NOTHING
    offset_table: dict[str, msgspec.Raw] = {}


def _version(file: MetadataFile, stored: msgspec.Raw) -> bytes:
    """The version of a table. One that cannot be read only makes replicas ask for the table once more."""
    try:
        version = msgspec.json.decode(stored, type=DataVersion | None) or DataVersion()
    except msgspec.DecodeError as error:
        _log.warning("%s: its version cannot be read, so it begins at 0: %s", file.path, error)
        version = DataVersion()
    return version.encode()


def _read_topics(file: MetadataFile) -> Iterable[Change]:
    stored = file.load(lambda content: java_json.decode(content, _TopicsFile))
    if stored is not None:
        yield VERSIONS, topics.TABLE, _version(file, stored.data_version)
        for name, config in stored.topic_config_table.items():
            yield topics.TABLE, name, _whole(config, TopicConfig, "topicName", name)


def _read_groups(file: MetadataFile) -> Iterable[Change]:
    stored = file.load(lambda content: java_json.decode(content, _GroupsFile))
    if stored is not None:
        yield VERSIONS, groups.TABLE, _version(file, stored.data_version)
        for name, config in stored.subscription_group_table.items():
            yield groups.TABLE, name, _whole(config, SubscriptionGroupConfig, "groupName", name)
        for name, forbidden in stored.forbidden_table.items():
            yield groups.FORBIDDEN, name, msgspec.json.encode(forbidden)


def _whole(config: Any, kind: type[Body], name_field: str, name: str) -> bytes:
    """The entry of a table with its name and all defaults, or as it is if it cannot be read."""
    if isinstance(config, dict):
        config = {**config, name_field: name}
    content = msgspec.json.encode(config)
    try:
        return kind.decode(content).encode()
    except ProtocolError:
        return content


def _read_offsets(file: MetadataFile) -> Iterable[Change]:
    stored = file.load(lambda content: java_json.decode(offsets.quoted_keys(content), _OffsetsFile))
    if stored is not None:
        yield VERSIONS, offsets.OFFSETS, _version(file, stored.data_version)
        for table, kept in ((offsets.OFFSETS, stored.offset_table), (offsets.RESETS, stored.reset_table)):
            for key, content in (kept or {}).items():
                queues, unreadable = _readable_queues(content)
                yield from offsets.offset_changes(table, key, queues, parts=0)
                if unreadable:
                    # The load of the journal sets this entry aside. The other queues keep their offsets.
                    yield table, f"{key}@{UNREADABLE_PART}", unreadable


def _readable_queues(content: msgspec.Raw) -> tuple[dict[int, int], bytes]:
    """Queue → offset, and the rest as it is in the file; empty if there is none."""
    try:
        values = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}, bytes(content)
    queues: dict[int, int] = {}
    unreadable: dict[str, msgspec.Raw] = {}
    for key, value in values.items():
        try:
            queues[msgspec.convert(key, _QueueId, strict=False)] = msgspec.json.decode(value, type=Int64)
        except msgspec.DecodeError:
            unreadable[key] = value
    return queues, msgspec.json.encode(unreadable) if unreadable else b""


def _read_delays(file: MetadataFile) -> Iterable[Change]:
    stored = file.load(lambda content: java_json.decode(offsets.quoted_keys(content), _DelaysFile))
    if stored is not None:
        yield VERSIONS, delay_progress.TABLE, _version(file, stored.data_version)
        for level, queue_offset in stored.offset_table.items():
            yield delay_progress.TABLE, level, bytes(queue_offset)


async def export_config(directory: Path) -> list[Path]:
    """Turns the journal of a stopped broker into RocketMQ's files and moves it aside; returns the files.
    Without a journal it changes nothing.

    Raises CommandError if the broker runs or there is no store, MetadataDamaged or OSError.
    """
    if not (directory / "lock").exists():
        raise CommandError(f"{directory} is not the directory of a broker: it has no lock file")
    try:
        held = HeldFile(directory / "lock")
    except BlockingIOError:
        raise CommandError(f"a broker is using {directory}: stop it first") from None
    try:
        if not (directory / "journal").is_dir():
            return []
        journal = await asyncio.to_thread(Journal.open, directory / "journal")
        try:
            if journal.is_new:
                return []
            written = _write_files(journal, directory / "config")
        finally:
            await journal.close()
        # First the mark: without it, a missing journal is a new one.
        mark_beside(directory / "journal").unlink(missing_ok=True)
        (directory / "journal").rename(directory / f"journal.exported-{time.time_ns()}")
        sync_directory(directory)
        return written
    finally:
        held.close()


def _write_files(journal: Journal, directory: Path) -> list[Path]:
    def version(table: str) -> DataVersion:
        return stored_version(journal, table) or DataVersion()

    topic_table = TopicConfigTable(
        data_version=version(topics.TABLE),
        topic_config_table=journal.decoded(topics.TABLE, TopicConfig.decode),
    )
    group_table = SubscriptionGroupTable(
        data_version=version(groups.TABLE),
        subscription_group_table=journal.decoded(groups.TABLE, SubscriptionGroupConfig.decode),
        forbidden_table=journal.decoded(groups.FORBIDDEN, groups.decode_forbidden),
    )
    levels = {int(level): offset for level, offset in journal.decoded(delay_progress.TABLE, int).items()}
    contents = {
        TOPICS_FILE: msgspec.json.format(topic_table.encode(), indent=2),
        GROUPS_FILE: msgspec.json.format(group_table.encode(), indent=2),
        OFFSETS_FILE: offsets.encode_offsets(
            offsets.offsets_in(journal, offsets.OFFSETS),
            version(offsets.OFFSETS),
            offsets.offsets_in(journal, offsets.RESETS),
        ),
        DELAY_FILE: DelayOffsets(data_version=version(delay_progress.TABLE), offset_table=levels).encode(
            bare_integer_keys=True
        ),
    }
    for name, content in contents.items():
        MetadataFile(directory / name).write(content)
    return [directory / name for name in contents]
