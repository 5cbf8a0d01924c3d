"""Control state on a replication link: entries of the journal as they are written, or all of it.

Every STATE frame carries one message with the point of its last entry. A replica that asks for a point which
the master's journal still knows gets the entries behind it. Any other replica gets everything, in parts: its
journal is replaced when the last part has come. Deleted topics need nothing here: the log records deletions.

All of it may have hundreds of megabytes, so each part waits until the link has room. Keys that change
meanwhile are sent again behind the other parts, with their newest values, until none is left. So the memory
for a slow link is bounded by the journal, and a link that is faster than the changes gets there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from metaq._core import ReplicationHub
from metaq.journal.journal import Entry, Journal, Point, Snapshot

_log = logging.getLogger(__name__)

MESSAGE_BYTES = 1024 * 1024
"""About the size at which a message is cut."""
PARTS_WAITING = 4
"""Messages of a backlog that may wait on a link. Together they fit into its limit."""
ROOM_POLL_S = 0.02
"""How often a backlog looks whether its link has room. So a link gets 200 MB per second at most."""


class Kind(enum.IntEnum):
    """The meaning of the entries in a message."""

    ENTRIES = 0
    """They follow the replica's point."""
    PART = 1
    """Some of all live entries; more follow."""
    LAST_PART = 2
    """The parts are all live entries now. One without a value takes its key out of earlier parts."""


class StateMessage(msgspec.Struct, frozen=True, array_like=True):
    """The body of a STATE frame."""

    kind: Kind
    entries: list[Entry]


class StateInvalid(ValueError):
    """A master sent control state that does not fit."""


class _Backlog:
    """The entries that a link is still to get: those behind its replica's point, or all live ones."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._entries: deque[Entry] = deque()
        self.waiting_bytes = 0
        """The size of the entries behind the replica's point. Live ones are in the journal anyway."""
        self._live: deque[Entry] | None = None
        self._changed: dict[tuple[str, str], Entry] = {}
        """The newest entries of the keys that have changed since all live ones were taken."""

    @property
    def is_empty(self) -> bool:
        return self._live is None and not self._entries

    def start_over(self, snapshot: Snapshot) -> None:
        """Holds all live entries from now on, and no others."""
        self._entries.clear()
        self.waiting_bytes = 0
        self._live = deque(snapshot.entries)

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries that were just written."""
        if self._live is not None:
            self._changed.update(((entry.table, entry.key), entry) for entry in entries)
        else:
            self._entries.extend(entries)
            self.waiting_bytes += _size_bytes(entries)

    def next_message(self, newest: Point) -> tuple[Point, StateMessage]:
        """Takes the next message out, with the point that it stands for. `newest` is the point of the newest
        entry that was added. Call it unless it is empty."""
        if self._live is None:
            part = self._part(self._entries)
            self.waiting_bytes -= _size_bytes(part)
            return part[-1].point, StateMessage(Kind.ENTRIES, part)
        part = self._part(self._live)
        if not self._live and self._changed:
            self._live, self._changed = deque(self._changed.values()), {}
        if self._live:
            return newest, StateMessage(Kind.PART, part)
        self._live = None
        return newest, StateMessage(Kind.LAST_PART, part)

    def _part(self, source: deque[Entry]) -> list[Entry]:
        part: list[Entry] = []
        size_bytes = 0
        while source and (not part or size_bytes + source[0].size_bytes <= self._part_bytes):
            size_bytes += source[0].size_bytes
            part.append(source.popleft())
        return part


class StateFeed:
    """Sends the journal of a master to its links. All methods belong to the event loop."""

    def __init__(self, journal: Journal, hub: ReplicationHub, state_bytes_max: int) -> None:
        """`state_bytes_max` is the hub's limit of the control state that waits on one link."""
        self._journal = journal
        self._hub = hub
        self._state_bytes_max = state_bytes_max
        self._part_bytes = min(MESSAGE_BYTES, state_bytes_max // PARTS_WAITING)
        self._backlogs: dict[int, _Backlog] = {}
        """For every link, the entries that it is still to get."""
        self._sending: dict[int, asyncio.Task[None]] = {}
        """The links whose backlog is sent as they have room for it."""
        self._stop_observing = journal.observe(self._written)

    def begin(self, link: int, point: Point) -> None:
        """Sends a new link everything behind its point, and all changes from now on."""
        backlog = self._backlogs[link] = _Backlog(self._part_bytes)
        entries = self._journal.entries_after(point)
        if entries is None:
            backlog.start_over(self._journal.snapshot())
            # One part goes at once, ahead of the log: the replica then knows that others follow.
            self._send(link, *backlog.next_message(self._journal.point))
            self._send_apart(link, backlog)
        else:
            self._add(link, backlog, entries)

    def end(self, link: int) -> None:
        """Forgets a link that was closed."""
        self._backlogs.pop(link, None)
        sending = self._sending.pop(link, None)
        if sending is not None:
            sending.cancel()

    def stop(self) -> None:
        """Sends nothing more."""
        self._stop_observing()
        for link in list(self._backlogs):
            self.end(link)

    def _written(self, entries: Sequence[Entry]) -> None:
        for link, backlog in list(self._backlogs.items()):
            self._add(link, backlog, entries)

    def _add(self, link: int, backlog: _Backlog, entries: Sequence[Entry]) -> None:
        """Sends entries at once if the link has room, so that those of a topic are ahead of its messages."""
        backlog.add(entries)
        if link not in self._sending:
            while not backlog.is_empty and self._has_room(link, self._state_bytes_max):
                self._send(link, *backlog.next_message(self._journal.point))
            self._send_apart(link, backlog)
        if backlog.waiting_bytes > self._state_bytes_max:
            backlog.start_over(self._journal.snapshot())

    def _has_room(self, link: int, waiting_bytes_max: int) -> bool:
        waiting_bytes = self._hub.state_waiting(link)
        return waiting_bytes is not None and waiting_bytes <= waiting_bytes_max

    def _send(self, link: int, point: Point, message: StateMessage) -> bool:
        return self._hub.send_state(link, point.epoch, point.version, msgspec.msgpack.encode(message))

    def _send_apart(self, link: int, backlog: _Backlog) -> None:
        """Sends what is left as the link has room for it."""
        if not backlog.is_empty:
            self._sending[link] = asyncio.create_task(self._send_backlog(link, backlog))

    async def _send_backlog(self, link: int, backlog: _Backlog) -> None:
        try:
            while not backlog.is_empty:
                while not self._has_room(link, self._part_bytes * (PARTS_WAITING - 1)):
                    if self._hub.state_waiting(link) is None:
                        return
                    await asyncio.sleep(ROOM_POLL_S)
                point, message = backlog.next_message(self._journal.point)
                # Only this task sends to the link now, so nothing overtakes the message on its way.
                body = await asyncio.to_thread(msgspec.msgpack.encode, message)
                if not self._hub.send_state(link, point.epoch, point.version, body):
                    return
        except Exception:
            _log.exception("the control state was not sent to a replica")
            self._hub.close_link(link, "its control state could not be sent")
        finally:
            self._sending.pop(link, None)


class StateIntake:
    """Writes the control state that a master sends into the journal of a replica."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._parts: dict[tuple[str, str], Entry] = {}
        self.is_replacing = False
        """Some of all live entries have come, and more follow."""

    async def take(self, messages: Iterable[tuple[int, int, bytes]]) -> list[Entry]:
        """Writes the messages. If they replaced the whole journal, it returns all entries of now, and
        removals of those that are gone: observers of the journal do not hear of them.

        Raises StateInvalid, NotWritten or OSError.
        """
        before: set[tuple[str, str]] | None = None
        for epoch, version, body in messages:
            try:
                message = _DECODER.decode(body)
            except msgspec.DecodeError as error:
                raise StateInvalid(f"the master sent control state that cannot be read: {error}") from None
            if message.kind is Kind.ENTRIES:
                await self._apply(message)
                continue
            self.is_replacing = True
            self._parts.update(((entry.table, entry.key), entry) for entry in message.entries)
            if message.kind is Kind.LAST_PART:
                parts, self._parts = self._parts, {}
                live = [entry for entry in parts.values() if entry.value is not None]
                before = (before or set()) | self._keys()
                await self._journal.reset(Snapshot(Point(epoch, version), live))
                self.is_replacing = False
            # A part takes a few milliseconds, and many may have come.
            await asyncio.sleep(0)
        if before is None:
            return []
        point = self._journal.point
        gone = [Entry(*point, table, key, None) for table, key in sorted(before - self._keys())]
        return [*gone, *self._journal.snapshot().entries]

    def _keys(self) -> set[tuple[str, str]]:
        return {(entry.table, entry.key) for entry in self._journal.snapshot().entries}

    async def _apply(self, message: StateMessage) -> None:
        try:
            await self._journal.apply(message.entries)
        except ValueError as error:
            raise StateInvalid(f"the master sent control state that does not follow: {error}") from None


_DECODER = msgspec.msgpack.Decoder(StateMessage)


def _size_bytes(entries: Iterable[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)
