"""The journal: what it keeps, what a crash or damage leaves of it, and what a replica gets."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.journal import journal as module
from metaq.journal.files import JournalFiles
from metaq.journal.journal import (
    Change,
    Entry,
    Journal,
    JournalDamaged,
    NotWritten,
    Point,
    Snapshot,
    Unwritten,
)
from metaq.metadata import MetadataDamaged
from tests.support.waiting import wait_until

State = dict[tuple[str, str], bytes]


def state_of(journal: Journal) -> State:
    return {(entry.table, entry.key): entry.value or b"" for entry in journal.snapshot().entries}


def put(key: str, value: str = "x", table: str = "topics") -> Change:
    return table, key, value.encode()


def gone(key: str, table: str = "topics") -> Change:
    return table, key, None


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> Iterator[None]:
    def fail(*arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        yield


# Keeping


def test_changes_are_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path, epoch=3)
        assert journal.is_new
        await journal.write([put("a", "1"), put("b", "2")])
        await journal.write([put("a", "3"), gone("b"), put("g", table="groups")])
        assert journal.point == Point(3, 5)
        assert state_of(journal) == {("topics", "a"): b"3", ("groups", "g"): b"x"}
        await journal.close()
        again = Journal.open(tmp_path)
        assert not again.is_new
        assert (again.point, again.epoch) == (Point(3, 5), 3), "a journal never falls back to a lower epoch"
        assert state_of(again) == state_of(journal)
        assert again.get("topics", "a") == b"3" and again.get("topics", "b") is None
        await again.close()

    run(scenario)


def test_a_change_to_the_same_value_is_not_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        await journal.write([put("a", "1")])
        before = (journal.point, journal.appended_bytes)
        await journal.write([put("a", "1"), gone("never")])
        assert (journal.point, journal.appended_bytes) == before
        await asyncio.gather(journal.write([put("a", "2")]), journal.write([put("a", "1")]))
        assert journal.get("topics", "a") == b"1", "the last one counts, also in one turn"
        await journal.close()

    run(scenario)


def test_changes_of_one_turn_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[str] = []
    fdatasync = os.fdatasync

    def counted(descriptor: int) -> None:
        syncs.append(threading.current_thread().name)
        fdatasync(descriptor)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        monkeypatch.setattr(os, "fdatasync", counted)
        await asyncio.gather(*(journal.write([put(str(number))]) for number in range(200)))
        assert len(syncs) <= 2
        assert "MainThread" not in syncs, "the event loop never waits for a disk"
        assert len(state_of(journal)) == 200
        await journal.close()

    run(scenario)


def test_a_cancelled_caller_leaves_the_journal_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        for number in range(20):
            writing = asyncio.create_task(journal.write([put(str(number))]))
            await asyncio.sleep(0)
            writing.cancel()
        await journal.apply([])
        await journal.write([put("last")])
        await journal.close()
        again = Journal.open(tmp_path)
        assert state_of(again) == state_of(journal)
        assert ("topics", "last") in state_of(again)
        await again.close()

    run(scenario)


# Disks that fail


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def writes_half(descriptor: int, content: memoryview, position: int) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, content[: len(content) // 2], position)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        await journal.write([put("a", "1")])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", writes_half)
            for _ in range(2):
                with pytest.raises(NotWritten, match=r"No space left.*make room"):
                    await journal.write([put("a", "2"), put("b")])
        assert state_of(journal) == {("topics", "a"): b"1"}
        assert state_of(Journal.open(shutil.copytree(tmp_path, tmp_path / "killed"))) == state_of(journal)
        await journal.write([put("b")])
        await journal.close()
        assert set(state_of(Journal.open(tmp_path))) == {("topics", "a"), ("topics", "b")}

    run(scenario)


def test_after_a_failed_sync_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        await journal.write([put("a", "1")])
        with (
            failing(monkeypatch, "fdatasync", errno.EIO),
            pytest.raises(NotWritten, match="restart this process"),
        ):
            await journal.write([put("a", "2")])
        for attempt in (journal.write([put("b")]), journal.reset(Snapshot(Point(9, 9), []))):
            with pytest.raises(NotWritten, match="a sync failed"):
                await attempt
        with pytest.raises(NotWritten, match="a sync failed"):
            await journal.apply([Entry(1, 2, "topics", "c", b"x")])
        assert state_of(journal) == {("topics", "a"): b"1"}
        await journal.close()

    run(scenario)


def test_unwritten_keys_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        values = {"a": b"1"}
        unwritten = Unwritten(journal, lambda _, key: values.get(key))
        unwritten.touch("topics", "a")
        with failing(monkeypatch, "pwrite", errno.ENOSPC), pytest.raises(NotWritten):
            await unwritten.keep()
        # Another caller that has nothing new itself waits for the change all the same.
        await unwritten.keep()
        assert journal.get("topics", "a") == b"1"
        del values["a"]
        unwritten.touch("topics", "a")
        first, second = asyncio.create_task(unwritten.keep()), asyncio.create_task(unwritten.keep())
        await second
        assert journal.get("topics", "a") is None
        await first
        await journal.close()

    run(scenario)


# Crashes and damage

keys = st.sampled_from(["a", "b", "c", "d"])
values = st.one_of(st.none(), st.binary(max_size=12))
changes = st.lists(st.tuples(st.sampled_from(["topics", "groups"]), keys, values), min_size=1, max_size=4)
histories = st.lists(changes, min_size=1, max_size=8)
slow = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("journal")


def written(directory: Path, history: Sequence[Sequence[Change]]) -> list[State]:
    """Writes the changes one after the other; returns all acknowledged states, the empty one first."""
    states: list[State] = [{}]

    async def scenario() -> None:
        journal = Journal.open(directory)
        for batch in history:
            await journal.write(batch)
            states.append(state_of(journal))
        await journal.close()

    run(scenario)
    return states


def loaded(directory: Path) -> State:
    journal = Journal.open(directory)
    journal._files.close()
    return state_of(journal)


@slow
@given(history=histories, data=st.data())
def test_any_prefix_of_the_log_is_a_state_that_was_acknowledged(
    fresh: Callable[[], Path], history: list[list[Change]], data: st.DataObject
) -> None:
    directory = fresh()
    states = written(directory, history)
    log = directory / "00000001.log"
    content = log.read_bytes()
    head = 12 + content[7]
    end = data.draw(st.integers(head, len(content)))
    log.write_bytes(content[:end] + data.draw(st.binary(max_size=30)) * (end < len(content)))
    found = loaded(directory)
    assert found in states
    if end == len(content):
        assert found == states[-1]
    assert loaded(directory) == found, "the cut is durable"
    # It goes on from there.
    assert written(directory, [[put("new")]])[-1] == {**found, ("topics", "new"): b"x"}


@slow
@given(history=st.lists(changes, min_size=2, max_size=8), data=st.data())
def test_damage_before_the_last_frame_is_refused(
    fresh: Callable[[], Path], history: list[list[Change]], data: st.DataObject
) -> None:
    directory = fresh()
    written(directory, [*history, [put("last", "1")], [put("last", "2")]])
    log = directory / "00000001.log"
    content = bytearray(log.read_bytes())
    last = bytes(content).rindex(b"\xf1MQJ")
    position = data.draw(st.integers(0, last - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    log.write_bytes(content)
    with pytest.raises(JournalDamaged, match=r"00000001\.log is damaged at byte \d+") as refused:
        Journal.open(directory)
    assert "backup" in refused.value.hint
    assert log.read_bytes() == content, "a damaged file is left as it is"


@slow
@given(position=st.floats(0, 1), change=st.integers(1, 255))
def test_a_damaged_snapshot_is_refused(fresh: Callable[[], Path], position: float, change: int) -> None:
    directory = fresh()

    async def scenario() -> None:
        journal = Journal.open(directory)
        entries = [Entry(1, number, "topics", str(number), b"x") for number in range(1, 30)]
        await journal.reset(Snapshot(Point(1, 29), entries))
        await journal.close()

    run(scenario)
    [snapshot] = directory.glob("*.snapshot")
    content = bytearray(snapshot.read_bytes())
    for damaged in (bytes(content[: int(position * (len(content) - 1))]), None):
        if damaged is None:
            content[int(position * (len(content) - 1))] ^= change
            damaged = bytes(content)
        snapshot.write_bytes(damaged)
        with pytest.raises(JournalDamaged, match="snapshot is damaged"):
            Journal.open(directory)


def test_a_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACTION_BYTES_MIN", 200)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        for number in range(50):
            await journal.write([put("a", str(number))])
        await journal.close()

    run(scenario)
    [log] = tmp_path.glob("*.log")
    log.unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        Journal.open(tmp_path)


def test_a_value_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        await journal.write([put("7", "seven", table="delay")])
        with pytest.raises(MetadataDamaged, match="delay '7'"):
            journal.decoded("delay", int)
        await journal.close()

    run(scenario)


# Compaction


@slow
@given(history=st.lists(changes, min_size=5, max_size=25), data=st.data())
def test_a_kill_at_any_step_of_a_compaction_loses_nothing(
    fresh: Callable[[], Path], history: list[list[Change]], data: st.DataObject
) -> None:
    """Every call that changes the directory is a moment at which the process can die."""
    directory, copies = fresh(), fresh()
    moments: list[tuple[Path, int]] = []
    states: list[State] = [{}]

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def before(*arguments: Any, **options: Any) -> Any:
            if directory in Path(str(arguments[0])).parents:
                copy = copies / str(len(moments))
                shutil.copytree(directory, copy)
                moments.append((copy, len(states) - 1))
            return call(*arguments, **options)

        return before

    async def scenario() -> None:
        journal = Journal.open(directory)
        for batch in history:
            await journal.write(batch)
            states.append(state_of(journal))
            if journal._compacting is not None:
                await journal._compacting
        await journal.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPACTION_BYTES_MIN", 60)
        for method in ("replace", "unlink"):
            patch.setattr(Path, method, noted(getattr(Path, method)))
        run(scenario)
    assert loaded(directory) == states[-1]
    if moments:
        copy, acknowledged = data.draw(st.sampled_from(moments))
        # The next change may be on disk already.
        assert loaded(copy) in states[acknowledged : acknowledged + 2]


def test_the_files_stay_in_proportion_to_what_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACTION_BYTES_MIN", 2_000)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        for number in range(2_000):
            await journal.write([put(str(number % 10), str(number))])
        await journal.close()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
        assert len(list(tmp_path.iterdir())) <= 3
        again = Journal.open(tmp_path)
        assert again.point == Point(1, 2_000) and state_of(again) == state_of(journal)
        await again.close()

    run(scenario)


def test_changes_go_on_while_a_snapshot_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACTION_BYTES_MIN", 500)
    may_end = threading.Event()

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        write_snapshot = journal._files.write_snapshot

        def slowly(*arguments: Any, **options: Any) -> None:
            assert may_end.wait(60)
            write_snapshot(*arguments, **options)

        monkeypatch.setattr(journal._files, "write_snapshot", slowly)
        for number in range(100):
            await journal.write([put("a", str(number))])
        assert journal._compacting is not None
        killed = loaded(shutil.copytree(tmp_path, tmp_path / "killed"))
        assert killed == {("topics", "a"): b"99"}
        may_end.set()
        await journal.close()
        assert loaded(tmp_path) == killed

    run(scenario)


def test_a_snapshot_that_does_not_fit_is_tried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACTION_BYTES_MIN", 500)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        attempts = 0

        def full(*arguments: object, **options: object) -> None:
            nonlocal attempts
            attempts += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(journal._files, "write_snapshot", full)
            for number in range(100):
                await journal.write([put("a", str(number))])
        assert 1 <= attempts < 20
        assert loaded(shutil.copytree(tmp_path, tmp_path / "killed")) == {("topics", "a"): b"99"}
        for number in range(100):
            await journal.write([put("a", str(number))])
        await journal.close()
        assert len(list(tmp_path.glob("*.log"))) == 1
        assert loaded(tmp_path) == {("topics", "a"): b"99"}

    run(scenario)


# Replicas


def test_a_replica_follows_and_resets(tmp_path: Path) -> None:
    async def scenario() -> None:
        master, replica = Journal.open(tmp_path / "master", 2), Journal.open(tmp_path / "replica")
        batches: list[Sequence[Entry]] = []
        stop = master.observe(batches.append)
        await master.write([put("a", "1"), put("b")])
        await master.write([gone("b")])
        assert [len(batch) for batch in batches] == [2, 1]
        for batch in batches:
            await replica.apply(batch)
        assert (replica.point, state_of(replica)) == (master.point, state_of(master))
        assert replica.entries_after(Point(0, 0)) == master.entries_after(Point(0, 0)) != None  # noqa: E711
        assert master.entries_after(replica.point) == []
        stop()
        await master.write([put("c")])
        assert len(batches) == 2
        for wrong in (
            [Entry(2, 5, "t", "k", b"")],
            [Entry(1, 4, "t", "k", b"")],
            [Entry(2, 3, "t", "k", b"")],
        ):
            with pytest.raises(ValueError, match="does not follow"):
                await replica.apply(wrong)
        # The replica becomes master, and the old master has an entry that nobody else has.
        replica.begin_epoch(3)
        with pytest.raises(ValueError, match="lower"):
            replica.begin_epoch(2)
        await replica.write([put("d")])
        assert replica.point == Point(3, 4) and master.point == Point(2, 4)
        assert replica.entries_after(master.point) is None
        assert [entry.key for entry in replica.entries_after(Point(2, 3)) or ()] == ["d"]
        await master.reset(replica.snapshot())
        assert (master.point, master.epoch, state_of(master)) == (Point(3, 4), 3, state_of(replica))
        assert master.entries_after(Point(2, 3)) is None, "it does not know how it came to be there"
        assert master.entries_after(Point(3, 4)) == []
        await master.close()
        again = Journal.open(tmp_path / "master")
        assert (again.point, state_of(again)) == (replica.point, state_of(replica))
        await again.close()
        await replica.close()

    run(scenario)


def test_a_compaction_does_not_cut_off_a_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACTION_BYTES_MIN", 300)
    monkeypatch.setattr(module, "HISTORY_ENTRIES_MAX", 50)

    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        for number in range(100):
            await journal.write([put("a", str(number))])
        entries = journal.entries_after(Point(1, 60))
        assert entries is not None and [entry.version for entry in entries] == list(range(61, 101))
        assert journal.entries_after(Point(1, 50)) is not None
        assert journal.entries_after(Point(1, 49)) is None
        assert journal.entries_after(Point(1, 101)) is None
        await journal.close()

    run(scenario)


@slow
@given(history=histories, others=histories)
def test_a_reset_is_all_or_nothing(
    fresh: Callable[[], Path], history: list[list[Change]], others: list[list[Change]]
) -> None:
    directory, other, copies = fresh(), fresh(), fresh()
    before = written(directory, history)[-1]
    after = written(other, others)[-1]
    moments: list[Path] = []

    async def scenario() -> None:
        source, journal = Journal.open(other), Journal.open(directory)
        replace = Path.replace

        def noted(path: Path, target: Path) -> Path:
            for call in (lambda: None, lambda: replace(path, target)):
                call()
                moments.append(shutil.copytree(directory, copies / str(len(moments))))
            return target

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", noted)
            await journal.reset(source.snapshot())
        assert state_of(journal) == after
        await journal.close()
        await source.close()

    run(scenario)
    found = [loaded(moment) for moment in moments]
    assert found[0] == before and found[-1] == after
    assert all(state in (before, after) for state in found)


def test_an_observer_that_fails_harms_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)

        def fails(entries: Sequence[Entry]) -> None:
            raise RuntimeError("observer")

        journal.observe(fails)
        await journal.write([put("a")])
        await journal.write([put("b")])
        assert len(state_of(journal)) == 2
        await journal.close()

    run(scenario)


def test_a_closed_journal_leaves_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    async def write_and_close() -> None:
        journal = Journal.open(tmp_path / "journal")
        await journal.write([put("a")])
        assert [thread for thread in threading.enumerate() if thread.name.startswith("metaq-journal")]
        await journal.close()
        await journal.close()

    run(write_and_close)
    wait_until(lambda: not {t for t in set(threading.enumerate()) - before if "metaq-journal" in t.name})


@pytest.mark.parametrize("torn", [b"", b"torn"], ids=["whole", "torn"])
@pytest.mark.parametrize("suffix", ["log", "snapshot"])
def test_a_planted_link_is_not_followed(tmp_path: Path, suffix: str, torn: bytes) -> None:
    """Its target would be cut, or grow with each change."""
    victim = tmp_path / "victim"
    source = JournalFiles(tmp_path / "source")
    source.load()
    if suffix == "snapshot":
        source.replace(Point(0, 0), [])
    source.close()
    (file,) = (tmp_path / "source").glob(f"*.{suffix}")
    content = file.read_bytes() + torn
    victim.write_bytes(content)
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        JournalFiles(tmp_path / "source").load()
    assert victim.read_bytes() == content and file.is_symlink()
