"""The audit log of the console: one line of JSON for each change, in two files of bounded size.

    audit.jsonl    the newest entries
    audit.1.jsonl  the entries before them

An entry is on disk before the answer to its action goes out.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from metaq.console.access.roles import Identity
from metaq.durable import sync_directory
from metaq.private_files import make_private_directory, open_private

FILE_BYTES_MAX: Final = 10 * 1024 * 1024
BLOCK_BYTES: Final = 64 * 1024
BATCH: Final = 2_000
"""Entries of an export that are read at once."""
ENDS: Final = frozenset({"done", "failed", "failed in part", "unknown"})
"""The results of an action that has begun."""
TEXT_LENGTH_MAX: Final = 4096
"""A longer text of an entry is cut, and ends in an ellipsis."""


class AuditEntry(msgspec.Struct, frozen=True):
    """One change, or a sign-in."""

    number: int
    """Rises by one with each entry."""
    time_ms: int
    name: str
    role: str
    session: str
    address: str
    """From where the person asked for it."""
    command: str
    target: str
    result: str
    detail: str = ""


class AuditLog:
    """The entries of one console. A restart continues them."""

    def __init__(self, state_folder: Path, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        """Reads the number of the last entry. Raises OSError."""
        make_private_directory(state_folder)
        self._path = state_folder / "audit.jsonl"
        self._older = state_folder / "audit.1.jsonl"
        self._file_bytes_max = file_bytes_max
        # A lock for threads: a request that is cancelled leaves its thread at work.
        self._writing = threading.Lock()
        self._next_number = next((entry.number + 1 for entry in self._newest_first()), 1)

    async def record(
        self, identity: Identity, address: str, command: str, target: str, result: str, detail: str = ""
    ) -> None:
        """Returns when the entry is on disk. Raises OSError."""
        texts = [_cut(text) for text in (command, target, result, detail)]
        who = (_cut(identity.name), identity.role.value, identity.session, address)

        def write() -> None:
            with self._writing:
                entry = AuditEntry(self._next_number, time.time_ns() // 1_000_000, *who, *texts)
                self._append(msgspec.json.encode(entry) + b"\n")
                self._next_number += 1

        await asyncio.to_thread(write)

    @property
    def newest_number(self) -> int:
        """The number of the last entry; 0 if there is none."""
        return self._next_number - 1

    async def entries(
        self, *, before: int | None = None, limit: int = 100, search: str = "", folds: bool = False
    ) -> list[AuditEntry]:
        """Returns the newest entries first: those before a number that contain a text in any of their
        fields. Case does not count. With `folds`, the beginning of an action that has ended is left out. It
        reads no more of the files than it needs. Raises OSError."""

        def find() -> list[AuditEntry]:
            found = self._folded() if folds else self._newest_first()
            wanted = _matching(found, before, search.casefold())
            return list(islice(wanted, limit))

        return await asyncio.to_thread(find)

    async def batches(self, search: str = "") -> AsyncIterator[list[AuditEntry]]:
        """Yields all entries that contain a text, the newest first, in one pass over the files. Raises
        OSError."""
        found = _matching(self._newest_first(), None, search.casefold())
        while batch := await asyncio.to_thread(lambda: list(islice(found, BATCH))):
            yield batch

    def _append(self, line: bytes) -> None:
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(line) > self._file_bytes_max:
                os.close(descriptor)
                descriptor = -1
                self._path.replace(self._older)
                sync_directory(self._path.parent)
                descriptor = self._open()
                size = 0
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A crash has cut the last line; the next one must not continue it.
                line = b"\n" + line
            with os.fdopen(os.dup(descriptor), "ab", buffering=0) as file:
                file.write(line)
            os.fsync(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        return open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def _folded(self) -> Iterator[AuditEntry]:
        """Leaves out each beginning whose end has passed before, since the newest come first."""
        ended: Counter[tuple[str, ...]] = Counter()
        for entry in self._newest_first():
            action = (entry.name, entry.session, entry.address, entry.command, entry.target)
            if entry.result in ENDS:
                ended[action] += 1
            elif entry.result == "begun" and ended[action]:
                ended[action] -= 1
                continue
            yield entry

    def _newest_first(self) -> Iterator[AuditEntry]:
        decoder = msgspec.json.Decoder(AuditEntry)
        last: int | None = None
        for path in (self._path, self._older):
            for line in _lines_from_end(path):
                try:
                    entry = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                # A file that becomes the older one meanwhile is read twice.
                if last is None or entry.number < last:
                    last = entry.number
                    yield entry


def _lines_from_end(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, the last first, block by block."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        begin = file.seek(0, os.SEEK_END)
        rest: list[bytes] = []  # The parts of a line whose beginning was not read yet, the last part first.
        while begin > 0:
            size = min(BLOCK_BYTES, begin)
            begin -= size
            file.seek(begin)
            first, *others = file.read(size).split(b"\n")
            if others:
                yield others.pop() + b"".join(reversed(rest))
                yield from reversed(others)
                rest = []
            rest.append(first)
        yield b"".join(reversed(rest))


def _matching(entries: Iterator[AuditEntry], before: int | None, search: str) -> Iterator[AuditEntry]:
    for entry in entries:
        if (before is None or entry.number < before) and (not search or _contains(entry, search)):
            yield entry


def _contains(entry: AuditEntry, search: str) -> bool:
    fields = (entry.name, entry.address, entry.command, entry.target, entry.result, entry.detail)
    return any(search in field.casefold() for field in fields)


def _cut(text: str) -> str:
    """Returns a text that is not too long, and that UTF-8 can hold."""
    if len(text) > TEXT_LENGTH_MAX:
        text = text[: TEXT_LENGTH_MAX - 1] + "…"
    return text.encode("utf-8", "replace").decode()
