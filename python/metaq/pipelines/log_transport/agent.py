"""Follows log files and sends their lines.

```text
patterns ─ find ─▶ followed files ─ lines ─▶ send buffer ─▶ brokers
                         ▲                        │ acknowledged
                         └── read again from ◀── positions ─▶ disk
```

Lines of one file stay in order, in one queue. Each is sent at least once. After a failure, lines are sent
again from the last acknowledged one; after a kill, from the last saved position. A line's file and position
in it (`log.id`, `log.at`) reveal a duplicate.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from metaq._core import SendFuture
from metaq.client.producer.sync_producer import Producer
from metaq.client.sync import Client
from metaq.errors import MetaqError, NotDelivered
from metaq.pipelines import Progress, Report
from metaq.pipelines.log_transport.delay_warnings import DelayWarnings
from metaq.pipelines.log_transport.followed import FollowedFile, Head, Line, Stamp
from metaq.pipelines.log_transport.found_files import FoundFile, find_files, find_inode
from metaq.pipelines.log_transport.gaps import find_gaps
from metaq.pipelines.log_transport.line_properties import line_properties
from metaq.pipelines.log_transport.positions import FilePosition, Positions
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.report_timer import ReportTimer
from metaq.pipelines.send_errors import is_final

_log = logging.getLogger(__name__)

PRODUCER_GROUP: Final = "metaq-log-transport"
READ_BYTES_MAX: Final = 1024 * 1024
"""The bytes that are read of one file before the next file has its turn."""
FAILURE_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of a log transport."""

    nameserver: str
    topic: str
    paths: tuple[str, ...]
    """Glob patterns; `**` matches any depth."""
    state: Path
    tag: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    """The first run begins at the beginning (`earliest`) or at the end (`latest`) of files that exist."""
    line_bytes_max: int = 1024 * 1024
    send_timeout_s: float = 15.0
    """The time for one line including retries; after that it is read and sent again."""
    scan_interval_s: float = 1.0
    """How often to look for new files."""
    idle_pause_s: float = 0.2
    save_interval_s: float = 1.0
    """How often to save positions."""
    rotated_after_s: float = 5.0
    """A file that has lost its name is given up when nobody has written to it for this long."""
    close_after_s: float = 60.0
    """A file that nobody has written to for this long is closed until it grows."""


@dataclass(slots=True)
class _OpenFile:
    """A file that is followed, and its lines in flight."""

    file: FollowedFile
    id: str
    sent_bytes: int = 0
    in_flight: deque[tuple[int, SendFuture]] = field(default_factory=deque)
    """The position after each line in the send buffer."""
    quiet_since: float = 0.0
    has_name: bool = True
    pause_until: float = 0.0
    has_failed: bool = False
    """A line failed. Nothing more is read until the results of all lines in flight are known."""
    delay_warnings: DelayWarnings = field(default_factory=DelayWarnings)

    def position(self) -> FilePosition:
        device, inode = self.file.key
        return FilePosition(
            self.id,
            str(self.file.path),
            device,
            inode,
            self.file.head,
            self.sent_bytes,
            self.file.stamp[1],
        )


class LogAgent:
    """Sends lines until it is stopped. Only the stop event may be used from another thread."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises CommandError if another agent uses the same file of positions."""
        self._settings = settings
        self._positions = Positions(settings.state)
        self._saved_ns = self._positions.saved_ns
        self._is_first_run = not settings.state.exists()
        self._known = {(kept.device, kept.inode): kept for kept in self._positions.kept}
        """Known files that are not open."""
        self._quiet: dict[tuple[int, int], Stamp] = {}
        """The stamps of closed files that had been read to their end."""
        self._missed: dict[tuple[int, int], float] = {}
        """The time since which no pattern matches a closed file."""
        self._sources: dict[tuple[int, int], _OpenFile] = {}
        self._host = socket.gethostname()
        self._save_due = 0.0
        self._timer = ReportTimer()
        self.progress = Progress("following", details={"files": 0, "bytes behind": 0})

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set, then sends what was read and saves positions.

        Raises errors that a retry cannot repair.
        """
        try:
            with Client(self._settings.nameserver) as client:
                producer = client.producer(PRODUCER_GROUP, timeout=self._settings.send_timeout_s)
                producer.start()
                try:
                    self._follow(producer, report, stop)
                finally:
                    # Positions do not include unsent lines, so the next start sends them.
                    with contextlib.suppress(NotDelivered):
                        producer.close()
        finally:
            for source in self._sources.values():
                source.file.close()
            self._positions.close()
        return self.progress

    def _follow(self, producer: Producer, report: Report, stop: threading.Event) -> None:
        scan_due = 0.0
        while not stop.is_set():
            now = time.monotonic()
            if now >= scan_due:
                self._scan()
                scan_due = now + self._settings.scan_interval_s
            count = sum([self._advance(source, producer) for source in list(self._sources.values())])
            self._take_acknowledgements()
            if time.monotonic() >= self._save_due:
                self._save_positions()
            if self._timer.is_due():
                self._report(report)
            if count == 0:
                stop.wait(self._settings.idle_pause_s)
        self._finish()

    def _report(self, report: Report) -> None:
        behind = sum(source.file.size_bytes - source.file.position for source in self._sources.values())
        self.progress.details = {"files": len(self._sources), "bytes behind": max(0, behind)}
        self.progress.rows_per_second = self._timer.rows_per_second(self.progress.rows)
        report(self.progress)

    # Files

    def _scan(self) -> None:
        """Opens files that are new or have grown, and forgets files that are gone."""
        found = find_files(self._settings.paths)
        if self._saved_ns is not None:
            for gap in find_gaps(self._positions.kept, found, self._saved_ns):
                _log.warning("%s", gap)
            self._saved_ns = None
        now = time.monotonic()
        for source in self._sources.values():
            has_name = found.pop(source.file.key, None) is not None
            if source.has_name and not has_name:
                # Its writer continues until it notices the rotation, however quiet it was before.
                source.quiet_since = now
            source.has_name = has_name
        wanted = [(file, True) for file in found.values()]
        # A file that was renamed beyond the patterns is still in its folder, perhaps with unsent lines.
        for key in self._known.keys() - found.keys():
            moved = find_inode(Path(self._known[key].path).parent, key)
            if moved is None:
                self._forget(key)
            elif self._differs(moved):
                wanted.append((moved, False))
            elif now - self._missed.setdefault(key, now) > self._settings.rotated_after_s:
                self._forget(key)
        for key in found:
            self._missed.pop(key, None)
        opened = [
            self._open(file.path, has_name=has_name) for file, has_name in wanted if self._differs(file)
        ]
        self._is_first_run = False
        if any(opened):
            # Save the id before the first line is sent: a resent line must have the same id.
            self._save_positions()

    def _differs(self, file: FoundFile) -> bool:
        return self._quiet.get(file.key) != file.stamp

    def _forget(self, key: tuple[int, int]) -> None:
        kept = self._known.pop(key)
        self._quiet.pop(key, None)
        self._missed.pop(key, None)
        _log.info("%s is gone; it was sent up to byte %d", kept.path, kept.sent_bytes)

    def _close_quiet(self, source: _OpenFile, stamp: Stamp) -> None:
        """Closes a file that nobody writes to.

        It is opened again when it differs from `stamp`, which was taken before it was read to its end.
        """
        self._known[source.file.key] = source.position()
        self._quiet[source.file.key] = stamp
        source.file.close()
        del self._sources[source.file.key]

    def _open(self, path: Path, *, has_name: bool = True) -> _OpenFile | None:
        settings = self._settings
        try:
            file = FollowedFile(path, read_bytes_max=READ_BYTES_MAX, line_bytes_max=settings.line_bytes_max)
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error)
            return None
        kept = self._known.pop(file.key, None)
        self._quiet.pop(file.key, None)
        self._missed.pop(file.key, None)
        if kept is not None and not _is_same(file, kept):
            _log.warning(
                "%s was truncated or replaced while it was not followed; lines after byte %d may be lost",
                path,
                kept.sent_bytes,
            )
            kept = None
        source = _OpenFile(file, kept.id if kept else uuid.uuid4().hex, has_name=has_name)
        if kept is not None:
            file.position = source.sent_bytes = kept.sent_bytes
        elif self._is_first_run and settings.start == "latest":
            file.position = source.sent_bytes = file.size_bytes
        source.quiet_since = time.monotonic()
        self._sources[file.key] = source
        return source

    def _advance(self, source: _OpenFile, producer: Producer) -> int:
        """Sends new lines of a file; returns their number."""
        now = time.monotonic()
        if source.has_failed or now < source.pause_until:
            return 0
        change = source.file.change()
        if change is not None:
            if source.in_flight:
                return 0  # Its lines in flight belong to the old content.
            _log.warning("%s was %s; sending it from its beginning", source.file.path, change, extra=REMARK)
            source.file.begin_again()
            source.id, source.sent_bytes = uuid.uuid4().hex, 0
            self._save_positions()
        stamp = source.file.stamp
        lines = source.file.lines()
        if not lines and not source.has_name and now - source.quiet_since > self._settings.rotated_after_s:
            lines = source.file.rest()
            if not lines and not source.in_flight:
                source.file.close()
                del self._sources[source.file.key]
                return 0
        if lines:
            source.quiet_since = now
            self._send(source, producer, lines)
        elif not source.in_flight and now - source.quiet_since > self._settings.close_after_s:
            self._close_quiet(source, stamp)
        return len(lines)

    # Lines

    def _send(self, source: _OpenFile, producer: Producer, lines: list[Line]) -> None:
        settings = self._settings
        path = str(source.file.path)
        for line in lines:
            properties = line_properties(source.id, line.at, path, self._host, is_cut=line.is_cut)
            try:
                future = producer.send_soon(
                    settings.topic, line.body, tag=settings.tag, key=source.id, properties=properties
                )
            except MetaqError as error:
                if is_final(error):
                    raise
                if source.delay_warnings.is_due():
                    _log.warning("%s is delayed at byte %d: %s", path, line.at, error)
                source.file.position = line.at
                source.pause_until = time.monotonic() + FAILURE_PAUSE_S
                return
            source.in_flight.append((line.end, future))
            self.progress.rows += 1
            self.progress.bytes += len(line.body)

    def _take_acknowledgements(self) -> None:
        for source in self._sources.values():
            while source.in_flight and source.in_flight[0][1].done():
                end, future = source.in_flight[0]
                error = future.exception()
                if error is not None:
                    self._repeat(source, error)
                    break
                source.in_flight.popleft()
                source.sent_bytes = end
                source.delay_warnings.sent()

    def _repeat(self, source: _OpenFile, error: BaseException) -> None:
        """Goes back to the last acknowledged line, once no line after it is in flight."""
        if is_final(error):
            raise error
        source.has_failed = True
        if not all(future.done() for _, future in source.in_flight):
            return
        if source.delay_warnings.is_due():
            _log.warning("%s is sent again from byte %d: %s", source.file.path, source.sent_bytes, error)
        source.in_flight.clear()
        source.has_failed = False
        source.file.position = source.sent_bytes
        source.pause_until = time.monotonic() + FAILURE_PAUSE_S

    def _finish(self) -> None:
        """Waits for the lines in flight, at most as long as a send takes, and saves positions."""
        for source in self._sources.values():
            for _, future in source.in_flight:
                future.exception()
        self._take_acknowledgements()
        self._save_positions()

    def _save_positions(self) -> None:
        self._positions.save(
            (*(source.position() for source in self._sources.values()), *self._known.values())
        )
        self._save_due = time.monotonic() + self._settings.save_interval_s


def _is_same(file: FollowedFile, kept: FilePosition) -> bool:
    if kept.head == Head():
        return True  # It was empty then.
    file.head, fresh = kept.head, file.head
    file.position = kept.sent_bytes
    if file.change() is None:
        return True
    file.head, file.position = fresh, 0
    return False
