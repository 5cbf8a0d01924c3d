"""The control state of simulated nodes: how much of it each journal has, and what was acknowledged.

A journal is a row of entries, each of them just its epoch and version. The master adds one every second. It
sends its journal with each beat, and replicas take it over and acknowledge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from metaq.ha.group_record import Member
from metaq.ha.view import StateVersion

if TYPE_CHECKING:
    from tests.simulation.host import Host

CHANGE_INTERVAL_S = 1.0


class ControlState:
    """The journal of one simulated process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._disk = host.disk
        self._changed_at = host.now()

    @property
    def version(self) -> StateVersion:
        return self._disk.state_version

    @property
    def entries(self) -> tuple[StateVersion, ...]:
        return self._disk.state

    def accept_mark(self) -> None:
        """From now on, an older state belongs to a new incarnation."""
        self._disk.state_mark = self.version

    def take(self, entries: tuple[StateVersion, ...]) -> None:
        """Takes over the state of the master."""
        self._disk.state = entries
        self.accept_mark()

    def change_regularly(self, epoch: int) -> None:
        """A topic is created, as at any master."""
        if self._host.now() - self._changed_at >= CHANGE_INTERVAL_S:
            self._changed_at = self._host.now()
            self.take((*self.entries, (epoch, self.version[1] + 1)))

    def confirm(
        self, epoch: int, required: Iterable[Member], held: Iterable[tuple[Member, StateVersion]]
    ) -> None:
        """Acknowledges what everybody holds who must."""
        versions = dict(held)
        lowest = min([self.version, *(versions.get(member, (0, 0)) for member in required)])
        if lowest > (epoch, 0):
            self._host.world.oracle.state_acks.add(lowest)
