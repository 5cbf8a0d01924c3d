"""A node's view of the world, from which every decision is made.

All times are seconds on the node's own clock, which never jumps (CLOCK_BOOTTIME). A time that a node sees for
another node is the time at which this node noticed it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq.ha.epochs import History
from metaq.ha.group_record import Beat, GroupRecord, Member, RecordPromise
from metaq.ha.settings import HaSettings

StateVersion = tuple[int, int]
"""The epoch and the version of the newest entry of the control state."""


class Role(enum.Enum):
    """The part that a node plays in its group at the moment."""

    REPLICA = "replica"
    """Follows a master, or waits until there is one to follow."""
    CANDIDATE = "candidate"
    """Follows nobody, has synced its log, and wants to become master."""
    MASTER = "master"


class Disk(enum.Enum):
    """The health of a node's disk."""

    HEALTHY = "healthy"
    HANGING = "hanging"
    """A sync has not returned for a long time."""
    FAILED = "failed"
    """A sync returned an error. The store takes no writes until it is opened again."""
    CUT = "cut"
    """Another program cut a file of the log while it was in use. That ends when the store is opened again."""
    FULL = "full"
    """There is no room for records, or queue entries cannot be written. That may end by itself."""

    @property
    def can_serve(self) -> bool:
        """Whether a master may serve. A store with a full disk refuses messages by itself, but not what makes
        room."""
        return self in (Disk.HEALTHY, Disk.FULL)


class SendGate(enum.Enum):
    """How a master treats requests that append."""

    OPEN = "open"
    HOLD = "hold"
    """A planned switch is under way: keep requests until it ends, then serve or relay them."""
    REFUSE = "refuse"
    """Too few members: refuse with code 14 before the append."""


class SwapPurpose(enum.Enum):
    """The reason for a change of the record."""

    CREATE = "create the group"
    ELECT = "become master"
    SHRINK = "remove members that are behind"
    EXPAND = "add a member"
    RESIGN = "resign"
    HAND_OVER = "hand over"
    RENEW = "renew a lease that ended"
    """Writes the next version of the same record, so that elections on their way fail."""


@dataclass(frozen=True, slots=True)
class PendingSwap:
    """A change of the record that was sent and whose outcome is not certain yet.

    It stays pending until a read shows another revision than the expected one. Until then it may still be
    applied, even if its sender gave up waiting long ago.
    """

    purpose: SwapPurpose
    expected_revision: int
    record: GroupRecord
    in_flight: bool
    """The register has not answered yet. False: no answer came, and the register was read since then."""


@dataclass(frozen=True, slots=True)
class RegisterView:
    """The last answer of the register."""

    record: GroupRecord | None
    revision: int
    readable: bool
    """The last read succeeded."""
    readable_since: float
    """The time of the first read of the current unbroken row of successful reads."""
    fault: str = ""
    """Why the register's newest content is refused, and what an operator should do."""
    readers: frozenset[Member] = frozenset()
    """The nodes that read records with a version."""
    has_older_nodes: bool = False
    """A node takes part that cannot read a record with a version, and the group's record has none yet."""
    read_at: float = float("-inf")
    """When it was read last."""


@dataclass(frozen=True, slots=True)
class SeenBeat:
    """A node's last beat, and when this node saw it change."""

    beat: Beat
    changed_at: float
    is_fresh: bool = False
    """It changed since the current unbroken row of reads began. The first look at a beat shows no change:
    after the restore of a backup, it may be the old beat of a dead node."""


@dataclass(frozen=True, slots=True)
class Link:
    """The progress of a replica, as its master sees it. It outlives the connection."""

    member: Member
    connected: bool
    flushed_end: int
    state_version: StateVersion
    contact_at: float
    caught_up_at: float
    """The latest time at which the replica had flushed everything that the master had appended by then."""
    ack_ms: int | None = None
    """How long it takes to acknowledge records; None without traffic. For operators, no decision uses it."""


Range = tuple[int, int]
"""A part of a log, from one physical offset to another."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing a replica's log with its master's."""

    end: int
    """The bytes just below this end were compared."""
    agrees: bool
    own_damage: tuple[Range, ...] = ()
    """Damaged ranges of the replica's log that the master's log reaches."""
    peer_damage: tuple[Range, ...] | None = ()
    """Damaged ranges of the master's log, as far as it was asked; None if it could not tell."""
    is_explained: bool = False
    """Outside of the damaged ranges, both logs have the same bytes."""
    complaint: str = ""
    """Why the own damage could not be repaired, if that was tried."""


class SourceState(enum.Enum):
    """How far a replica got with its connection to the master."""

    CONNECTING = "connecting"
    REFUSED = "refused"
    """The master's port refuses connections: nobody listens there."""
    CONNECTED = "connected"
    """The master has answered with its history and waits for the offset to start from."""
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Source:
    """The connection of a replica to its master."""

    node_id: int
    epoch: int
    state: SourceState
    refused_since: float | None = None
    history: History = field(default_factory=History)
    log_start: int = 0
    log_end: int = 0
    compared: Compared | None = None
    """The last comparison of both logs on this connection."""
    heard_at: float | None = None
    """When the master last sent something; None if it never has since this node follows it."""


@dataclass(frozen=True, slots=True)
class SwitchRequest:
    """A planned switch that an operator asked for."""

    target: int
    asked_at: float


@dataclass(frozen=True, slots=True)
class Own:
    """The node itself."""

    member: Member
    role: Role
    role_since: float
    awake_since: float
    """The end of the last pause in which the process did not run, for example while it was stopped."""
    epoch: int
    """The epoch that it serves as master, or follows as replica; 0 if neither."""
    following: int
    """The id of the master that it follows, or 0."""
    promised_epoch: int
    """The highest epoch that it served or followed. It never accepts a lower one."""
    promised_record: RecordPromise
    """The newest record that it has seen, as its disk has it."""
    promising: int
    """The version that is being written as the newest promise, or was."""
    joined: bool
    """Its log is known to belong to this group. Otherwise nothing of it may be cut."""
    may_create: bool
    """It may write the first record of the group, because its store does not come from another group."""
    history: History
    appended_end: int
    flushed_end: int
    confirmed_end: int
    state_version: StateVersion
    disk: Disk
    required: frozenset[Member]
    """The members that must flush a record before it is confirmed, as in force now."""
    gate: SendGate
    acknowledge_until: float
    """The end of the lease as in force now; only for `replicas=async`."""
    beat_sent_at: float
    """The time at which the last successful beat was sent."""
    renewed_at: float
    """The time at which the last successful renewal of a lease was sent."""
    progress_at: float
    """The last time at which this master acknowledged something or had nothing to acknowledge."""
    resigned_at: float | None
    peer_epoch: int
    """The highest epoch that a peer showed on a connection."""
    damaged_at: int | None = None
    """The first physical offset at which the log is known to be damaged."""
    noted_damage: int | None = None
    """The damage that this node will still know of after a restart."""


@dataclass(frozen=True, slots=True)
class View:
    """All that a decision depends on."""

    now: float
    settings: HaSettings
    own: Own
    register: RegisterView
    beats: Mapping[int, SeenBeat] = field(default_factory=dict)
    links: Mapping[Member, Link] = field(default_factory=dict)
    source: Source | None = None
    pending: PendingSwap | None = None
    switch: SwitchRequest | None = None
