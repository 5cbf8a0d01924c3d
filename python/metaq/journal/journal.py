"""The journal: tables of keys and values, such as the control state of a broker, written in proportion to
their changes.

Topics, groups, committed offsets, progress and locks are tables of keys and values. A change of one key is
one entry `(epoch, version, table, key, value)`; without a value, the key is removed. The version grows by
one with every entry, over all epochs. The epoch is given by whoever opens the journal and never falls.

`write` returns when the change is on disk. Changes of the same turn of the event loop share one sync, and
so do those that come while another sync runs. If the disk is full, `write` raises NotWritten and nothing
has changed. After a failed sync every further change is refused: the kernel may have dropped what it should
have kept, so a sync is never tried again. `journal_files` describes the files, and what is damage and what
is not.

When the log has outgrown the live entries, they are written to a snapshot in a thread, and the old files are
removed. Changes go on meanwhile.

A replica holds the same journal, entry for entry:

- `entries_after(point)` returns the entries that follow a point of this journal's history. It returns None
  if the point is not in the history, because another master wrote it, or if it is too long ago.
- `snapshot()` then returns all live entries and the point that they stand for.
- `apply(entries)` appends entries of a master as they are, with their epochs and versions. They must follow
  this journal's point.
- `reset(snapshot)` replaces everything in one step. Observers are not called for it.
- `observe(observer)` calls the observer with every batch of new entries, on the event loop, once they are
  on disk and before `write` or `apply` returns. It returns a function that ends this.

A replica that follows therefore asks for `entries_after(its point)`, applies them, or resets itself to a
snapshot, and goes on with what the observer gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from metaq.journal.files import START, Entry, JournalDamaged, JournalFiles, NotWritten, Point
from metaq.journal.mark import Found, Mark
from metaq.journal.set_aside import SetAside
from metaq.metadata import MetadataDamaged
from metaq.protocol.errors import ProtocolError

_log = logging.getLogger(__name__)

__all__ = [
    "Change",
    "Entry",
    "Journal",
    "JournalDamaged",
    "NotWritten",
    "Observer",
    "Point",
    "Snapshot",
    "Unwritten",
]

ENCODED_AT_ONCE: Final = 256
"""Values that `Unwritten` encodes in one turn of the event loop."""
COMPACTION_BYTES_MIN: Final = 1024 * 1024
HISTORY_ENTRIES_MAX: Final = 10_000
HISTORY_BYTES_MAX: Final = 32 * 1024 * 1024
"""The newest entries stay in memory for replicas that lag behind, across compactions."""

Change = tuple[str, str, bytes | None]
"""Table, key and value; without a value the key is removed."""
Observer = Callable[[Sequence[Entry]], None]
T = TypeVar("T")

UNREADABLE: Final = (ValueError, TypeError, OverflowError, ProtocolError, msgspec.MsgspecError)
"""The errors of an entry that cannot be applied."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live entries, and the point of the history that they stand for."""

    point: Point
    entries: Sequence[Entry]


class Journal:
    """The journal in one directory. All methods belong to the event loop, except `open`."""

    def __init__(
        self,
        files: JournalFiles,
        epoch: int,
        *,
        history_bytes_max: int = HISTORY_BYTES_MAX,
        set_aside: SetAside | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Entries that cannot be read go to `set_aside`. Without it they are an error."""
        self._files = files
        self._mark = mark
        self.found = Found(START, None)
        """The state of the files when they were opened."""
        self.set_aside = set_aside
        self._left_out: list[Entry] = []
        # No other work may keep the state from the disk. One thread appends, one writes a snapshot.
        self._threads = ThreadPoolExecutor(2, "metaq-journal")
        self._epoch = epoch
        self._history_bytes_max = history_bytes_max
        self._tables: dict[str, dict[str, Entry]] = {}
        self._live_bytes = 0
        self._log_bytes = 0
        self._compact_at_bytes = 0
        self._recent: deque[Entry] = deque()
        self._recent_bytes = 0
        self._recent_after = START
        """The point before the first of the recent entries."""
        self._waiting: list[tuple[Sequence[Change], asyncio.Future[None]]] = []
        self._writing = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._observers: list[Observer] = []
        self.is_following = False
        """A replica's journal has the entries of its master and no others, so `write` is refused."""
        self.appended_bytes = 0
        """Written since it was opened, snapshots not counted."""

    @classmethod
    def open(
        cls,
        directory: Path,
        epoch: int = 1,
        *,
        history_bytes_max: int = HISTORY_BYTES_MAX,
        set_aside: SetAside | None = None,
        mark: Mark | None = None,
    ) -> Journal:
        """Reads the files. Raises JournalDamaged or OSError.

        If the journal already holds entries of a higher epoch, it goes on with that one. A `mark` shows in
        `found` whether entries are gone; it follows the journal from `accept_mark` on.
        """
        files = JournalFiles(directory)
        marked = mark.read() if mark is not None else None
        loaded = files.load()
        journal = cls(files, epoch, history_bytes_max=history_bytes_max, set_aside=set_aside, mark=mark)
        journal._restart_from(Snapshot(loaded.point, loaded.live))
        journal._take(loaded.entries)
        journal._log_bytes = loaded.log_bytes
        journal._epoch = max(epoch, journal.point.epoch)
        journal.found = Found(journal.point, marked)
        if mark is not None:
            files.synced, files.falls_back = mark.advance, mark.fall_back
        return journal

    async def accept_mark(self) -> None:
        """Lets the mark follow the journal as it is now, whatever is gone. Raises OSError."""
        if self._mark is not None:
            async with self._writing:
                await self._apart(self._mark.accept, self.point)

    @property
    def point(self) -> Point:
        """The newest entry."""
        return self._recent[-1].point if self._recent else self._recent_after

    @property
    def is_new(self) -> bool:
        """Nothing was ever written to it."""
        return self.point == START

    @property
    def epoch(self) -> int:
        """The epoch of the next entry."""
        return self._epoch

    @property
    def has_failed(self) -> bool:
        """A sync failed, so nothing is written any more."""
        return self._files.has_failed

    def begin_epoch(self, epoch: int) -> None:
        """Lets the next entries have this epoch. Raises ValueError for a lower one than before."""
        if epoch < max(self._epoch, self.point.epoch):
            raise ValueError(f"epoch {epoch} is lower than {max(self._epoch, self.point.epoch)}")
        self._epoch = epoch
        self.is_following = False

    def begin_following(self) -> None:
        """Refuses changes of its own from now on, until the next epoch begins here."""
        self.is_following = True

    # Reading

    def get(self, table: str, key: str) -> bytes | None:
        entry = self._tables.get(table, {}).get(key)
        return None if entry is None else entry.value

    def count(self, table: str) -> int:
        """How many entries a table has."""
        return len(self._tables.get(table, {}))

    def decoded(
        self, table: str, decode: Callable[[bytes], T], check_key: Callable[[str], object] = str
    ) -> dict[str, T]:
        """One table. Entries that cannot be read are set aside. Where there is no place for them, it raises
        MetadataDamaged, which names the key."""
        values: dict[str, T] = {}
        for key, entry in self._tables.get(table, {}).items():
            try:
                check_key(key)
                values[key] = decode(entry.value or b"")
            except UNREADABLE as error:
                if self.set_aside is None:
                    raise MetadataDamaged(
                        f"the journal {self._files.directory} holds a value of {table} {key!a} that "
                        f"cannot be read: {error}",
                        hint="it was written by another version; start that one, or restore a backup",
                    ) from error
                self.leave_out(entry, error)
        return values

    def leave_out(self, entry: Entry, error: Exception) -> None:
        """Sets an entry aside that cannot be applied."""
        if self.set_aside is not None and self.set_aside.put(entry, str(error)):
            self._left_out.append(entry)

    async def drop_left_out(self) -> None:
        """Removes the entries that were set aside, unless they have a new value. A replica keeps them: its
        journal is that of its master. Raises NotWritten."""
        left_out, self._left_out = self._left_out, []
        gone = [entry for entry in left_out if self._tables.get(entry.table, {}).get(entry.key) is entry]
        if gone and not self.is_following:
            await self.write([(entry.table, entry.key, None) for entry in gone])

    def snapshot(self) -> Snapshot:
        return Snapshot(self.point, [entry for table in self._tables.values() for entry in table.values()])

    def entries_after(self, point: Point) -> list[Entry] | None:
        """The entries that follow this point of the history; None if it is not in it or too long ago."""
        index = point.version - self._recent_after.version
        if index == 0:
            return list(self._recent) if point == self._recent_after else None
        if not 0 < index <= len(self._recent) or self._recent[index - 1].point != point:
            return None
        return list(islice(self._recent, index, None))

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls the observer with every batch of new entries; returns a function that ends this."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    # Writing

    async def write(self, changes: Sequence[Change]) -> None:
        """Returns when the changes are on disk; those that change nothing are not written. All of them are
        written in one step, or none. Raises NotWritten."""
        if self.is_following:
            raise NotWritten("this broker is a replica: only its master changes topics, groups and offsets")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A caller that was cancelled does not look at the outcome.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._waiting.append((changes, done))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(done)

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Appends the entries of a master as they are. Raises ValueError if they do not follow this journal's
        point, and NotWritten."""
        await self._to_its_end(self._apply(entries))

    async def reset(self, snapshot: Snapshot) -> None:
        """Replaces everything in one step. Raises OSError, and then nothing has changed."""
        await self._to_its_end(self._reset(snapshot))

    async def close(self) -> None:
        """Returns when everything that was given to `write` has its outcome. Safe to call twice."""
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])
        async with self._writing:
            await self._compaction_ended()
            self.abandon()

    async def _apart(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def abandon(self) -> None:
        """Closes the files of a journal that nothing is being written to, in any thread."""
        self._files.close()
        if self._mark is not None:
            self._mark.close()
        self._threads.shutdown(wait=False)

    async def _to_its_end(self, work: Coroutine[object, object, None]) -> None:
        """Runs the work even if the caller is cancelled: memory must follow the disk."""
        await asyncio.shield(asyncio.create_task(work))

    async def _apply(self, entries: Sequence[Entry]) -> None:
        async with self._writing:
            point = self.point
            for entry in entries:
                if entry.version != point.version + 1 or entry.epoch < point.epoch:
                    raise ValueError(f"{entry.point} does not follow {point}")
                point = entry.point
            await self._append(entries)
            self._epoch = max(self._epoch, self.point.epoch)

    async def _reset(self, snapshot: Snapshot) -> None:
        async with self._writing:
            await self._compaction_ended()
            await self._apart(self._files.replace, snapshot.point, snapshot.entries)
            self._restart_from(snapshot)
            self._log_bytes = 0
            self._compact_at_bytes = 0
            self._epoch = max(self._epoch, snapshot.point.epoch)

    async def _flush(self) -> None:
        while self._waiting:
            async with self._writing:
                batch, self._waiting = self._waiting, []
                try:
                    await self._append(self._entries_of(change for changes, _ in batch for change in changes))
                except Exception as error:
                    for _, done in batch:
                        done.set_exception(error)
                else:
                    for _, done in batch:
                        done.set_result(None)

    def _entries_of(self, changes: Iterable[Change]) -> list[Entry]:
        """The entries that these changes need; a change to the same value needs none."""
        entries: list[Entry] = []
        newest: dict[tuple[str, str], bytes | None] = {}
        version = self.point.version
        for table, key, value in changes:
            before = newest[table, key] if (table, key) in newest else self.get(table, key)
            if value != before:
                version += 1
                entries.append(Entry(self._epoch, version, table, key, value))
                newest[table, key] = value
        return entries

    async def _append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        size_bytes = await self._apart(self._files.append, entries)
        self._take(entries)
        self._log_bytes += size_bytes
        self.appended_bytes += size_bytes
        for observer in list(self._observers):
            try:
                observer(entries)
            except Exception:
                _log.exception("an observer of the journal failed")
        await self._compact()

    # The content in memory

    def _restart_from(self, snapshot: Snapshot) -> None:
        self._tables.clear()
        self._live_bytes = 0
        for entry in snapshot.entries:
            self._put(entry)
        self._recent.clear()
        self._recent_bytes = 0
        self._recent_after = snapshot.point

    def _take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._put(entry)
            self._recent.append(entry)
            self._recent_bytes += entry.size_bytes
        while len(self._recent) > HISTORY_ENTRIES_MAX or self._recent_bytes > self._history_bytes_max:
            oldest = self._recent.popleft()
            self._recent_bytes -= oldest.size_bytes
            self._recent_after = oldest.point

    def _put(self, entry: Entry) -> None:
        table = self._tables.setdefault(entry.table, {})
        before = table.pop(entry.key, None)
        if before is not None:
            self._live_bytes -= before.size_bytes
        if entry.value is not None:
            table[entry.key] = entry
            self._live_bytes += entry.size_bytes

    # Compaction

    async def _compact(self) -> None:
        """Begins a snapshot if the log is larger than two snapshots would be. So the snapshots cost less than
        the changes that made them necessary."""
        limit_bytes = max(2 * self._live_bytes + COMPACTION_BYTES_MIN, self._compact_at_bytes)
        if self._log_bytes <= limit_bytes or self._compacting is not None:
            return
        try:
            number = await self._apart(self._files.begin_log, self.point)
        except OSError as error:
            self._compact_later(error)
            return
        self._compacting = asyncio.create_task(self._write_snapshot(number, self.snapshot(), self._log_bytes))

    async def _write_snapshot(self, number: int, snapshot: Snapshot, replaced_bytes: int) -> None:
        try:
            await self._apart(self._files.write_snapshot, number, snapshot.point, snapshot.entries)
            self._log_bytes -= replaced_bytes
            self._compact_at_bytes = 0
            await self._apart(self._files.remove_before, number)
        except OSError as error:
            self._compact_later(error)
        finally:
            self._compacting = None

    def _compact_later(self, error: OSError) -> None:
        _log.warning("the journal was not compacted and stays as large as it is for now: %s", error)
        self._compact_at_bytes = self._log_bytes + self._live_bytes + COMPACTION_BYTES_MIN

    async def _compaction_ended(self) -> None:
        if self._compacting is not None:
            await asyncio.wait([self._compacting])


class Unwritten:
    """The keys whose values have changed in memory and are not in the journal yet.

    After a change, call `touch`, then await `keep`, which returns when the change is on disk. If that
    fails, the next `keep` tries again.
    """

    def __init__(self, journal: Journal, encode: Callable[[str, str], bytes | None]) -> None:
        """`encode` returns the current value of a key of a table, or None if it is gone."""
        self._journal = journal
        self._encode = encode
        self._keys: dict[tuple[str, str], None] = {}
        self._touched = 0
        self._kept = 0
        self._writing = asyncio.Lock()

    def touch(self, table: str, key: str) -> None:
        self._touched += 1
        self._keys[table, key] = None

    @property
    def is_behind(self) -> bool:
        """Whether a change is not in the journal yet."""
        return self._kept < self._touched

    async def keep(self) -> None:
        """Callers that come during a write share the next one. Raises NotWritten.

        On a replica this does nothing: a group that a reader made there is not the master's.
        """
        if self._journal.is_following:
            return
        mine = self._touched
        while self._kept < mine:
            async with self._writing:
                if self._kept < mine:
                    await self._write()

    async def _write(self) -> None:
        keys, self._keys = self._keys, {}
        newest = self._touched
        try:
            changes: list[Change] = []
            for table, key in keys:
                # A key that changes meanwhile is written again.
                changes.append((table, key, self._encode(table, key)))
                if len(changes) % ENCODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await self._journal.write(changes)
        except BaseException:
            self._keys = {**keys, **self._keys}
            raise
        self._kept = newest
