"""Storage of committed offsets: at the brokers in cluster mode, in a file or in memory in broadcast mode."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from metaq.client.session.routes import Queue
from metaq.client.tasks import Tasks
from metaq.durable import replace_file
from metaq.errors import ClientClosed, MetaqError, UnusableFile
from metaq.held_file import HeldFile
from metaq.journal import FileJournal
from metaq.journal.file_journal import directory_beside
from metaq.private_files import whose
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.offsets import (
    PREVIOUSLY_RESET,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueueOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from metaq.protocol.errors import Refused

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_T = TypeVar("_T")

CALL_TIMEOUT_S: Final = 5.0
NUMBERED_FILES_MAX: Final = 1000
"""The largest number of consumers of one group that keep their offsets in the same directory."""

_Table = tuple[str, str]
"""A broker and a topic: the unit in which brokers store a group's offsets."""
_Stored = tuple[str | None, str]
"""The address of a node and a topic."""


class Offsets(Protocol):
    """Stores committed offsets."""

    async def read(self, queue: Queue) -> int | None:
        """Returns the committed offset, or None if the group has never committed one."""

    async def commit(self, offsets: Mapping[Queue, int]) -> frozenset[Queue]:
        """Returns the queues whose group was reset in the meantime: their offsets were not stored.

        Raises MetaqError or OSError if some could not be stored. The caller may try again later."""

    async def close(self) -> None: ...


class BrokerOffsets:
    """Cluster mode: each broker stores the group's offsets of its own queues. While it has no master, a
    replica takes them, and refuses them as unsafe if another node may become master.

    A broker handles several requests of one connection at the same time, so an older commit may overtake a
    newer one. Therefore commits to one broker and topic follow each other, and a cancelled commit continues
    until it is answered.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._tables: set[_Stored] = set()
        """Tables that already store an offset of the group. A new master may lack some."""
        self._turns: defaultdict[_Table, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks = Tasks(f"group {group}")

    async def read(self, queue: Queue) -> int | None:
        # Without the last field a broker may answer 0 for a young queue instead of "none".
        command = QueryConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.id, set_zero_if_not_found=False
        )
        reply = await self._session.call_group(queue, command, timeout=CALL_TIMEOUT_S)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return reply.check().header(QueueOffset).queue_offset

    async def commit(self, offsets: Mapping[Queue, int]) -> frozenset[Queue]:
        tables: dict[_Table, list[Queue]] = {}
        for queue in offsets:
            tables.setdefault((queue.broker, queue.topic), []).append(queue)
        commits = [
            self._tasks.spawn(self._commit_table(table, queues, offsets), f"commit {table[1]}")
            for table, queues in tables.items()
        ]
        done = await _run_all(asyncio.shield(commit) for commit in commits)
        return frozenset().union(*done)

    async def _commit_table(
        self, table: _Table, queues: list[Queue], offsets: Mapping[Queue, int]
    ) -> list[Queue]:
        """Commits the offsets of one broker and topic, the very first one alone.

        Apache's broker creates the table of a topic with its first offset. Two first offsets at the same time
        create two tables, and one of them is lost with its content.
        """
        async with self._turns[table]:
            stored = (self._session.routes.group_address(table[0]), table[1])
            done: list[bool] = []
            unsafe: Refused | None = None
            rest = queues
            if stored not in self._tables:
                rest = queues[1:]
                try:
                    done.append(await self._commit_one(queues[0], offsets[queues[0]]))
                    self._tables.add(stored)
                except Refused as refused:
                    if not refused.retriable:
                        raise
                    # A broker that refuses an offset for now keeps it as well as it can, and the others too.
                    unsafe = refused
            done += await _run_all(self._commit_one(queue, offsets[queue]) for queue in rest)
            if unsafe is not None:
                raise unsafe
            return [queue for queue, is_stored in zip(queues, done, strict=True) if not is_stored]

    async def _commit_one(self, queue: Queue, queue_offset: int) -> bool:
        """Returns False if the group was reset, and the broker ignored the offset."""
        command = UpdateConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.id, commit_offset=queue_offset
        )
        reply = (await self._session.call_group(queue, command, timeout=CALL_TIMEOUT_S)).check()
        return reply.remark != PREVIOUSLY_RESET

    async def close(self) -> None:
        await self._tasks.end()


async def _run_all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Runs everything to its end and then raises the first failure."""
    done: list[_T] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        done.append(outcome)
    return done


class MemoryOffsets:
    """Broadcast mode without a file: every start begins anew."""

    def __init__(self) -> None:
        self._offsets: dict[Queue, int] = {}

    async def read(self, queue: Queue) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[Queue, int]) -> frozenset[Queue]:
        self._offsets.update(offsets)
        return frozenset()

    async def close(self) -> None: ...


class FileOffsets:
    """Broadcast mode: every process reads all queues and stores its offsets in a file of its own.

    A commit is one entry in the journal beside the file (`metaq.journal.file_journal`), with the offsets that
    have changed. The file itself is written when the consumer closes. One that cannot be read is an error,
    because to start afresh would silently skip or repeat messages.

    Commits may overlap; those that come during a sync share the next one. A cancelled commit continues, and
    the file stays locked until the last one has ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_open = True
        try:
            self._held = HeldFile(path.with_suffix(".lock"))
        except BlockingIOError:
            raise FileInUse(
                f"{path}: another consumer keeps its offsets in this file",
                hint="leave offsets_file out, or give each process its own file",
            ) from None
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            self._offsets: dict[Queue, int] = {}
            self._journal = self._load()
            for key, value in self._journal.values.items():
                self._on_change(key, value)
        except OSError as error:
            self._held.close()
            raise _unusable(path, error) from None
        except BaseException:
            self._held.close()
            raise

    @classmethod
    async def open(cls, path: Path, *, numbered: bool = False) -> FileOffsets:
        """Opens the file in a thread. Raises UnusableFile or JournalDamaged.

        If the file is in use and `numbered` is set, it opens the first free one of `name~2`, `name~3` and so
        on. The thread continues if the caller is cancelled; it then unlocks the file at once.
        """
        guard = threading.Lock()
        opened: list[FileOffsets] = []
        is_cancelled = False

        def open_file() -> FileOffsets:
            offsets = cls._first_free(path) if numbered else cls(path)
            with guard:
                opened.append(offsets)
                if is_cancelled:
                    offsets._abandon()
            return offsets

        try:
            return await asyncio.to_thread(open_file)
        except asyncio.CancelledError:
            with guard:
                is_cancelled = True
                for offsets in opened:
                    offsets._abandon()
            raise

    @classmethod
    def _first_free(cls, path: Path) -> FileOffsets:
        # Group names contain no tilde, so other groups do not use these names.
        for number in range(1, NUMBERED_FILES_MAX + 1):
            try:
                return cls(path if number == 1 else path.with_stem(f"{path.stem}~{number}"))
            except FileInUse:
                continue
        raise UnusableFile(
            f"{path}: {NUMBERED_FILES_MAX} consumers keep their offsets in {path.parent}",
            hint='use offsets="memory", or another METAQ_CLIENT_DIRECTORY',
        )

    async def read(self, queue: Queue) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[Queue, int]) -> frozenset[Queue]:
        if not self._is_open:
            raise ClientClosed(f"{self._path}: the file of offsets is closed")
        await self._journal.write(
            [
                (_key(queue), b"%d" % queue_offset)
                for queue, queue_offset in offsets.items()
                if self._offsets.get(queue) != queue_offset
            ]
        )
        return frozenset()

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._journal.close(self._content, lambda content: replace_file(self._path, content))
            finally:
                self._held.close()

    def _abandon(self) -> None:
        """Unlocks a file to which nothing is being written."""
        self._is_open = False
        self._journal.abandon()
        self._held.close()

    def _on_change(self, key: str, value: bytes | None) -> None:
        topic, broker, queue_id = msgspec.json.decode(key, type=tuple[str, str, int])
        if value is not None:
            self._offsets[Queue(topic, broker, queue_id)] = int(value)

    def _load(self) -> FileJournal:
        return FileJournal(self._path, self._read_file, self._on_change)

    def _read_file(self) -> dict[str, bytes]:
        try:
            rows = json.loads(self._path.read_text())["offsets"]
            queues = {
                Queue(str(row["topic"]), str(row["broker"]), int(row["queue"])): int(row["offset"])
                for row in rows
            }
            return {_key(queue): b"%d" % queue_offset for queue, queue_offset in queues.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableFile(
                f"{self._path}: the offsets cannot be read: {error!r}",
                hint=f"remove the file and {directory_beside(self._path)} to begin where start=… says",
            ) from None

    def _content(self) -> bytes:
        rows = [
            {"topic": queue.topic, "broker": queue.broker, "queue": queue.id, "offset": queue_offset}
            for queue, queue_offset in self._offsets.items()
        ]
        return json.dumps({"offsets": rows}).encode()


class FileInUse(UnusableFile):
    """Another consumer keeps its offsets in the file."""


def _unusable(path: Path, error: OSError) -> MetaqError:
    hint = whose(path, error) or 'choose another offsets_file or METAQ_CLIENT_DIRECTORY, or offsets="memory"'
    return UnusableFile(f"{path}: the offsets cannot be kept there: {error.strerror or error}", hint=hint)


def _key(queue: Queue) -> str:
    return msgspec.json.encode((queue.topic, queue.broker, queue.id)).decode()


async def earliest_offset(session: Session, queue: Queue) -> int:
    """Returns the offset of the oldest message."""
    return await _ask(session, queue, GetMinOffset(topic=queue.topic, queue_id=queue.id))


async def latest_offset(session: Session, queue: Queue) -> int:
    """Returns the offset that the next message will get."""
    return await _ask(session, queue, GetMaxOffset(topic=queue.topic, queue_id=queue.id))


async def offset_at(session: Session, queue: Queue, timestamp_ms: int) -> int:
    """Returns the offset of the first message that was stored at that time or later."""
    command = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.id, timestamp=timestamp_ms)
    return await _ask(session, queue, command)


async def _ask(
    session: Session, queue: Queue, command: GetMinOffset | GetMaxOffset | SearchOffsetByTimestamp
) -> int:
    reply = await session.call_group(queue, command, timeout=CALL_TIMEOUT_S)
    return reply.check().header(QueueOffset).queue_offset
