"""Carries decisions out on one node, and keeps what the node must not forget."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metaq.ha.actions import (
    AcknowledgeUntil,
    Action,
    BecomeMaster,
    CompareBelow,
    FetchTail,
    Follow,
    NoteDamage,
    Promise,
    PromiseRecord,
    Reopen,
    Repair,
    SetGate,
    SetRequired,
    StartOver,
    StepDown,
    StopFollowing,
    Stream,
    Truncate,
    Wait,
)
from metaq.ha.conducting.catch_up import CatchUp
from metaq.ha.conducting.node_files import FILE_NAME, NodeRecord
from metaq.ha.decisions.incarnation import is_lasting, why_new_incarnation
from metaq.ha.group_record import Member, RecordPromise, shown_id
from metaq.ha.node import Clock, Files, Node, NodeFacts, Opened
from metaq.ha.settings import HaSettings
from metaq.ha.view import Own, Role, SendGate, Source

_log = logging.getLogger(__name__)

ROOM_POLL_S = 1.0
"""How often a node whose disk is full tries again to write what it must not forget."""
_STEPS_MAX = 100
"""Decisions in a row without a wait. More means that decisions do not settle."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A node and the address of its replication port."""

    node_id: int
    address: str


class NodeDriver:
    """The roles of one node, one after the other."""

    def __init__(
        self,
        node_id: int,
        node: Node,
        files: Files,
        settings: HaSettings,
        clock: Clock,
        new_incarnation: Callable[[], str],
        find_peer: Callable[[int], Peer | None],
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._files = files
        self._settings = settings
        self._clock = clock
        self._new_incarnation = new_incarnation
        self._find_peer = find_peer
        self._looked_at = self._awake_since = self._progress_at = clock.now()
        self._following = 0
        self._required: frozenset[Member] = frozenset()
        self._gate = SendGate.REFUSE
        self._acknowledge_until = float("-inf")
        self._confirmed_end = 0
        self.kept = NodeRecord(incarnation="none", boot_id="")
        self._saving = asyncio.Lock()
        self._is_open = False
        self._promising = 0
        """The newest version of the record that is promised, or is about to be."""
        self.beat_sequence = 0
        """The sequence number of the newest beat."""
        self.was_cut = False
        """The start of this process finished a cut of the log, so no earlier beat says what the log has."""
        self.is_taking_over = False
        """It has promised its own epoch, and is about to serve."""
        self.role = Role.REPLICA
        self.role_since = clock.now()
        self.epoch = 0
        """The epoch that this node serves or follows, 0 if neither."""
        self.group_id = ""
        """The identity of the group's register, once that is known."""
        self.beat_sent_at = float("-inf")
        self.renewed_at = float("-inf")
        self.resigned_at: float | None = None
        self.catch_up = CatchUp()
        self.wake = asyncio.Event()
        self.role_changed: Callable[[], None] = lambda: None
        self.beat_soon: Callable[[], None] = lambda: None
        """Is called when others should learn something about this node at once."""
        self.status = ""
        """Why the node waits, for the operator."""
        self.unsettled = 0
        """How often decisions did not settle, which is a bug."""

    @property
    def member(self) -> Member:
        """The identity of this node in its group."""
        return self.kept.member(self._node_id)

    @property
    def gate(self) -> SendGate:
        """How a master treats requests that append."""
        return self._gate

    @property
    def required(self) -> frozenset[Member]:
        """The members that must flush a record before it is confirmed."""
        return self._required

    # ---- start

    async def open(self) -> Opened:
        """Finds out whether the store is still the one that the group knows, and finishes a truncation."""
        self._node.on_change(self.wake.set)
        # A loss that the disk shows is noted first: after another kill it may not show any more.
        kept, opened = await self._files.load(), self._node.opened()
        await self.save(self._opened_record(kept, opened))
        await self._node.identify(self.member)
        self.was_cut = self.kept.truncate_to is not None or self.kept.start_over_at is not None
        await self._finish_truncation()
        if self.kept.damaged_at is not None:
            await self._node.check_damage(self.kept.damaged_at)
        self._is_open = True
        return opened

    def _opened_record(self, kept: NodeRecord | None, opened: Opened) -> NodeRecord:
        if kept is None:
            # Records that were written before the group began count as an epoch of their own.
            epochs = ((1, 0),) if opened.log_end > 0 else ()
            return NodeRecord(
                incarnation=self._new_incarnation(),
                boot_id=opened.boot_id,
                promised_epoch=len(epochs),
                epochs=epochs,
                incomplete=not epochs,
            )
        reason = why_new_incarnation(kept, opened)
        kept = kept.change(boot_id=opened.boot_id)
        if reason:
            _log.warning("node %d is a new incarnation: %s", shown_id(self._node_id), reason)
            kept = kept.change(
                incarnation=self._new_incarnation(), incomplete=True, state_version=opened.state_version
            )
        return kept

    async def renew(self, opened: Opened) -> None:
        """Takes a new incarnation."""
        await self.save(
            self.kept.change(incarnation=self._new_incarnation(), state_version=opened.state_version)
        )
        await self._node.identify(self.member)

    async def save(self, kept: NodeRecord) -> None:
        """Writes the record durably before anybody acts on it. Waits for room on a full disk."""
        async with self._saving:
            if kept.promised_record.version < self.kept.promised_record.version:
                # A master promises beside its decisions.
                kept = kept.change(promised_record=self.kept.promised_record)
            await self._save(kept)

    def begin_promise(self, promise: RecordPromise) -> None:
        """Notes that `promise_record` is about to be called."""
        self._promising = max(self._promising, promise.version)

    async def promise_record(self, promise: RecordPromise) -> None:
        """Promises a record durably, unless a newer one is promised."""
        self.begin_promise(promise)
        async with self._saving:
            if promise.version > self.kept.promised_record.version:
                await self._save(self.kept.change(promised_record=promise))

    async def _save(self, kept: NodeRecord) -> None:
        if kept == self.kept:
            return
        has_complained = False
        while True:
            try:
                await self._files.save(kept)
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._is_open:
                    raise
                if not has_complained:
                    _log.error("%s cannot be written: this node waits for room on its disk", FILE_NAME)
                    has_complained = True
            await self._clock.wait(asyncio.Event(), self._clock.now() + ROOM_POLL_S)
        if kept.epochs != self.kept.epochs:
            self._node.set_history(kept.history)
        self.kept = kept

    # ---- decisions

    async def decide_regularly(
        self, decide: Callable[[], list[Action]], carry_out: Callable[[Action], Awaitable[None]]
    ) -> None:
        """Decides and acts until nothing is left to do, then waits for a change or a time."""
        steps = 0
        while True:
            self.wake.clear()
            until = self._clock.now() + self._settings.tick_s
            acted = False
            for action in decide():
                if isinstance(action, Wait):
                    until = min(until, action.until)
                    self.status = action.reason
                else:
                    acted = True
                    await carry_out(action)
            steps = steps + 1 if acted else 0
            if steps == _STEPS_MAX:
                self.unsettled += 1
                _log.error("node %d: decisions do not settle", shown_id(self._node_id))
            if not acted or steps >= _STEPS_MAX:
                await self._clock.wait(self.wake, until)

    def look(self, facts: NodeFacts) -> Own:
        """Returns this node's own part of the view."""
        now = self._clock.now()
        if now - self._looked_at > self._settings.tick_s * 3:
            self._awake_since = now
        self._looked_at = now
        moved = facts.confirmed_end > self._confirmed_end or facts.confirmed_end >= facts.appended_end
        self._confirmed_end = facts.confirmed_end
        if self._awake_since == now or (moved and self._gate is not SendGate.REFUSE):
            self._progress_at = now
        return Own(
            member=self.member,
            role=self.role,
            role_since=self.role_since,
            awake_since=self._awake_since,
            epoch=self.epoch,
            following=self._following,
            promised_epoch=self.kept.promised_epoch,
            promised_record=self.kept.promised_record,
            promising=self._promising,
            joined=self.kept.cluster_id == self.group_id,
            may_create=self.kept.cluster_id is None or self.kept.served_last,
            history=self.kept.history,
            appended_end=facts.appended_end,
            flushed_end=facts.flushed_end,
            confirmed_end=facts.confirmed_end,
            state_version=facts.state_version,
            disk=facts.disk,
            required=self._required,
            gate=self._gate,
            acknowledge_until=self._acknowledge_until,
            beat_sent_at=self.beat_sent_at,
            renewed_at=self.renewed_at,
            progress_at=self._progress_at,
            resigned_at=self.resigned_at,
            peer_epoch=facts.peer_epoch,
            damaged_at=facts.damaged_at,
            noted_damage=self.kept.damaged_at,
        )

    async def carry_out(self, action: Action, source: Source | None) -> None:
        """Does what a decision asks for. `source` is the one that the decision saw."""
        match action:
            case SetRequired(members):
                self._node.set_required(members)
                self._required = members
            case SetGate(gate, reason):
                await self._node.set_gate(gate, reason)
                self._gate, self.status = gate, reason
            case AcknowledgeUntil(deadline):
                self._node.acknowledge_until(deadline)
                self._acknowledge_until = deadline
            case StopFollowing():
                await self._node.stop_following()
                self._take_role(Role.CANDIDATE)
            case Follow(node_id, epoch):
                await self._follow(node_id, epoch)
            case Promise(epoch):
                await self._promise(epoch)
                self.epoch = epoch
            case PromiseRecord(promise):
                await self.promise_record(promise)
            case CompareBelow(end):
                await self._node.compare_below(end)
            case NoteDamage(at):
                await self._note_damage(at)
            case Repair(ranges):
                await self._node.repair(ranges)
            case Reopen():
                await self._reopen()
            case Truncate(end):
                await self._truncate(end)
            case StartOver(log_start, reason):
                await self._start_over(log_start, reason)
            case Stream(end):
                await self._stream(end, source)
            case FetchTail():
                await self._fetch_tail(action)
            case BecomeMaster(epoch, required):
                await self._become_master(epoch, required)
            case StepDown(reason):
                await self._step_down(reason)
            case _:
                raise TypeError(f"a node cannot carry out {action}")

    # ---- one action each

    async def _follow(self, node_id: int, epoch: int) -> None:
        peer = self._find_peer(node_id)
        if peer is None:
            self.status = f"node {node_id} is master, but has not said where it is"
            await self._clock.wait(self.wake, self._clock.now() + self._settings.tick_s)
            return
        await self._promise(epoch)
        await self._node.become_replica(node_id, peer.address, epoch)
        self._take_role(Role.REPLICA, epoch, node_id)

    async def _promise(self, epoch: int) -> None:
        promised_epoch = max(epoch, self.kept.promised_epoch)
        await self.save(self.kept.change(promised_epoch=promised_epoch))

    async def _note_damage(self, at: int | None) -> None:
        node_id = shown_id(self._node_id)
        if at is None:
            _log.warning("node %d: its log is sound again", node_id)
        else:
            _log.error("node %d: its log is damaged at %d", node_id, at)
        await self.save(self.kept.change(damaged_at=at))
        self.beat_soon()

    async def _reopen(self) -> None:
        _log.error(
            "node %d: another program cut its log, so it opens its store again", shown_id(self._node_id)
        )
        # First of all: acknowledged records may be gone, and after a kill that may not show any more.
        await self.save(self.kept.change(incarnation=self._new_incarnation(), incomplete=True))
        await self._node.reopen()
        await self._node.identify(self.member)
        if self.kept.damaged_at is not None:
            await self._node.check_damage(self.kept.damaged_at)
        self._take_role(Role.REPLICA)
        self.beat_soon()

    async def _truncate(self, end: int) -> None:
        await self.save(self.kept.change(truncate_to=end))
        await self._finish_truncation()

    async def _start_over(self, log_start: int, reason: str) -> None:
        _log.warning("node %d copies everything anew: %s", shown_id(self._node_id), reason)
        await self.save(
            self.kept.change(incarnation=self._new_incarnation(), epochs=(), start_over_at=log_start)
        )
        await self._node.identify(self.member)
        await self._finish_truncation()
        self._take_role(Role.REPLICA)

    async def _finish_truncation(self) -> None:
        kept = self.kept
        if kept.start_over_at is not None:
            await self._node.start_over(kept.start_over_at)
            kept = kept.change(epochs=(), start_over_at=None, truncate_to=None)
            await self.save(kept.change(cut_after_beat=self.beat_sequence))
        elif kept.truncate_to is not None:
            await self._node.truncate(kept.truncate_to)
            history = kept.history.truncate(kept.truncate_to)
            kept = kept.with_history(history)
            await self.save(kept.change(truncate_to=None, cut_after_beat=self.beat_sequence))

    async def _stream(self, end: int, source: Source | None) -> None:
        if source is not None:
            history = self.kept.history.continue_with(source.history, end)
            kept = self.kept.with_history(history)
            state_version = self._node.facts().state_version
            if not is_lasting(state_version, kept.promised_epoch):
                state_version = (0, 0)
            await self.save(
                kept.change(cluster_id=self.group_id, served_last=False, state_version=state_version)
            )
            await self._node.stream(end)

    async def _fetch_tail(self, action: FetchTail) -> None:
        _log.warning(
            "node %d fetches a longer log from node %d", shown_id(self._node_id), shown_id(action.member.id)
        )
        history = self.kept.history.continue_with(action.history, action.start)
        await self._promise(history.last_epoch)
        await self.save(self.kept.with_history(history))
        await self._node.fetch_tail(action.member, action.start)

    async def _become_master(self, epoch: int, required: frozenset[Member]) -> None:
        # The promise and the new epoch are on disk before the first append.
        facts = self._node.facts()
        end = facts.appended_end
        history = self.kept.history.truncate(end).begin(epoch, end)
        kept = self.kept.with_history(history)
        kept = kept.change(promised_epoch=epoch, cluster_id=self.group_id, state_version=facts.state_version)
        await self.save(kept.change(incomplete=False, served_last=True))
        self.is_taking_over = True
        self.catch_up.reset()
        await self._node.become_master(epoch, required)
        self._required, self._gate = required, SendGate.REFUSE
        self._acknowledge_until = float("-inf")
        self.resigned_at = None
        self._progress_at = self._clock.now()
        self._take_role(Role.MASTER, epoch)
        self.is_taking_over = False
        _log.warning("node %d is master of epoch %d, which begins at %d", shown_id(self._node_id), epoch, end)

    async def _step_down(self, reason: str) -> None:
        _log.warning(
            "node %d is no longer master of epoch %d: %s", shown_id(self._node_id), self.epoch, reason
        )
        await self._node.step_down()
        self._required, self._gate = frozenset(), SendGate.REFUSE
        self._take_role(Role.REPLICA)

    def _take_role(self, role: Role, epoch: int = 0, following: int = 0) -> None:
        self.role, self.epoch, self._following = role, epoch, following
        self.role_since = self._clock.now()
        self.role_changed()
