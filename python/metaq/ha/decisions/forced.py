"""The record that an operator forces when too many nodes are lost, and what that may cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metaq.errors import CommandError
from metaq.ha.group_record import Beat, GroupRecord


@dataclass(frozen=True, slots=True)
class Forced:
    """A record that names a master in spite of possible losses."""

    record: GroupRecord
    is_in_sync: bool
    """The new master holds everything that was acknowledged, so nothing is lost."""
    bytes_lost_max: int
    """How much longer another node's log is known to have been."""


def force_master(
    record: GroupRecord | None, beats: Iterable[Beat], target_id: int, min_in_sync: int = 1
) -> Forced:
    """Makes a node the only member of the set and its master, in an epoch that every node will accept.

    Raises CommandError if the node has never written a beat.
    """
    known = {beat.id: beat for beat in beats}
    target = known.get(target_id)
    if target is None:
        raise CommandError(
            f"node {target_id} is not known to the register",
            hint=f"known nodes: {', '.join(map(str, sorted(known))) or 'none'}",
        )
    seen = [beat.promised_epoch for beat in known.values()]
    epoch = max([record.epoch if record is not None else 0, *seen]) + 1
    longest = max(beat.flushed_end for beat in known.values())
    return Forced(
        record=GroupRecord(
            epoch=epoch,
            master=target_id,
            in_sync=(target.member,),
            min_in_sync=record.min_in_sync if record is not None else min_in_sync,
        ),
        is_in_sync=record is not None and target.member in record.members,
        bytes_lost_max=max(longest - target.flushed_end, 0),
    )
