"""The record that an operator forces when too many nodes are lost, and what that may cost."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from metaq.errors import CommandError
from metaq.ha.decisions.electorate import votes_needed
from metaq.ha.group_record import EPOCHS_PER_ROUND, Beat, GroupRecord, next_epoch
from metaq.ha.settings import HaSettings

VERSION_LEAP: Final = 1_000_000
"""How far the version of a forced record is above all that is known. A silent node may have seen more."""
EPOCH_LEAP: Final = 1_000 * EPOCHS_PER_ROUND
"""The same for its epoch, unless it is proven that the register has the newest one."""


class Loss(enum.Enum):
    """Whether a forced master lacks acknowledged messages."""

    NONE = "none"
    CERTAIN = "certain"
    """Another node has a newer log or control state, or the target is not in the in-sync set."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The log of a node, as its last beat in the register says."""

    id: int
    answers: bool
    """It runs now, so that the beat is at most about a second old."""
    beat: Beat | None


@dataclass(frozen=True, slots=True)
class Forced:
    """A record that names a master in spite of possible losses."""

    record: GroupRecord
    loss: Loss
    damaged_at: int | None
    """The first physical offset at which the log of the forced master is damaged."""
    register_fault: str
    """Why the register is known to have lost its newest state; empty if it is not known to."""
    reports: tuple[NodeReport, ...]
    bytes_lost_max: int
    """How much longer another node's log is known to have been."""


def force_master(
    record: GroupRecord | None,
    beats: Iterable[Beat],
    target_id: int,
    answering: Collection[int] | None = None,
) -> Forced:
    """Makes a node the only member of the set and its master, in a version and epoch that every node accepts.

    `answering` names the nodes that run now; None: all that have a beat. Raises CommandError if the target
    has never written a beat.
    """
    known = {beat.id: beat for beat in beats}
    target = known.get(target_id)
    if target is None:
        raise CommandError(
            f"node {target_id} is not known to the register",
            hint=f"known nodes: {', '.join(map(str, sorted(known))) or 'none'}",
        )
    alive = known.keys() if answering is None else answering
    fault = _register_fault(record, known.values())
    is_proven = record is not None and not fault and _agree(record, known, alive)
    epoch = max([0 if record is None else record.epoch, *(beat.promised_epoch for beat in known.values())])
    version = max(
        [0 if record is None else record.version, *(beat.promised_version for beat in known.values())]
    )
    ids = {*known, *(member.id for member in (() if record is None else record.electorate))}
    longest = max(beat.flushed_end for beat in known.values())
    return Forced(
        record=GroupRecord(
            epoch=next_epoch(epoch + (0 if is_proven else EPOCH_LEAP), target_id),
            master=target_id,
            in_sync=(target.member,),
            min_in_sync=_min_in_sync(record, known.values()),
            version=version + VERSION_LEAP,
            voters=(target.member,),
        ),
        loss=_loss(record, known, target, is_proven),
        damaged_at=target.damaged_at,
        register_fault=fault,
        reports=tuple(
            NodeReport(node_id, node_id in alive and node_id in known, known.get(node_id))
            for node_id in sorted(ids)
        ),
        bytes_lost_max=max(longest - target.flushed_end, 0),
    )


def _register_fault(record: GroupRecord | None, beats: Collection[Beat]) -> str:
    newest = max(beats, key=lambda beat: (beat.promised_version, beat.promised_epoch))
    if record is None:
        if newest.promised_version == newest.promised_epoch == 0:
            return ""
        return (
            f"the register has no record of the group, but node {newest.id} has seen version "
            f"{newest.promised_version} (epoch {newest.promised_epoch})"
        )
    if newest.promised_version > record.version or newest.promised_epoch > record.epoch:
        return (
            f"the register has version {record.version} (epoch {record.epoch}), but node {newest.id} has "
            f"seen version {newest.promised_version} (epoch {newest.promised_epoch})"
        )
    return ""


def _agree(record: GroupRecord, known: dict[int, Beat], alive: Collection[int]) -> bool:
    """Whether enough voters run and know no newer record. Then the record is the newest one."""
    agreeing = sum(
        voter.id in alive and voter.id in known and known[voter.id].member == voter
        for voter in record.electorate
    )
    return agreeing >= (votes_needed(record) or len(record.electorate))


def _loss(record: GroupRecord | None, known: dict[int, Beat], target: Beat, is_proven: bool) -> Loss:
    """In an unknown state of the register, only a node that knows more than the target is certain.

    A record without a version may be an older copy with the same epoch.
    """
    is_out = record is not None and target.member not in record.members
    has_newer = any(
        beat.log_epoch > target.log_epoch or beat.state_version > target.state_version
        for beat in known.values()
    )
    if is_proven and record is not None:
        is_unsure = has_newer or record.version == 0 or target.damaged_at is not None
        return Loss.CERTAIN if is_out else Loss.UNKNOWN if is_unsure else Loss.NONE
    has_seen_more = any(beat.promised_version > target.promised_version for beat in known.values())
    return Loss.CERTAIN if is_out or has_newer or has_seen_more else Loss.UNKNOWN


def _min_in_sync(record: GroupRecord | None, beats: Iterable[Beat]) -> int:
    """Returns what the record had, otherwise what the nodes remember or were started with."""
    if record is not None:
        return record.min_in_sync
    newest = max(beats, key=lambda beat: (beat.min_in_sync > 0, beat.promised_version, beat.min_in_sync))
    return newest.min_in_sync or HaSettings().min_in_sync
