"""Control state on a replication link: entries of the journal as they are written, or all of it.

Every STATE frame carries one message with the point of its last entry. A replica that asks for a point which
the master's journal still knows gets the entries behind it. Any other replica gets everything, in parts: its
journal is replaced when the last part has come. Deleted topics need nothing here: the log records deletions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from metaq._core import ReplicationHub
from metaq.journal.journal import Entry, Journal, Point, Snapshot

MESSAGE_BYTES = 1024 * 1024
"""About the size at which a message is cut."""


class Kind(enum.IntEnum):
    """The meaning of the entries in a message."""

    ENTRIES = 0
    """They follow the replica's point."""
    PART = 1
    """Some of all live entries; more follow."""
    LAST_PART = 2


class StateMessage(msgspec.Struct, frozen=True, array_like=True):
    """The body of a STATE frame."""

    kind: Kind
    entries: list[Entry]


class StateInvalid(ValueError):
    """A master sent control state that does not fit."""


class StateFeed:
    """Sends the journal of a master to its links. All methods belong to the event loop."""

    def __init__(self, journal: Journal, hub: ReplicationHub) -> None:
        self._journal = journal
        self._hub = hub
        self._links: set[int] = set()
        self._stop_observing = journal.observe(self._written)

    def begin(self, link: int, point: Point) -> None:
        """Sends a new link everything behind its point, and all changes from now on."""
        self._links.add(link)
        entries = self._journal.entries_after(point)
        if entries is not None:
            self._send(link, Kind.ENTRIES, entries)
            return
        snapshot = self._journal.snapshot()
        parts = list(_parts(snapshot.entries)) or [[]]
        for index, part in enumerate(parts):
            kind = Kind.LAST_PART if index == len(parts) - 1 else Kind.PART
            self._send_part(link, kind, snapshot.point, part)

    def end(self, link: int) -> None:
        """Forgets a link that was closed."""
        self._links.discard(link)

    def stop(self) -> None:
        """Sends nothing more."""
        self._stop_observing()
        self._links.clear()

    def _written(self, entries: Sequence[Entry]) -> None:
        for link in list(self._links):
            self._send(link, Kind.ENTRIES, entries)

    def _send(self, link: int, kind: Kind, entries: Sequence[Entry]) -> None:
        for part in _parts(entries):
            self._send_part(link, kind, part[-1].point, part)

    def _send_part(self, link: int, kind: Kind, point: Point, part: list[Entry]) -> None:
        body = msgspec.msgpack.encode(StateMessage(kind, part))
        if not self._hub.send_state(link, point.epoch, point.version, body):
            self._links.discard(link)
            self._hub.close_link(link, "it is too far behind with the control state")


class StateIntake:
    """Writes the control state that a master sends into the journal of a replica."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._parts: list[Entry] = []

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
            self._parts += message.entries
            if message.kind is Kind.LAST_PART:
                parts, self._parts = self._parts, []
                before = (before or set()) | self._keys()
                await self._journal.reset(Snapshot(Point(epoch, version), parts))
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


def _parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        part.append(entry)
        size_bytes += entry.size_bytes
        if size_bytes >= MESSAGE_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
