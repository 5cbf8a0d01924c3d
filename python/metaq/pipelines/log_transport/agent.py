"""Follows log files and sends their lines.

```text
patterns ─ find ─▶ followed files ─ lines ─▶ send buffer ─▶ brokers
                         ▲                        │ acknowledged
                         └── again from there ◀─ positions ─▶ disk
```

Lines of one file stay in their order, in one queue. Each is sent at least once: what a failure leaves open is
sent again from the last line that was acknowledged, and so are, after a kill, the lines since positions were
kept. A line's file and place in it (`log.id`, `log.at`) tell whoever reads that it came before.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import socket
import stat
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from metaq._core import SendFuture
from metaq.client.producer.sync_producer import Producer
from metaq.client.sync import Client
from metaq.errors import MetaqError, NotDelivered, NotDurable
from metaq.pipelines import Progress, Report
from metaq.pipelines.log_transport.followed import FollowedFile, Head, Line, Stamp
from metaq.pipelines.log_transport.positions import Position, Positions

_log = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "metaq-log-transport"
READ_BYTES_MAX: Final = 1024 * 1024
"""Of one file before the others have their turn."""
FAILURE_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What a log transport is told about its files."""

    nameserver: str
    topic: str
    paths: tuple[str, ...]
    """Patterns as a shell has them, `**` for any depth."""
    state: Path
    tag: str | None = None
    start: Literal["first", "last"] = "first"
    """Where files begin that are there when positions are kept for the first time."""
    line_bytes_max: int = 1024 * 1024
    send_timeout_s: float = 15.0
    """For one line with all its tries; after that it is read and sent again."""
    look_interval_s: float = 1.0
    """How often new files are looked for."""
    idle_pause_s: float = 0.2
    keep_interval_s: float = 1.0
    """At least so often positions are kept."""
    rotated_after_s: float = 5.0
    """A file without its name is given up when nobody has written to it for so long."""
    rest_after_s: float = 60.0
    """A file that nobody has written to for so long is closed, until it grows."""


class Pace:
    """Tells once a second, and how fast it went since."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()
        self._rows = 0

    def is_due(self) -> bool:
        return time.monotonic() - self._told_at >= 1.0

    def per_second(self, rows: int) -> float:
        now = time.monotonic()
        rate = (rows - self._rows) / max(now - self._told_at, 0.001)
        self._told_at, self._rows = now, rows
        return rate


@dataclass(slots=True)
class _Source:
    """A file and what of it is under way."""

    file: FollowedFile
    id: str
    sent_bytes: int = 0
    under_way: deque[tuple[int, SendFuture]] = field(default_factory=deque)
    """The place after each line that was given to the buffer."""
    quiet_since: float = 0.0
    has_name: bool = True
    pause_until: float = 0.0
    has_failed: bool = False
    """A line was not sent; nothing more is read before all under way are known."""

    def position(self) -> Position:
        device, inode = self.file.key
        return Position(self.id, str(self.file.path), device, inode, self.file.head, self.sent_bytes)


class LogAgent:
    """Sends lines until it is told to stop. Not for several threads, but for `stop`."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises CommandError where another agent has the same positions."""
        self._settings = settings
        self._positions = Positions(settings.state)
        self._is_first_run = not settings.state.exists()
        self._known = {(kept.device, kept.inode): kept for kept in self._positions.kept}
        """Files that are not open."""
        self._resting: dict[tuple[int, int], Stamp] = {}
        """How those of them were that had been read to their end."""
        self._missed: dict[tuple[int, int], float] = {}
        """Since when those of them have no name that we look for."""
        self._sources: dict[tuple[int, int], _Source] = {}
        self._host = socket.gethostname()
        self._keep_due = 0.0
        self._pace = Pace()
        self.progress = Progress("following", details={"files": 0, "bytes behind": 0})

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Until `stop` is set; what was read is then still sent and kept.

        Raises what trying again cannot repair.
        """
        try:
            with Client(self._settings.nameserver) as client:
                producer = client.producer(PRODUCER_GROUP, timeout=self._settings.send_timeout_s)
                producer.start()
                try:
                    self._follow(producer, report, stop)
                finally:
                    # What was not sent is known here, and sent at the next start.
                    with contextlib.suppress(NotDelivered):
                        producer.close()
        finally:
            for source in self._sources.values():
                source.file.close()
            self._positions.close()
        return self.progress

    def _follow(self, producer: Producer, report: Report, stop: threading.Event) -> None:
        look_due = 0.0
        while not stop.is_set():
            now = time.monotonic()
            if now >= look_due:
                self._look()
                look_due = now + self._settings.look_interval_s
            count = sum([self._advance(source, producer) for source in list(self._sources.values())])
            self._settle()
            if time.monotonic() >= self._keep_due:
                self._keep()
            if self._pace.is_due():
                self._tell(report)
            if count == 0:
                stop.wait(self._settings.idle_pause_s)
        self._finish()

    def _tell(self, report: Report) -> None:
        behind = sum(source.file.size_bytes - source.file.position for source in self._sources.values())
        self.progress.details = {"files": len(self._sources), "bytes behind": max(0, behind)}
        self.progress.rows_per_second = self._pace.per_second(self.progress.rows)
        report(self.progress)

    # Files

    def _look(self) -> None:
        """Opens what is new or has grown, and forgets what is gone for good."""
        found = find_files(self._settings.paths)
        now = time.monotonic()
        for source in self._sources.values():
            has_name = found.pop(source.file.key, None) is not None
            if source.has_name and not has_name:
                # Whoever writes to it goes on until told of the rotation, however quiet it was before.
                source.quiet_since = now
            source.has_name = has_name
        wanted = [(place, True) for place in found.values()]
        # One that was renamed beyond our patterns is still in its folder, perhaps with lines that we lack.
        for key in self._known.keys() - found.keys():
            moved = _same_inode(Path(self._known[key].path).parent, key)
            if moved is None:
                self._forget(key)
            elif self._differs(moved):
                wanted.append((moved, False))
            elif now - self._missed.setdefault(key, now) > self._settings.rotated_after_s:
                self._forget(key)
        for key in found:
            self._missed.pop(key, None)
        opened = [
            self._open(place.path, has_name=has_name) for place, has_name in wanted if self._differs(place)
        ]
        self._is_first_run = False
        if any(opened):
            # Before the first line leaves: what it is called must be known when it is sent again.
            self._keep()

    def _differs(self, place: Place) -> bool:
        return self._resting.get(place.key) != place.stamp

    def _forget(self, key: tuple[int, int]) -> None:
        kept = self._known.pop(key)
        self._resting.pop(key, None)
        self._missed.pop(key, None)
        _log.info("%s is gone; it was sent up to byte %d", kept.path, kept.sent_bytes)

    def _rest(self, source: _Source, stamp: Stamp) -> None:
        """Closes a file that nobody writes to; it is opened again when it differs from `stamp`, which was
        taken before it was read to its end."""
        self._known[source.file.key] = source.position()
        self._resting[source.file.key] = stamp
        source.file.close()
        del self._sources[source.file.key]

    def _open(self, path: Path, *, has_name: bool = True) -> _Source | None:
        settings = self._settings
        try:
            file = FollowedFile(path, read_bytes_max=READ_BYTES_MAX, line_bytes_max=settings.line_bytes_max)
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error)
            return None
        kept = self._known.pop(file.key, None)
        self._resting.pop(file.key, None)
        self._missed.pop(file.key, None)
        if kept is not None and not _is_same(file, kept):
            _log.info("%s is another file than the one that was sent up to byte %d", path, kept.sent_bytes)
            kept = None
        source = _Source(file, kept.id if kept else uuid.uuid4().hex, has_name=has_name)
        if kept is not None:
            file.position = source.sent_bytes = kept.sent_bytes
        elif self._is_first_run and settings.start == "last":
            file.position = source.sent_bytes = file.size_bytes
        source.quiet_since = time.monotonic()
        self._sources[file.key] = source
        return source

    def _advance(self, source: _Source, producer: Producer) -> int:
        """Gives what was written since to the buffer; how many lines that were."""
        now = time.monotonic()
        if source.has_failed or now < source.pause_until:
            return 0
        change = source.file.change()
        if change is not None:
            if source.under_way:
                return 0  # Its lines have the old name until the last is settled.
            _log.warning("%s was %s: it is sent from its beginning", source.file.path, change)
            source.file.begin_again()
            source.id, source.sent_bytes = uuid.uuid4().hex, 0
            self._keep()
        stamp = source.file.stamp
        lines = source.file.lines()
        if not lines and not source.has_name and now - source.quiet_since > self._settings.rotated_after_s:
            lines = source.file.rest()
            if not lines and not source.under_way:
                source.file.close()
                del self._sources[source.file.key]
                return 0
        if lines:
            source.quiet_since = now
            self._send(source, producer, lines)
        elif not source.under_way and now - source.quiet_since > self._settings.rest_after_s:
            self._rest(source, stamp)
        return len(lines)

    # Lines

    def _send(self, source: _Source, producer: Producer, lines: list[Line]) -> None:
        settings = self._settings
        path = str(source.file.path)
        for line in lines:
            properties = {
                "log.id": source.id,
                "log.at": str(line.at),
                "log.file": path,
                "log.host": self._host,
            }
            if line.is_cut:
                properties["log.cut"] = "true"
            try:
                future = producer.send_soon(
                    settings.topic, line.body, tag=settings.tag, key=source.id, properties=properties
                )
            except MetaqError as error:
                if is_final(error):
                    raise
                _log.warning("%s waits at byte %d: %s", path, line.at, error)
                source.file.position = line.at
                source.pause_until = time.monotonic() + FAILURE_PAUSE_S
                return
            source.under_way.append((line.end, future))
            self.progress.rows += 1
            self.progress.bytes += len(line.body)

    def _settle(self) -> None:
        for source in self._sources.values():
            while source.under_way and source.under_way[0][1].done():
                end, future = source.under_way[0]
                error = future.exception()
                if error is not None:
                    self._repeat(source, error)
                    break
                source.under_way.popleft()
                source.sent_bytes = end

    def _repeat(self, source: _Source, error: BaseException) -> None:
        """Goes back to the last line that was acknowledged, once nothing after it is under way."""
        if is_final(error):
            raise error
        source.has_failed = True
        if not all(future.done() for _, future in source.under_way):
            return
        _log.warning("%s is sent again from byte %d: %s", source.file.path, source.sent_bytes, error)
        source.under_way.clear()
        source.has_failed = False
        source.file.position = source.sent_bytes
        source.pause_until = time.monotonic() + FAILURE_PAUSE_S

    def _finish(self) -> None:
        """Waits for what is under way, as long as sends take at most, and keeps how far that brought it."""
        for source in self._sources.values():
            for _, future in source.under_way:
                future.exception()
        self._settle()
        self._keep()

    def _keep(self) -> None:
        self._positions.keep(
            (*(source.position() for source in self._sources.values()), *self._known.values())
        )
        self._keep_due = time.monotonic() + self._settings.keep_interval_s


def is_final(error: BaseException) -> bool:
    """Whether trying again is of no use. What may not be durable is sent again: rather twice than not."""
    return not isinstance(error, MetaqError) or not (error.retriable or isinstance(error, NotDurable))


@dataclass(frozen=True, slots=True)
class Place:
    """A file as its folder shows it."""

    key: tuple[int, int]
    path: Path
    stamp: Stamp

    @property
    def size_bytes(self) -> int:
        return self.stamp[0]


def find_files(patterns: Iterable[str]) -> dict[tuple[int, int], Place]:
    """Plain files by what they are; one with two names is one file."""
    found: dict[tuple[int, int], Place] = {}
    for pattern in patterns:
        # A pattern may be absolute, which Path.glob does not take.
        for name in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
            place = _place(Path(name))
            if place is not None:
                found.setdefault(place.key, place)
    return found


def _same_inode(directory: Path, key: tuple[int, int]) -> Place | None:
    try:
        entries = [entry.name for entry in os.scandir(directory) if entry.inode() == key[1]]
    except OSError:
        return None
    places = (_place(directory / name) for name in entries)
    return next((place for place in places if place is not None and place.key == key), None)


def _place(path: Path) -> Place | None:
    try:
        status = path.stat()
    except OSError:
        return None  # Renamed this moment; the next look finds it.
    if not stat.S_ISREG(status.st_mode):
        return None
    return Place((status.st_dev, status.st_ino), path, (status.st_size, status.st_mtime_ns))


def _is_same(file: FollowedFile, kept: Position) -> bool:
    if kept.head == Head():
        return True  # Nothing was in it then.
    file.head, fresh = kept.head, file.head
    file.position = kept.sent_bytes
    if file.change() is None:
        return True
    file.head, file.position = fresh, 0
    return False
