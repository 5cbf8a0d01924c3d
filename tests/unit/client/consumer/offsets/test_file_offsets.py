"""The file of broadcast offsets is always complete, and belongs to one process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from metaq.client.consumer.offsets.storage import FileOffsets
from metaq.client.session.routes import Queue
from metaq.errors import ClientClosed, UnusableFile
from metaq.journal import FileJournal

QUEUE = Queue("T", "b", 1)


def test_offsets_are_there_again_and_others_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        assert await offsets.read(QUEUE) is None
        await offsets.commit({QUEUE: 5, Queue("T", "b", 2): 9})
        await offsets.commit({QUEUE: 6})
        await offsets.close()
        again = FileOffsets(tmp_path / "g.json")
        assert await again.read(QUEUE) == 6
        assert await again.read(Queue("T", "b", 2)) == 9
        await again.close()

    asyncio.run(scenario())


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        await offsets.commit({QUEUE: 5})

        def full(*_: object) -> int:
            raise OSError(28, "no space left")

        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", full)
            with pytest.raises(OSError, match="no space"):
                await offsets.commit({QUEUE: 6})
        assert await offsets.read(QUEUE) == 5
        await offsets.commit({QUEUE: 7})
        await offsets.close()
        assert '"offset": 7' in (tmp_path / "g.json").read_text()

    asyncio.run(scenario())


def test_a_file_of_an_older_version_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('{"offsets": [{"topic": "T", "broker": "b", "queue": 1, "offset": 5}]}')

    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        assert await offsets.read(QUEUE) == 5
        await offsets.commit({Queue("T", "b", 2): 9})
        offsets._abandon()  # As if the process was killed.
        again = FileOffsets(tmp_path / "g.json")
        assert [await again.read(Queue("T", "b", number)) for number in (1, 2)] == [5, 9]
        await again.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("queues", [50, 500])
def test_a_commit_writes_what_has_changed(tmp_path: Path, queues: int) -> None:
    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        await offsets.commit({Queue("T", "b", number): number for number in range(queues)})
        before = offsets._journal.journal.appended_bytes
        await offsets.commit({Queue("T", "b", number): number + (number == 7) for number in range(queues)})
        assert 0 < offsets._journal.journal.appended_bytes - before < 100
        await offsets.close()

    asyncio.run(scenario())


def test_a_file_belongs_to_one_consumer(tmp_path: Path) -> None:
    first = FileOffsets(tmp_path / "g.json")
    with pytest.raises(UnusableFile, match="another consumer"):
        FileOffsets(tmp_path / "g.json")
    asyncio.run(first.close())
    asyncio.run(FileOffsets(tmp_path / "g.json").close())


def test_commits_that_overlap_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_sync(monkeypatch)

    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        queues = [Queue("T", "b", number) for number in range(8)]
        await asyncio.gather(*(offsets.commit({queue: queue.id}) for queue in queues))
        await offsets.close()
        again = FileOffsets(tmp_path / "g.json")
        assert [await again.read(queue) for queue in queues] == list(range(8))
        await again.close()

    asyncio.run(scenario())


def test_a_commit_that_is_cancelled_ends_before_the_file_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = slow_sync(monkeypatch)

    async def scenario() -> None:
        offsets = FileOffsets(tmp_path / "g.json")
        first = asyncio.create_task(offsets.commit({QUEUE: 5, Queue("T", "b", 2): 1}))
        assert await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        await offsets.commit({QUEUE: 6})
        first = asyncio.create_task(offsets.commit({QUEUE: 7}))
        begun.clear()
        assert await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        await offsets.close()
        again = FileOffsets(tmp_path / "g.json")
        assert await again.read(QUEUE) == 7
        assert await again.read(Queue("T", "b", 2)) == 1
        await again.close()
        with pytest.raises(ClientClosed):
            await offsets.commit({QUEUE: 8})

    asyncio.run(scenario())


def slow_sync(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes syncs slow; the event is set when one has begun."""
    begun, sync = threading.Event(), os.fdatasync

    def slow(descriptor: int) -> None:
        begun.set()
        time.sleep(0.02)
        sync(descriptor)

    monkeypatch.setattr("os.fdatasync", slow)
    return begun


@pytest.mark.parametrize("text", ["", "{", "[]", '{"offsets": [{"topic": "T"}]}', '{"offsets": [3]}'])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(UnusableFile, match="cannot be read"):
        FileOffsets(tmp_path / "g.json")


def test_an_opening_that_is_given_up_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, load = threading.Event(), threading.Event(), FileOffsets._load

    def slowly(offsets: FileOffsets) -> FileJournal:
        begun.set()
        may_end.wait(60)
        return load(offsets)

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FileOffsets, "_load", slowly)
            opening = asyncio.create_task(FileOffsets.open(tmp_path / "g.json"))
            assert await asyncio.to_thread(begun.wait, 60)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            may_end.set()
        for attempt in range(1000):
            try:
                offsets = await FileOffsets.open(tmp_path / "g.json")
                break
            except UnusableFile:
                assert attempt < 999, "the lock is still held"
                await asyncio.sleep(0.01)
        await offsets.close()

    asyncio.run(scenario())
