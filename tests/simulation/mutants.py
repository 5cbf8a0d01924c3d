"""Mistakes that the checks must catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from metaq.ha import decisions
from metaq.ha.actions import Action, PromiseRecord, SetRequired, StartOver, Stream
from metaq.ha.conducting import conductor, node_driver
from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.decisions import candidate, electorate, following, incarnation, master, membership, promises
from metaq.ha.group_record import Beat, GroupRecord, Member
from metaq.ha.node import Opened
from metaq.ha.registers import register_session
from metaq.ha.view import Own, PendingSwap, Source, View


@dataclass(frozen=True)
class Mutant:
    """A mistake: switches of the simulated store and stream, and patches of the decisions."""

    switches: tuple[str, ...] = ()
    patches: tuple[tuple[Any, str, Any], ...] = ()
    scenarios: tuple[str, ...] = ()
    """The scenarios that should catch it."""


def _without_union(record: GroupRecord, pending: PendingSwap | None) -> frozenset[Member]:
    return record.members


def _by_id(record: GroupRecord, member: Member) -> bool:
    return record.member(member.id) is not None


def _without_truncation(own: Own, source: Source) -> Action:
    return Stream(own.appended_end)


def _without_the_lagging(view: View, record: GroupRecord, joiner: Member | None) -> list[Action]:
    required = record.members - master.lagging(view, record)
    return [SetRequired(required)] if required != view.own.required else []


def _dropping_what_differs(own: Own, source: Source) -> Action | str:
    if source.compared is not None and not source.compared.agrees:
        return StartOver(source.log_start, "its bytes differ from the master's")
    return _NEXT_COPY_STEP(own, source)


def _staying_with_damage(view: View, record: GroupRecord) -> bool:
    return _SHOULD_RESIGN(replace(view, own=replace(view.own, damaged_at=None)), record)


def _lower_epoch_only(
    record: GroupRecord | None, promise: Any, promised_epoch: int, joined: bool, beats: Any
) -> str:
    refused = record is not None and record.epoch < promised_epoch
    return "a lower epoch" if refused or (record is None and joined) else ""


async def _believing_one_read(self: register_session.RegisterSession) -> None:
    await _FINISH_SWAP(self)
    self.pending = None


async def _without_intent(self: node_driver.NodeDriver, end: int) -> None:
    await self._node.truncate(end)
    await self.save(self.kept.with_history(self.kept.history.truncate(end)))


def _without_the_journal(kept: NodeRecord | None, opened: Opened) -> str:
    return incarnation.why_new_incarnation(kept, replace(opened, state_version=_NEWEST))


def _beat_without_the_journal(kept: NodeRecord, opened: Opened, beat: Beat) -> bool:
    return incarnation.is_behind_its_beat(kept, replace(opened, state_version=_NEWEST), beat)


async def _without_waiting_for_room(self: node_driver.NodeDriver, kept: NodeRecord) -> None:
    self._is_open = False
    await _SAVE(self, kept)


async def _promising_first(self: conductor.Conductor, action: Action) -> None:
    if isinstance(action, PromiseRecord):
        await self._promise(action.promise)
    else:
        await _CARRY_OUT(self, action)


_NEWEST = (2**62, 0)
_SAVE = node_driver.NodeDriver._save
_CARRY_OUT = conductor.Conductor._carry_out
_NEXT_COPY_STEP = following.next_copy_step
_SHOULD_RESIGN = master._should_resign
_FINISH_SWAP = register_session.RegisterSession.finish_swap

MUTANTS: dict[str, Mutant] = {
    "fsync_dropped": Mutant(("fsync_dropped",), scenarios=("power_loss_of_all",)),
    "acknowledged_when_appended": Mutant(
        ("acknowledged_when_appended",), scenarios=("power_loss_with_slow_disks",)
    ),
    "master_acknowledges_appended": Mutant(
        ("master_acknowledges_appended",), scenarios=("consumer_before_a_failover", "isolate_the_master")
    ),
    "visible_early": Mutant(
        ("visible_early",), scenarios=("consumer_before_a_failover", "isolate_the_master")
    ),
    "epoch_check_skipped": Mutant(
        ("epoch_check_skipped",),
        # Without agreement, or the election would be refused all the same.
        (
            (promises, "objection", lambda *believed: ""),
            (decisions, "must_ignore", lambda view: False),
            (candidate, "has_agreement", lambda view, record: True),
        ),
        scenarios=("register_restored",),
    ),
    "older_register_accepted": Mutant(
        patches=((promises, "objection", _lower_epoch_only), (decisions, "must_ignore", lambda view: False)),
        scenarios=("same_epoch_after_a_shrink", "older_epoch"),
    ),
    "elected_without_agreement": Mutant(
        patches=((candidate, "has_agreement", lambda view, record: True),),
        scenarios=("same_epoch_after_a_shrink", "random_old_registers"),
    ),
    "dropped_before_the_promise": Mutant(
        patches=((master, "awaits_promises", lambda view: False),),
        scenarios=("before_the_promise",),
    ),
    "electorate_forgotten": Mutant(
        patches=(
            (electorate, "_may_drop", lambda record, remaining, promised: True),
            (electorate, "_voters", lambda record, members: members),
        ),
        scenarios=("joiner_and_dead_witness", "random_old_registers"),
    ),
    "union_skipped": Mutant(
        patches=((master, "must_acknowledge", _without_union),), scenarios=("expand_answer_lost",)
    ),
    "late_swap_forgotten": Mutant(
        patches=((register_session.RegisterSession, "finish_swap", _believing_one_read),),
        scenarios=("expand_applied_late",),
    ),
    "acknowledged_before_the_set_shrank": Mutant(
        patches=((master, "_required", _without_the_lagging),),
        scenarios=("register_stopped_and_replica_killed",),
    ),
    "truncation_skipped": Mutant(
        patches=((following, "next_copy_step", _without_truncation),),
        scenarios=("kill_during_truncation", "isolate_the_master"),
    ),
    "truncation_intent_skipped": Mutant(
        patches=((node_driver.NodeDriver, "_truncate", _without_intent),),
        scenarios=("stale_tail_behind_a_hole",),
    ),
    "dropped_before_verifying": Mutant(
        patches=((following, "next_copy_step", _dropping_what_differs),), scenarios=("damaged_master",)
    ),
    "damaged_master_stays": Mutant(
        patches=((master, "_should_resign", _staying_with_damage),), scenarios=("damaged_master",)
    ),
    "damaged_node_electable": Mutant(
        patches=((membership, "others_may_be_sound", lambda view, record: False),),
        scenarios=("damaged_replica_is_alone",),
    ),
    "elected_without_the_journal": Mutant(
        patches=(
            (node_driver, "why_new_incarnation", _without_the_journal),
            (conductor, "is_behind_its_beat", _beat_without_the_journal),
        ),
        scenarios=("older_journal",),
    ),
    "hanging_promise_stops_the_master": Mutant(
        patches=((conductor.Conductor, "_carry_out", _promising_first),),
        scenarios=("disk_hangs_at_a_change",),
    ),
    "crashing_without_room": Mutant(
        patches=((node_driver.NodeDriver, "_save", _without_waiting_for_room),),
        scenarios=("no_room_for_a_promise",),
    ),
    "full_master_waited_for": Mutant(
        patches=((membership, "_is_not_serving", lambda view, record, full: False),),
        scenarios=("full_master_after_a_restart",),
    ),
    "older_copy_electable": Mutant(
        patches=((conductor, "is_older_copy", lambda kept, beat: False),),
        scenarios=("older_copy_of_a_store",),
    ),
    "cuts_forgotten": Mutant(
        patches=(
            (
                conductor,
                "is_behind_its_beat",
                lambda kept, opened, beat: incarnation.is_behind_its_beat(
                    kept.change(cut_after_beat=0), opened, beat
                ),
            ),
        ),
        scenarios=("killed_after_a_cut", "rolling_upgrade"),
    ),
    "older_nodes_forgotten": Mutant(
        patches=((register_session.RegisterSession, "has_older_nodes", lambda self, now: False),),
        scenarios=("rolling_upgrade",),
    ),
    "wiped_replica_electable": Mutant(
        patches=(
            (membership, "is_electable", _by_id),
            (candidate, "is_electable", _by_id),
            (following, "is_electable", _by_id),
        ),
        scenarios=("wiped_replica",),
    ),
}


@contextmanager
def mutated(name: str | None) -> Iterator[tuple[str, ...]]:
    """Makes the mistake, and yields the switches for the simulated world."""
    if name is None:
        yield ()
        return
    mutant = MUTANTS[name]
    with ExitStack() as undo:
        for target, attribute, replacement in mutant.patches:
            undo.enter_context(patch.object(target, attribute, replacement))
        yield mutant.switches
