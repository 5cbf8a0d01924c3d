"""The files of a journal: how entries are laid out, and how the files are read, grown and replaced.

    <directory>/00000007.snapshot   every live entry at the moment when log 7 began
    <directory>/00000007.log        the entries after it, one frame for each sync
    <directory>/00000008.log        more of them, if snapshot 8 is not finished yet

A file is a row of frames. The first one holds a `Head`, every other one a list of entries as MessagePack:

    ┌───────────┬────────────┬───────────┬─────────┐
    │ magic (4) │ length (4) │ CRC32 (4) │ payload │      numbers are big-endian; the checksum covers
    └───────────┴────────────┴───────────┴─────────┘      length and payload

One frame is synced before the next one is written. So after a crash only the last frame of the last log can
be incomplete, and it was never acknowledged: it is cut off. Any other fault is damage, and the journal
refuses to open.

A log or snapshot appears under its name only when it is complete and synced. A snapshot replaces everything
with a lower number; leftovers of a crash are removed at the next start.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from metaq.durable import sync_directory
from metaq.metadata import MetadataDamaged
from metaq.private_files import create_private, make_private_directory, open_private
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

_log = logging.getLogger(__name__)

MAGIC: Final = b"\xf1MQJ"
_FRAME: Final = struct.Struct(">4sII")
_LENGTH: Final = struct.Struct(">I")
_FORMAT: Final = 1
_SNAPSHOT_FRAME_ENTRIES: Final = 1_000
_LOG, _SNAPSHOT, _TEMPORARY = ".log", ".snapshot", ".tmp"


class Point(NamedTuple):
    """A moment in the history of a journal: the epoch and the version of its newest entry."""

    epoch: int
    version: int


START: Final = Point(0, 0)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change. Without a value, the key is removed."""

    epoch: int
    version: int
    table: str
    key: str
    value: bytes | None

    @property
    def point(self) -> Point:
        return Point(self.epoch, self.version)

    @property
    def size_bytes(self) -> int:
        """About what it takes in a file."""
        return 24 + len(self.table) + len(self.key) + len(self.value or b"")


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a file: the point that its entries follow (log) or stand for (snapshot)."""

    kind: str
    format: int
    epoch: int
    version: int
    entry_count: int = 0
    """The number of entries in a snapshot."""
    is_first: bool = False
    """A snapshot that replaced everything before it. A crash can leave it without its log."""


class JournalDamaged(MetadataDamaged):
    """A file of the journal is damaged. A start without its content would forget topics or offsets."""


class NotWritten(Refused, OSError):
    """A change could not be written, and nothing has changed. If a sync failed, no other change is taken
    before the process is restarted."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def frame(payload: bytes) -> bytes:
    length = _LENGTH.pack(len(payload))
    return _FRAME.pack(MAGIC, len(payload), zlib.crc32(payload, zlib.crc32(length))) + payload


def payload_at(content: bytes, position: int) -> bytes | None:
    """The payload of a whole, undamaged frame at this position; None if there is none."""
    start = position + _FRAME.size
    if start > len(content):
        return None
    magic, length, checksum = _FRAME.unpack_from(content, position)
    payload = content[start : start + length]
    if magic != MAGIC or len(payload) != length:
        return None
    return payload if zlib.crc32(payload, zlib.crc32(_LENGTH.pack(length))) == checksum else None


def _frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames from the start on, each with the position of its end, up to the first fault."""
    position = 0
    while (payload := payload_at(content, position)) is not None:
        position += _FRAME.size + len(payload)
        yield position, payload


def _has_frame_after(content: bytes, position: int) -> bool:
    while (position := content.find(MAGIC, position + 1)) >= 0:
        if payload_at(content, position) is not None:
            return True
    return False


@dataclass(slots=True)
class Loaded:
    """The content of the files."""

    point: Point
    """The point that the snapshot stands for, or START if there is none."""
    live: list[Entry] = field(default_factory=list)
    """The entries of the snapshot."""
    entries: list[Entry] = field(default_factory=list)
    """The entries after it."""
    log_bytes: int = 0
    """The size of the logs that follow the snapshot."""


class JournalFiles:
    """The files in one directory. Only one thread at a time appends, begins logs and replaces everything;
    another one may write a snapshot meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.synced: Callable[[Point], None] = lambda _: None
        """Is called with the newest point after each sync."""
        self.falls_back: Callable[[Point], None] = lambda _: None
        """Is called before everything is replaced, with the point that the files will have."""
        self._log = -1
        """The descriptor of the newest log."""
        self._number = 0
        self._size_bytes = 0
        self._failure: str | None = None

    def load(self) -> Loaded:
        """Reads everything, cuts an incomplete frame off the end and opens the newest log for appending.

        Raises JournalDamaged or OSError.
        """
        if not self.directory.is_dir():
            make_private_directory(self.directory)
            sync_directory(self.directory.parent)
        snapshots, logs = self._numbers(_SNAPSHOT), self._numbers(_LOG)
        loaded, first, may_lack_log = Loaded(START), min(logs, default=1), not logs and not snapshots
        if snapshots:
            first = max(snapshots)
            head, loaded.live = self._read_snapshot(first)
            loaded.point = Point(head.epoch, head.version)
            may_lack_log = head.is_first
        logs = [number for number in logs if number >= first]
        if logs != list(range(first, first + len(logs))) or (not logs and not may_lack_log):
            missing = next(number for number in range(first, first + len(logs) + 1) if number not in logs)
            raise self._damaged(self._path(missing, _LOG), 0, "the file is missing")
        point = loaded.point
        for number in logs:
            entries, size_bytes = self._read_log(number, point, is_last=number == logs[-1])
            loaded.entries += entries
            loaded.log_bytes += size_bytes
            point = entries[-1].point if entries else point
        if logs:
            self._open_log(logs[-1])
        else:
            self._create_log(first, point)
        self.remove_before(first)
        return loaded

    def append(self, entries: Sequence[Entry]) -> int:
        """Writes and syncs the entries in one frame; returns its size. Raises NotWritten."""
        self._check()
        content = frame(msgspec.msgpack.encode(entries))
        try:
            _write_at(self._log, content, self._size_bytes)
        except OSError as error:
            self._cut(error)
            raise NotWritten(
                f"the journal {self.directory} cannot be written ({error.strerror}), nothing was changed: "
                "make room on the disk and try again"
            ) from error
        self._sync(self._log)
        self._size_bytes += len(content)
        self.synced(entries[-1].point)
        return len(content)

    def begin_log(self, point: Point) -> int:
        """Lets the entries after `point` go to a new log; returns its number. Raises OSError, and then
        nothing has changed."""
        self._check()
        self._create_log(self._number + 1, point)
        return self._number

    def write_snapshot(
        self, number: int, point: Point, live: Sequence[Entry], *, is_first: bool = False
    ) -> None:
        """Writes the entries that were live when this log began. Raises OSError, and then nothing has
        changed."""
        head = Head("snapshot", _FORMAT, point.epoch, point.version, len(live), is_first)
        parts = (
            msgspec.msgpack.encode(live[start : start + _SNAPSHOT_FRAME_ENTRIES])
            for start in range(0, len(live), _SNAPSHOT_FRAME_ENTRIES)
        )
        self._create(self._path(number, _SNAPSHOT), head, parts)

    def remove_before(self, number: int) -> None:
        """Removes the files that a snapshot has replaced, and unfinished ones."""
        for path in self.directory.iterdir():
            text = path.name.partition(".")[0]
            if path.suffix == _TEMPORARY or (
                path.suffix in (_LOG, _SNAPSHOT) and text.isdecimal() and int(text) < number
            ):
                path.unlink(missing_ok=True)

    def replace(self, point: Point, live: Sequence[Entry]) -> None:
        """Replaces everything in one step. Raises OSError, and then nothing has changed, or NotWritten."""
        self._check()
        number = self._number + 1
        self.falls_back(point)
        self.write_snapshot(number, point, live, is_first=True)
        # The snapshot counts from here on, so what fails now leaves memory and disk apart.
        try:
            self._create_log(number, point)
        except OSError as error:
            raise self._fail(f"its new log could not be created: {error}") from error
        self.synced(point)
        self.remove_before(number)

    @property
    def has_failed(self) -> bool:
        """A sync failed, so nothing is written any more."""
        return self._failure is not None

    def close(self) -> None:
        """Safe to call twice."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    # Reading

    def _numbers(self, suffix: str) -> list[int]:
        if not self.directory.is_dir():
            return []
        paths = self.directory.glob(f"*{suffix}")
        return sorted(int(path.stem) for path in paths if path.stem.isdecimal() and int(path.stem) > 0)

    def _path(self, number: int, suffix: str) -> Path:
        return self.directory / f"{number:08}{suffix}"

    def _read_snapshot(self, number: int) -> tuple[Head, list[Entry]]:
        path = self._path(number, _SNAPSHOT)
        content = _content(path)
        head, payloads, end = self._read(path, content, "snapshot")
        live = [entry for position, payload in payloads for entry in self._decoded(path, position, payload)]
        if end != len(content) or len(live) != head.entry_count:
            raise self._damaged(
                path, end, f"{head.entry_count} entries are expected, {len(live)} can be read"
            )
        return head, live

    def _read_log(self, number: int, point: Point, *, is_last: bool) -> tuple[list[Entry], int]:
        path = self._path(number, _LOG)
        content = _content(path)
        head, payloads, end = self._read(path, content, "log")
        if Point(head.epoch, head.version) != point:
            raise self._damaged(
                path, 0, f"it follows version {head.version} of epoch {head.epoch}, not {point.version} of "
                f"{point.epoch}: a file before it is too old"
            )  # fmt: skip
        entries: list[Entry] = []
        for position, payload in payloads:
            for entry in self._decoded(path, position, payload):
                if entry.version != point.version + 1 or entry.epoch < point.epoch:
                    raise self._damaged(path, position, f"{entry.point} cannot follow {point}")
                entries.append(entry)
                point = entry.point
        if end != len(content):
            if not is_last or _has_frame_after(content, end):
                raise self._damaged(path, end, "whole entries follow a damaged one")
            _log.warning("%s: %d bytes of an incomplete entry were cut off", path, len(content) - end)
            self._cut_file(path, end)
        return entries, end

    def _read(self, path: Path, content: bytes, kind: str) -> tuple[Head, list[tuple[int, bytes]], int]:
        """The head, the other frames with their positions, and the end of the last whole frame."""
        payloads: list[tuple[int, bytes]] = []
        end = 0
        for frame_end, payload in _frames(content):
            payloads.append((end, payload))
            end = frame_end
        try:
            head = msgspec.msgpack.decode(payloads[0][1], type=Head)
        except (IndexError, msgspec.DecodeError) as error:
            raise self._damaged(path, 0, f"it does not begin as a {kind} of a journal") from error
        if head.kind != kind or head.format != _FORMAT:
            raise self._damaged(path, 0, f"{head.kind} of format {head.format}, not {kind} of {_FORMAT}")
        return head, payloads[1:], end

    def _decoded(self, path: Path, position: int, payload: bytes) -> list[Entry]:
        try:
            return msgspec.msgpack.decode(payload, type=list[Entry])
        except msgspec.DecodeError as error:
            raise self._damaged(path, position, str(error)) from error

    def _damaged(self, path: Path, position: int, fault: str) -> JournalDamaged:
        return JournalDamaged(
            f"the journal cannot be read: {path} is damaged at byte {position}: {fault}",
            hint=f"restore {self.directory} from a backup; to go on without its content, move it away",
        )

    # Writing

    def _open_log(self, number: int) -> None:
        path = self._path(number, _LOG)
        descriptor = open_private(path, os.O_WRONLY)
        self.close()
        self._log = descriptor
        self._number = number
        self._size_bytes = os.fstat(descriptor).st_size

    def _create_log(self, number: int, point: Point) -> None:
        self._create(self._path(number, _LOG), Head("log", _FORMAT, point.epoch, point.version), ())
        try:
            self._open_log(number)
        except OSError as error:
            # It is on disk already, so no entry may go to the log before it.
            raise self._fail(f"its new log cannot be opened: {error.strerror}") from error

    def _create(self, path: Path, head: Head, payloads: Iterable[bytes]) -> None:
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            with create_private(temporary) as file:
                file.write(frame(msgspec.msgpack.encode(head)))
                for payload in payloads:
                    file.write(frame(payload))
                file.flush()
                self._sync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        try:
            sync_directory(self.directory)
        except OSError as error:
            raise self._fail(f"its directory could not be synced: {error.strerror}") from error

    def _cut_file(self, path: Path, size_bytes: int) -> None:
        with os.fdopen(open_private(path, os.O_RDWR), "r+b") as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())

    def _cut(self, cause: OSError) -> None:
        """Removes the part of a frame that was written before `cause`."""
        try:
            os.ftruncate(self._log, self._size_bytes)
        except OSError as error:
            raise self._fail(f"{cause.strerror}, and then {error.strerror}") from error

    def _sync(self, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise self._fail(f"a sync failed: {error.strerror}") from error

    def _check(self) -> None:
        if self._failure is not None:
            raise NotWritten(self._failure)

    def _fail(self, why: str) -> NotWritten:
        """From now on nothing is written: the kernel may have dropped what a failed sync should have kept."""
        self._failure = (
            f"the journal {self.directory} takes no changes because {why}; "
            "check the disk and restart this process"
        )
        _log.error(self._failure)
        return NotWritten(self._failure)


def _content(path: Path) -> bytes:
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _write_at(descriptor: int, content: bytes, position: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written
