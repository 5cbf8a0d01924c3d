"""The interface between the conductor and one node: its store and its stream.

The simulation implements `Node` over a simulated disk and network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.epochs import History
from metaq.ha.group_record import Member
from metaq.ha.view import Disk, Range, SendGate, Source, StateVersion


class Clock(Protocol):
    """A clock that never jumps and counts while the machine sleeps."""

    def now(self) -> float:
        """Returns seconds since some point in the past."""
        ...

    async def wait(self, event: asyncio.Event, until: float) -> None:
        """Returns when the event is set or the time has come."""
        ...


class Files(Protocol):
    """Keeps what a node must not forget (`conducting/node_files.py`)."""

    async def load(self) -> NodeRecord | None:
        """Returns what was kept, None in a new directory. Raises MetadataDamaged."""
        ...

    async def save(self, record: NodeRecord) -> None:
        """Returns when the record survives a power failure. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """How the store was found when it was opened."""

    boot_id: str
    """The identity of the machine's current boot."""
    flush_is_sync: bool
    log_end: int
    """The end of the log after recovery, all of it synced."""
    flushed_mark: int
    """An end that the store is known to have flushed before; recovery must not end below it.

    The store keeps this mark until `identify` is called, so that a second kill does not hide a loss.
    """
    stopped_cleanly: bool
    """The store was closed in order, with everything synced."""
    state_version: StateVersion = (0, 0)
    """The newest entry of the control state in the journal."""
    state_mark: StateVersion | None = (0, 0)
    """The newest entry that the journal is known to have had; None if its mark cannot be read.

    The mark stays until `identify` is called, too.
    """


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """A connected replica, as the stream reports it."""

    member: Member
    flushed_end: int
    state_version: StateVersion
    contact_at: float
    ack_ms: int | None = None
    """How long it takes to acknowledge records; None without traffic."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The log of a replica that connected to a master which does not serve yet."""

    history: History
    log_end: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The state of store and stream at one moment."""

    appended_end: int
    flushed_end: int
    confirmed_end: int
    state_version: StateVersion = (0, 0)
    disk: Disk = Disk.HEALTHY
    links: Mapping[Member, LinkFacts] = field(default_factory=dict)
    offers: Mapping[Member, Offer] = field(default_factory=dict)
    source: Source | None = None
    peer_epoch: int = 0
    """The highest epoch that a peer showed on a connection."""
    damaged_at: int | None = None
    """The first physical offset at which the log is known to be damaged."""


class Node(Protocol):
    """One node: its store, its stream, its role."""

    def on_change(self, wake: Callable[[], None]) -> None:
        """Registers a function to call when a connection, the disk or a progress changes."""
        ...

    def opened(self) -> Opened:
        """Returns how the store was found."""
        ...

    def facts(self) -> NodeFacts:
        """Returns the state of now."""
        ...

    async def identify(self, member: Member) -> None:
        """Sets the identity that this node shows to peers from now on."""
        ...

    def set_history(self, history: History) -> None:
        """Sets the epochs of the log, which peers are shown when they connect."""
        ...

    async def stop_following(self) -> None:
        """Closes the stream from the master, then syncs the log. Acknowledges nothing after it returns."""
        ...

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        """Connects to the master in the background. `facts().source` shows how far it got.

        Refuses a master of a lower epoch. With a register it refuses any other epoch.
        """
        ...

    async def compare_below(self, end: int) -> None:
        """Compares checksums below an end with the master, and returns when `facts().source` has the result.

        If they differ, or this log is known to be damaged, both nodes verify their bytes. Returns without a
        result if the connection breaks.
        """
        ...

    async def check_damage(self, physical_offset: int) -> None:
        """Finds out whether the log is still damaged there; `facts().damaged_at` knows it then."""
        ...

    async def repair(self, ranges: Sequence[Range]) -> None:
        """Writes the master's bytes over damaged ranges of the log, of which it keeps a durable copy.

        The comparison in `facts().source` ends, or has a complaint. Safe to repeat after a kill.
        """
        ...

    async def reopen(self) -> None:
        """Follows nobody, and opens the store again as a start does. Safe to repeat after a kill."""
        ...

    async def truncate(self, end: int) -> None:
        """Copies the tail aside, cuts the log, syncs, cuts all derived files. Safe to repeat after a kill."""
        ...

    async def start_over(self, log_start: int) -> None:
        """Drops the whole log and everything derived from it. The log then starts and ends at `log_start`."""
        ...

    async def stream(self, end: int) -> None:
        """Asks the master for its log from this end on."""
        ...

    async def fetch_tail(self, member: Member, start: int) -> None:
        """Copies the log of a connected replica from `start` on and syncs it; for fixed roles.

        Returns early if the connection breaks.
        """
        ...

    async def become_master(self, epoch: int, required: frozenset[Member]) -> None:
        """Serves as master of an epoch that begins at the end of the log, with the gate closed."""
        ...

    async def step_down(self) -> None:
        """Stops serving as master. Waits for no sync and acknowledges nothing any more."""
        ...

    def set_required(self, members: frozenset[Member]) -> None:
        """Sets who must flush a record before it is confirmed. In force when it returns."""
        ...

    async def set_gate(self, gate: SendGate, reason: str) -> None:
        """Accepts, holds or refuses requests that append. In force when it returns.

        With HOLD, the control state is complete in the journal then.
        """
        ...

    def acknowledge_until(self, deadline: float) -> None:
        """Sets the time after which nothing is acknowledged; checked at the append and before the answer."""
        ...
