"""A journal in the place of a small file that was replaced as a whole at every change.

    values.json             the former file: read at the first start, and written when the process stops
    values.json.journal/    the journal, which counts

The journal holds the checksum of the file as it was last read or written. If the file has another one at a
start, somebody else has changed it since, such as another program or an older version, and it replaces the
content of the journal. A process that was killed leaves the file behind as it was, and then the journal is
newer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from metaq.journal.files import Entry
from metaq.journal.journal import Change, Journal

_log = logging.getLogger(__name__)

TABLE: Final = "values"
_FILE: Final = "file"
_CHECKSUM: Final = "checksum"


class FileJournal:
    """Values by key. `values` follows the disk; only the event loop may use it, except to open it."""

    def __init__(
        self,
        path: Path,
        read: Callable[[], Mapping[str, bytes]],
        on_change: Callable[[str, bytes | None], None],
    ) -> None:
        """`read` returns the content of the file, and raises what it likes if that cannot be read. It is
        called only if the file counts. `on_change` is called with every key and value that has changed, once
        that is on disk. Raises JournalDamaged or OSError."""
        self.path = path
        self._on_change = on_change
        # Nobody follows this journal, so it needs no history.
        self.journal = Journal.open(directory_beside(path), history_bytes_max=0)
        try:
            self._unread: dict[str, bytes] | None = None
            """The content of the file, until it is in the journal."""
            checksum = _checksum(path)
            if checksum is not None and checksum != self.journal.get(_FILE, _CHECKSUM):
                self._unread = dict(read())
        except BaseException:
            self.journal.abandon()
            raise
        self._checksum = checksum
        self._importing = asyncio.Lock()
        self.journal.observe(self._observe)

    @property
    def values(self) -> dict[str, bytes]:
        """A copy of everything."""
        if self._unread is not None:
            return dict(self._unread)
        return self.journal.decoded(TABLE, bytes)

    async def write(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        """Returns when the changes are on disk: all of them, or none. Raises NotWritten."""
        async with self._importing:
            if self._unread is not None:
                await self._import(self._unread)
                self._unread = None
        await self.journal.write([(TABLE, key, value) for key, value in changes])

    async def _import(self, content: Mapping[str, bytes]) -> None:
        gone = self.journal.decoded(TABLE, bytes).keys() - content.keys()
        changes: list[Change] = [(TABLE, key, None) for key in gone]
        changes += [(TABLE, key, value) for key, value in content.items()]
        await self.journal.write([*changes, (_FILE, _CHECKSUM, self._checksum)])

    async def close(self, content: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        """Closes the journal. If anything was ever written to it, `write` first replaces the file with the
        `content`, for programs that know only the file."""
        try:
            if not self.journal.is_new and self._unread is None:
                await self._export(content(), write)
        except OSError as error:
            _log.warning("%s was not brought up to date, but its journal is: %s", self.path, error)
        finally:
            await self.journal.close()

    async def _export(self, content: bytes, write: Callable[[bytes], None]) -> None:
        checksum = hashlib.sha256(content).digest()
        if checksum != self.journal.get(_FILE, _CHECKSUM):
            await asyncio.to_thread(write, content)
            await self.journal.write([(_FILE, _CHECKSUM, checksum)])

    def abandon(self) -> None:
        """Closes a journal that nothing is being written to, in any thread."""
        self.journal.abandon()

    def _observe(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.table == TABLE:
                self._on_change(entry.key, entry.value)


def directory_beside(path: Path) -> Path:
    """The folder of the journal that stands for a file."""
    return path.with_name(path.name + ".journal")


def _checksum(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except FileNotFoundError:
        return None
