"""How far a group has read: at the brokers in cluster mode, in a local file in broadcast mode."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq.client.session.routes import Queue
from metaq.durable import replace_file
from metaq.errors import ClientClosed, CommandError
from metaq.held_file import HeldFile
from metaq.protocol.codes import ResponseCode
from metaq.protocol.offsets import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueueOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from metaq.client.session.session import Session

CALL_TIMEOUT_S: Final = 5.0


class Offsets(Protocol):
    """Where committed offsets are kept."""

    async def read(self, queue: Queue) -> int | None:
        """None where the group has never committed one."""

    async def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Raises MetaqError or OSError where not all could be kept; trying again later is safe."""

    async def close(self) -> None: ...


class BrokerOffsets:
    """Cluster mode: each broker keeps those of its queues, for the whole group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._tables: set[tuple[str, str]] = set()
        """Brokers and topics that have an offset of the group."""

    async def read(self, queue: Queue) -> int | None:
        # Without the last field a broker may answer 0 for a young queue instead of "none".
        command = QueryConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.id, set_zero_if_not_found=False
        )
        reply = await self._session.call(queue.broker, command, timeout=CALL_TIMEOUT_S)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return reply.check().header(QueueOffset).queue_offset

    async def commit(self, offsets: Mapping[Queue, int]) -> None:
        tables: dict[tuple[str, str], list[Queue]] = {}
        for queue in offsets:
            tables.setdefault((queue.broker, queue.topic), []).append(queue)
        await _all_of(self._commit_table(queues, offsets) for queues in tables.values())

    async def _commit_table(self, queues: list[Queue], offsets: Mapping[Queue, int]) -> None:
        """Of one broker and topic. Apache's broker makes their table when the first offset comes; two that
        come at once make one each, and one of them is lost with what it holds: so the first goes alone."""
        table = (queues[0].broker, queues[0].topic)
        if table not in self._tables:
            await self._commit_one(queues[0], offsets[queues[0]])
            self._tables.add(table)
            queues = queues[1:]
        await _all_of(self._commit_one(queue, offsets[queue]) for queue in queues)

    async def _commit_one(self, queue: Queue, queue_offset: int) -> None:
        command = UpdateConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.id, commit_offset=queue_offset
        )
        (await self._session.call(queue.broker, command, timeout=CALL_TIMEOUT_S)).check()

    async def close(self) -> None:
        pass


async def _all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of it, and then raises what the first that failed did."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


class FileOffsets:
    """Broadcast mode: every process reads all queues and keeps its offsets in its own file.

    The file is replaced as a whole after its content was synced, so that it is the old or the new one if the
    power goes; a file that cannot be read is an error, since starting anew would skip or repeat silently.

    Commits may overlap, and one that is cancelled goes on in its thread: they write one after the other, each
    the newest that is wanted, and the file is not given free before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        try:
            self._held: HeldFile | None = HeldFile(path.with_suffix(".lock"))
        except BlockingIOError:
            raise CommandError(
                f"{path}: another consumer keeps its offsets there",
                hint="give each process its own file with offsets_file=…",
            ) from None
        try:
            self._offsets = self._load()
        except BaseException:
            self._held.close()
            raise
        self._wanted = self._offsets

    @classmethod
    async def open(cls, path: Path) -> FileOffsets:
        """In a thread, which goes on where whoever waits for it gives up: then it leaves no lock behind.
        Raises CommandError or OSError."""
        guard = threading.Lock()
        opened: list[FileOffsets] = []
        is_given_up = False

        def open_file() -> FileOffsets:
            offsets = cls(path)
            with guard:
                opened.append(offsets)
                if is_given_up:
                    offsets._unlock()
            return offsets

        try:
            return await asyncio.to_thread(open_file)
        except asyncio.CancelledError:
            with guard:
                is_given_up = True
                for offsets in opened:
                    offsets._unlock()
            raise

    async def read(self, queue: Queue) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[Queue, int]) -> None:
        self._wanted = {**self._wanted, **offsets}
        if self._wanted != self._offsets:
            await asyncio.to_thread(self._store_wanted)

    async def close(self) -> None:
        await asyncio.to_thread(self._unlock)

    def _unlock(self) -> None:
        with self._writing:
            if self._held is not None:
                self._held.close()
                self._held = None

    def _store_wanted(self) -> None:
        with self._writing:
            if self._held is None:
                raise ClientClosed(f"{self._path}: the offsets are closed")
            wanted = self._wanted
            if wanted != self._offsets:
                self._store(wanted)
                self._offsets = wanted

    def _load(self) -> dict[Queue, int]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        try:
            rows = json.loads(text)["offsets"]
            return {
                Queue(str(row["topic"]), str(row["broker"]), int(row["queue"])): int(row["offset"])
                for row in rows
            }
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(
                f"{self._path}: the offsets cannot be read: {error!r}",
                hint="remove the file to begin where start=… says",
            ) from None

    def _store(self, offsets: Mapping[Queue, int]) -> None:
        rows = [
            {"topic": queue.topic, "broker": queue.broker, "queue": queue.id, "offset": offset}
            for queue, offset in offsets.items()
        ]
        replace_file(self._path, json.dumps({"offsets": rows}).encode())


async def first_offset(session: Session, queue: Queue) -> int:
    return await _ask(session, queue, GetMinOffset(topic=queue.topic, queue_id=queue.id))


async def end_offset(session: Session, queue: Queue) -> int:
    """That of the next message to come."""
    return await _ask(session, queue, GetMaxOffset(topic=queue.topic, queue_id=queue.id))


async def offset_at(session: Session, queue: Queue, timestamp_ms: int) -> int:
    """Of the first message stored then or later."""
    command = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.id, timestamp=timestamp_ms)
    return await _ask(session, queue, command)


async def _ask(
    session: Session, queue: Queue, command: GetMinOffset | GetMaxOffset | SearchOffsetByTimestamp
) -> int:
    reply = await session.call(queue.broker, command, timeout=CALL_TIMEOUT_S)
    return reply.check().header(QueueOffset).queue_offset
