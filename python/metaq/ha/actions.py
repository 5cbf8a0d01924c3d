"""The actions that a decision may ask for, in the order in which the conductor carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.ha.epochs import History
from metaq.ha.group_record import GroupRecord, Member, RecordPromise
from metaq.ha.view import Range, SendGate, SwapPurpose


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Close the stream from the master, sync the log, and be a candidate. The log's end is final then."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Promise the epoch and follow its master."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CompareBelow:
    """Compare checksums with the master just below an end."""

    end: int


@dataclass(frozen=True, slots=True)
class NoteDamage:
    """Remember durably where the log is damaged, or that it is sound again (None)."""

    at: int | None


@dataclass(frozen=True, slots=True)
class Repair:
    """Replace damaged ranges of the log by the master's bytes, which verify."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Reopen:
    """Take a new incarnation and open the store again: somebody cut a file of its log."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log down to the point where it parts from the master's."""

    end: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Take a new incarnation, drop the whole log, and copy the master's from its start."""

    log_start: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Keep the master's history, then ask it for its log from this end on."""

    end: int


@dataclass(frozen=True, slots=True)
class Promise:
    """Promise the epoch of the connected master; for fixed roles, where only the master knows it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PromiseRecord:
    """Promise durably to refuse every older record of the group, before anything is done because of it."""

    promise: RecordPromise


@dataclass(frozen=True, slots=True)
class FetchTail:
    """Copy a replica's longer log before this node serves as a fixed master."""

    member: Member
    start: int
    history: History


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Promise the epoch, begin it at the end of the log, and serve as its master."""

    epoch: int
    required: frozenset[Member]


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop serving as master, at once and without a sync."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetRequired:
    """Set who must flush a record before it is confirmed."""

    members: frozenset[Member]


@dataclass(frozen=True, slots=True)
class SetGate:
    """Accept, hold or refuse requests that append."""

    gate: SendGate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AcknowledgeUntil:
    """Acknowledge nothing after this time unless it is moved."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Swap:
    """Change the group's record, if it still has the expected revision."""

    purpose: SwapPurpose
    expected_revision: int
    record: GroupRecord


@dataclass(frozen=True, slots=True)
class EndSwitch:
    """Answer the operator who asked for a planned switch. An empty error means success."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again at this time, or when something changes."""

    until: float
    reason: str = ""


Action = (
    StopFollowing
    | Follow
    | CompareBelow
    | NoteDamage
    | Reopen
    | Repair
    | Truncate
    | StartOver
    | Stream
    | Promise
    | PromiseRecord
    | FetchTail
    | BecomeMaster
    | StepDown
    | SetRequired
    | SetGate
    | AcknowledgeUntil
    | Swap
    | EndSwitch
    | Wait
)
