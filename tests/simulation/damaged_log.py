"""The damage that a simulated node knows in its log, and how a replica judges and repairs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from metaq.ha.group_record import Member
from metaq.ha.view import Compared, Range, Source

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.network import Connection

KNOWN_S = 1.0
"""A node that has known of damage for this long is not elected. An election may take a part of it."""


class DamagedLog:
    """The part of a simulated node that verifies and repairs its log."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self.disk = host.disk
        self.source: Source | None = None
        self._to_master: Connection | None = None
        self._wake: Callable[[], None] = lambda: None
        self._known_damage: set[int] = set()
        self._damage_since: float | None = None
        self._fetched: dict[int, int] | None = None
        self._refused_at: int | None = None

    def damaged_at(self) -> int | None:
        """The first record that the node knows to be damaged."""
        if not self._known_damage:
            self._damage_since = None
        elif self._damage_since is None:
            self._damage_since = self.host.now()
        return min(self._known_damage, default=None)

    def _compared(self, connection: Connection, end: int, theirs: list[int]) -> None:
        mine = self.disk.places[:end]
        # Files that one of the two has deleted are not compared.
        start = max(self.disk.log_start, end - len(theirs))
        agrees = theirs[start - end :] == mine[start:] if start < end else True
        if agrees and not self._known_damage and self._refused_at is None:
            self._note_comparison(Compared(end, True))
            return
        if not agrees:
            self._verify()
        connection.send(self.host, ("verify", end))

    def _verified(self, end: int, theirs: list[int], damaged: list[int]) -> None:
        start = max(self.disk.log_start, end - len(theirs))
        places = range(start, end)
        other = {place: theirs[place - end] for place in places}
        mine = {place: self.disk.places[place] for place in places}
        self._refused_at = None
        self._note_comparison(
            Compared(
                end,
                mine == other,
                tuple((place, place + 1) for place in sorted(self._known_damage) if place in other),
                tuple((place, place + 1) for place in damaged),
                all(mine[place] == other[place] for place in places if mine[place] > 0 < other[place]),
            )
        )

    def _note_comparison(self, compared: Compared) -> None:
        assert self.source is not None
        self.source = replace(self.source, compared=compared)
        self._wake()

    def _verify(self) -> None:
        """Learns of all damage in the own log."""
        self._known_damage = set(self.disk.damaged())

    async def check_damage(self, physical_offset: int) -> None:
        if physical_offset in self.disk.damaged():
            self._known_damage.add(physical_offset)

    async def repair(self, ranges: Sequence[Range]) -> None:
        connection, self._fetched = self._to_master, None
        if connection is None:
            return
        places = [place for start, end in ranges for place in range(start, end)]
        connection.send(self.host, ("repair", places))
        while connection is self._to_master and self._fetched is None:
            await self.host.sleep(0.01)
        for place, record in (self._fetched or {}).items():
            if record > 0:
                self.world.oracle.repaired(self.host.name, self.disk.places[place])
                self.disk.places[place] = record
                self._known_damage.discard(place)
                await self.host.sleep(0.002)
        if self.source is not None:
            self.source = replace(self.source, compared=None)

    def _check_election(self, required: frozenset[Member]) -> None:
        """A node that has known of damage for a while is not elected while another member is sound."""
        known_since = self._damage_since
        others = [self.world.hosts[member.id] for member in required if member.id != self.host.name]
        if (
            known_since is not None
            and self.host.now() - known_since > KNOWN_S
            and any(not other.disk.damaged() for other in others)
        ):
            self.world.oracle.crashes.append(f"node {self.host.name} was elected with a damaged log")
