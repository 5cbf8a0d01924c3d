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
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from metaq.console.access.roles import Identity
from metaq.durable import sync_directory
from metaq.private_files import make_private_directory, open_private

FILE_BYTES_MAX: Final = 10 * 1024 * 1024
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

    async def entries(
        self, *, before: int | None = None, limit: int = 100, search: str = ""
    ) -> list[AuditEntry]:
        """Returns the newest entries first: those before a number that contain a text in any of their
        fields. Case does not count. Raises OSError."""
        return await asyncio.to_thread(self._find, before, limit, search.casefold())

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

    def _find(self, before: int | None, limit: int, search: str) -> list[AuditEntry]:
        found: list[AuditEntry] = []
        for entry in self._newest_first():
            if len(found) >= limit:
                break
            if (before is None or entry.number < before) and (not search or _contains(entry, search)):
                found.append(entry)
        return found

    def _newest_first(self) -> Iterator[AuditEntry]:
        decoder = msgspec.json.Decoder(AuditEntry)
        for path in (self._path, self._older):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue


def _contains(entry: AuditEntry, search: str) -> bool:
    fields = (entry.name, entry.address, entry.command, entry.target, entry.result, entry.detail)
    return any(search in field.casefold() for field in fields)


def _cut(text: str) -> str:
    """Returns a text that is not too long, and that UTF-8 can hold."""
    if len(text) > TEXT_LENGTH_MAX:
        text = text[: TEXT_LENGTH_MAX - 1] + "…"
    return text.encode("utf-8", "replace").decode()
