"""All groups of a cluster in the register, and the record that an operator forces there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.errors import CommandError
from metaq.ha.decisions.forced import Forced, force_master
from metaq.ha.group_record import Beat, GroupKeys, GroupRecord, Member, RecordInvalid
from metaq.ha.register import Outcome, Register, RegisterUnavailable, Stored
from metaq.ha.registers.etcd_gateway import KEY_ROOT

_SWAPS_MAX: Final = 5
"""How often a swap whose outcome is not known is tried."""
_READ_PATIENCE_S: Final = 10.0
"""For how long a register that answers too late is read again: etcd waits for its disk now and then."""
_READ_PAUSE_S: Final = 0.2


@dataclass(slots=True)
class RegisteredGroup:
    """One group as the register has it. `faults` lists the values that cannot be read."""

    name: str
    record: GroupRecord | None = None
    revision: int = 0
    beats: dict[int, Beat] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    readers: frozenset[Member] = frozenset()
    """The nodes that read records with a version."""

    @property
    def has_older_nodes(self) -> bool:
        """Whether a node is known that cannot read a record with a version, and the group has none yet."""
        versions = [beat.promised_version for beat in self.beats.values()]
        if self.record is not None:
            versions.append(self.record.version)
        return not any(versions) and not {beat.member for beat in self.beats.values()} <= self.readers


async def read_groups(register: Register, cluster: str) -> dict[str, RegisteredGroup]:
    """Returns every group of a cluster by its name. Raises RegisterUnavailable.

    A register that is only late is asked again for ten seconds. One that refuses is not.
    """
    root = f"{KEY_ROOT}{cluster}/"
    groups: dict[str, RegisteredGroup] = {}
    for key, stored in (await _listed(register, root)).items():
        name = key.removeprefix(root).partition("/")[0]
        keys = GroupKeys(cluster, name)
        group = groups.setdefault(name, RegisteredGroup(name))
        try:
            if key == keys.group:
                group.revision = stored.revision
                group.record = GroupRecord.decode(stored.value)
            elif key.startswith(keys.readers):
                group.readers |= keys.readers_in({key: stored.value})
            elif key.startswith(keys.beats):
                beat = Beat.decode(stored.value)
                if key != keys.beat(beat.id):
                    raise RecordInvalid(f"it holds the beat of node {beat.id}")
                group.beats[beat.id] = beat
        except RecordInvalid as error:
            group.faults.append(f"{key}: {error}")
    return groups


async def _listed(register: Register, prefix: str) -> dict[str, Stored]:
    clock = asyncio.get_running_loop().time
    deadline = clock() + _READ_PATIENCE_S
    while True:
        try:
            return await register.list(prefix)
        except RegisterUnavailable as error:
            if not error.is_late or clock() >= deadline:
                raise
        await asyncio.sleep(_READ_PAUSE_S)


async def read_group(register: Register, cluster: str, name: str) -> RegisteredGroup:
    """Returns one group. Raises CommandError if there is none, and RegisterUnavailable."""
    groups = await read_groups(register, cluster)
    if name not in groups:
        known = ", ".join(sorted(groups)) or "none"
        raise CommandError(
            f"the register has no broker group {name} in cluster {cluster}",
            hint=f"known groups: {known}; --cluster names another cluster",
        )
    return groups[name]


def plan_force(group: RegisteredGroup, target: int, answering: Collection[int] | None = None) -> Forced:
    """Returns the record that makes a node master, and what that may lose. Raises CommandError.

    `answering` names the nodes that run now; None: all that have a beat.
    """
    if group.faults:
        raise CommandError(
            f"the register holds values of {group.name} that cannot be read: {group.faults[0]}",
            hint="repair or delete these keys first; force does not overwrite what it cannot read",
        )
    forced = force_master(group.record, group.beats.values(), target, answering)
    record = group.record
    is_alone = record is not None and record.master == target and len(record.in_sync) == 1
    if is_alone and not forced.register_fault:
        raise CommandError(f"node {target} is master of {group.name} already, and alone in the in-sync set")
    return replace(forced, record=forced.record.for_older()) if group.has_older_nodes else forced


async def write_forced(register: Register, cluster: str, group: RegisteredGroup, forced: Forced) -> None:
    """Writes the record if nobody has changed it since it was read.

    Raises CommandError if somebody has, and RegisterUnavailable if the outcome stays unknown.
    """
    key, value = GroupKeys(cluster, group.name).group, forced.record.encode()
    for _ in range(_SWAPS_MAX):
        outcome = await register.compare_and_swap(key, group.revision, value)
        if outcome is Outcome.DONE:
            return
        if outcome is Outcome.CONFLICT:
            stored = await register.get(key)
            # An earlier try whose answer was lost may have succeeded.
            if stored is not None and stored.value == value:
                return
            raise CommandError(
                f"the record of {group.name} changed meanwhile, so nothing was written",
                hint="look at `metaq cluster status` and decide again",
            )
    raise RegisterUnavailable(
        f"the register did not confirm the new record of {group.name}; it may still be written",
        hint="look at `metaq cluster status` before you try again",
    )
