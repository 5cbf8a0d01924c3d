"""Runs one node of a group: reads the register, beats, decides, and carries the decisions out.

Nothing here decides anything: see `decisions/`. All time comes from the given clock and nothing is random, so
a simulation with its own scheduler replays the same run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from metaq.errors import MetaqError
from metaq.ha.actions import (
    AcknowledgeUntil,
    Action,
    BecomeMaster,
    CompareBelow,
    EndSwitch,
    Follow,
    SetGate,
    SetRequired,
    StartOver,
    StepDown,
    StopFollowing,
    Stream,
    Swap,
    Truncate,
    Wait,
)
from metaq.ha.catch_up import CatchUp
from metaq.ha.decisions import decide
from metaq.ha.decisions.incarnation import is_behind_its_beat, why_new_incarnation
from metaq.ha.group_record import NO_MASTER, Beat, GroupKeys, Member, NodeState
from metaq.ha.node import Clock, Files, Node, Opened
from metaq.ha.node_files import NodeRecord
from metaq.ha.register import Register
from metaq.ha.register_session import RegisterSession
from metaq.ha.settings import HaSettings
from metaq.ha.view import Disk, Own, Role, SendGate, SwitchRequest, View

_log = logging.getLogger(__name__)

_STEPS_MAX = 100
"""Decisions in a row without a wait. More means that decisions do not settle."""


class WrongRegister(MetaqError):
    """The register is not the one to which the node's store belongs."""


class SwitchRefused(MetaqError):
    """A planned switch did not happen."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is in its group and where others reach it."""

    node_id: int
    client_address: str
    replication_address: str
    keys: GroupKeys


class Conductor:
    """One node of a group with a register, from `run` until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        node: Node,
        register: Register,
        files: Files,
        settings: HaSettings,
        clock: Clock,
        new_incarnation: Callable[[], str],
    ) -> None:
        self._identity = identity
        self._node = node
        self._files = files
        self._settings = settings
        self._clock = clock
        self._new_incarnation = new_incarnation
        self._wake = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._session = RegisterSession(register, identity.keys, settings, clock, self._wake.set)
        self._kept: NodeRecord = NodeRecord(incarnation="none", boot_id="")
        self._role = Role.REPLICA
        self._role_since = clock.now()
        self._awake_since = clock.now()
        self._looked_at = clock.now()
        self._epoch = 0
        self._following = 0
        self._required: frozenset[Member] = frozenset()
        self._gate = SendGate.REFUSE
        self._acknowledge_until = float("-inf")
        self._beat_sent_at = float("-inf")
        self._beat_sequence = 0
        self._progress_at = clock.now()
        self._confirmed_end = 0
        self._resigned_at: float | None = None
        self._switch: SwitchRequest | None = None
        self._switch_answer: asyncio.Future[str] | None = None
        self._catch_up = CatchUp()
        self._tasks: asyncio.TaskGroup | None = None
        self.status = ""
        """Why the node waits, for the operator."""
        self.unsettled = 0
        """How often decisions did not settle, which is a bug."""

    @property
    def role(self) -> Role:
        """The present role."""
        return self._role

    @property
    def epoch(self) -> int:
        """The epoch that this node serves or follows, 0 if neither."""
        return self._epoch

    async def run(self) -> None:
        """Takes part in the group until it is cancelled. Raises WrongRegister, MetadataDamaged or OSError."""
        self._node.on_change(self._wake.set)
        await self._open()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._session.poll())
                tasks.create_task(self._session.watch())
                tasks.create_task(self._beat_regularly())
                tasks.create_task(self._decide_regularly())
        finally:
            self._end_switch("the node stopped during the switch")

    async def switch(self, target: int) -> None:
        """Hands the mastership over to another node, without losses. Raises SwitchRefused."""
        if self._role is not Role.MASTER:
            raise SwitchRefused("this node is not the master")
        if self._switch is not None:
            raise SwitchRefused("another switch is under way")
        self._switch = SwitchRequest(target, self._clock.now())
        self._switch_answer = asyncio.get_running_loop().create_future()
        self._wake.set()
        if error := await self._switch_answer:
            raise SwitchRefused(error)

    async def _open(self) -> None:
        """Finds out who this node is, and finishes what a kill interrupted."""
        # A loss that the disk shows is noted first: after another kill it may not show any more.
        kept, opened = await self._files.load(), self._node.opened()
        await self._save(self._opened_record(kept, opened, why_new_incarnation(kept, opened)))
        await self._node.identify(self._kept.member(self._identity.node_id))
        await self._finish_truncation()
        cluster_id = await self._session.first_read()
        if self._kept.cluster_id not in (None, cluster_id):
            raise WrongRegister(
                f"this store belongs to register {self._kept.cluster_id}, but the register is {cluster_id}",
                hint="check the register's address; a restored register has a new id",
            )
        own_beat = self._session.beats.get(self._identity.node_id)
        if own_beat is not None and is_behind_its_beat(self._kept, opened, own_beat.beat):
            _log.warning("node %d lost what its last beat had: a new incarnation", self._identity.node_id)
            await self._save(self._kept.change(incarnation=self._new_incarnation()))
            await self._node.identify(self._kept.member(self._identity.node_id))

    def _opened_record(self, kept: NodeRecord | None, opened: Opened, reason: str) -> NodeRecord:
        if kept is None:
            # Records that were written before the group began count as an epoch of their own.
            epochs = ((1, 0),) if opened.log_end > 0 else ()
            return NodeRecord(
                incarnation=self._new_incarnation(),
                boot_id=opened.boot_id,
                promised_epoch=len(epochs),
                epochs=epochs,
            )
        kept = kept.change(boot_id=opened.boot_id)
        if reason:
            _log.warning("node %d is a new incarnation: %s", self._identity.node_id, reason)
            kept = kept.change(incarnation=self._new_incarnation())
        return kept

    async def _finish_truncation(self) -> None:
        kept = self._kept
        if kept.start_over_at is not None:
            await self._node.start_over(kept.start_over_at)
            await self._save(kept.with_history(kept.history.truncate(0)).change(start_over_at=None))
        elif kept.truncate_to is not None:
            await self._node.truncate(kept.truncate_to)
            history = kept.history.truncate(kept.truncate_to)
            await self._save(kept.with_history(history).change(truncate_to=None))

    async def _save(self, kept: NodeRecord) -> None:
        if kept != self._kept:
            await self._files.save(kept)
            self._kept = kept
            self._session.promised_epoch = kept.promised_epoch
            self._session.joined = kept.cluster_id is not None

    # ---- beats

    async def _beat_regularly(self) -> None:
        while True:
            self._beat_now.clear()
            sent_at = self._clock.now()
            wait_s = self._settings.beat_interval_s
            if await self._session.write_beat(self._beat()):
                self._beat_sent_at = sent_at
                self._wake.set()
            else:
                wait_s /= 4
            await self._clock.wait(self._beat_now, self._clock.now() + wait_s)

    def _beat(self) -> Beat:
        facts, identity = self._node.facts(), self._identity
        self._beat_sequence += 1
        state = {
            Role.MASTER: NodeState.MASTER,
            Role.REPLICA: NodeState.REPLICA,
            Role.CANDIDATE: NodeState.CANDIDATE,
        }[self._role]
        return Beat(
            id=identity.node_id,
            incarnation=self._kept.incarnation,
            client_address=identity.client_address,
            replication_address=identity.replication_address,
            flushed_end=facts.flushed_end,
            log_epoch=self._kept.history.log_epoch(facts.flushed_end),
            promised_epoch=self._kept.promised_epoch,
            sequence=self._beat_sequence,
            state=state if facts.disk is Disk.HEALTHY else NodeState.FAILED,
        )

    # ---- decisions

    async def _decide_regularly(self) -> None:
        steps = 0
        while True:
            self._wake.clear()
            view = self._look()
            until = view.now + self._settings.tick_s
            acted = False
            for action in decide(view):
                if isinstance(action, Wait):
                    until = min(until, action.until)
                    self.status = action.reason
                else:
                    acted = True
                    await self._carry_out(action, view)
            steps = steps + 1 if acted else 0
            if steps == _STEPS_MAX:
                self.unsettled += 1
                _log.error("node %d: decisions do not settle: %s", self._identity.node_id, view)
            if not acted or steps >= _STEPS_MAX:
                await self._clock.wait(self._wake, until)

    def _look(self) -> View:
        """Builds the view of now."""
        now, facts = self._clock.now(), self._node.facts()
        if now - self._looked_at > self._settings.tick_s * 3:
            self._awake_since = now
        self._looked_at = now
        moved = facts.confirmed_end > self._confirmed_end or facts.confirmed_end >= facts.appended_end
        self._confirmed_end = facts.confirmed_end
        if self._awake_since == now or (moved and self._gate is not SendGate.REFUSE):
            self._progress_at = now
        links = (
            self._catch_up.observe(now, facts.appended_end, facts.state_version, facts.links)
            if self._role is Role.MASTER
            else {}
        )
        return View(
            now=now,
            settings=self._settings,
            own=Own(
                member=self._kept.member(self._identity.node_id),
                role=self._role,
                role_since=self._role_since,
                awake_since=self._awake_since,
                epoch=self._epoch,
                following=self._following,
                promised_epoch=self._kept.promised_epoch,
                joined=self._kept.cluster_id is not None,
                history=self._kept.history,
                appended_end=facts.appended_end,
                flushed_end=facts.flushed_end,
                confirmed_end=facts.confirmed_end,
                state_version=facts.state_version,
                disk=facts.disk,
                required=self._required,
                gate=self._gate,
                acknowledge_until=self._acknowledge_until,
                beat_sent_at=self._beat_sent_at,
                progress_at=self._progress_at,
                resigned_at=self._resigned_at,
                peer_epoch=facts.peer_epoch,
            ),
            register=self._session.view(now),
            beats=self._session.beats,
            links=links,
            source=facts.source,
            pending=self._session.pending,
            switch=self._switch,
        )

    async def _carry_out(self, action: Action, view: View) -> None:
        match action:
            case SetRequired(members):
                self._node.set_required(members)
                self._required = members
            case SetGate(gate, reason):
                self._node.set_gate(gate)
                self._gate, self.status = gate, reason
            case AcknowledgeUntil(deadline):
                self._node.acknowledge_until(deadline)
                self._acknowledge_until = deadline
            case Swap():
                assert self._tasks is not None
                self._session.begin_swap(action)
                self._tasks.create_task(self._session.finish_swap())
            case EndSwitch(error):
                self._end_switch(error)
            case StopFollowing():
                await self._node.stop_following()
                self._take_role(Role.CANDIDATE)
            case Follow(node_id, epoch):
                await self._follow(node_id, epoch)
            case CompareBelow(end):
                await self._node.compare_below(end)
            case Truncate(end):
                await self._truncate(end)
            case StartOver(log_start, reason):
                await self._start_over(log_start, reason)
            case Stream(end):
                await self._stream(end, view)
            case BecomeMaster(epoch, required):
                await self._become_master(epoch, required)
            case StepDown(reason):
                await self._step_down(reason, view)
            case Wait():
                pass
            case _:
                assert_never(action)

    async def _follow(self, node_id: int, epoch: int) -> None:
        seen = self._session.beats.get(node_id)
        if seen is None:
            self.status = f"node {node_id} is master, but has not said where it is"
            await self._clock.wait(self._wake, self._clock.now() + self._settings.tick_s)
            return
        await self._promise(epoch)
        await self._node.become_replica(seen.beat, epoch)
        self._take_role(Role.REPLICA, epoch, node_id)

    async def _truncate(self, end: int) -> None:
        await self._save(self._kept.change(truncate_to=end))
        await self._finish_truncation()

    async def _start_over(self, log_start: int, reason: str) -> None:
        _log.warning("node %d copies everything anew: %s", self._identity.node_id, reason)
        kept = self._kept.change(incarnation=self._new_incarnation(), epochs=(), start_over_at=log_start)
        await self._save(kept)
        await self._node.identify(kept.member(self._identity.node_id))
        await self._finish_truncation()
        self._take_role(Role.REPLICA)

    async def _stream(self, end: int, view: View) -> None:
        if view.source is not None:
            history = self._kept.history.continue_with(view.source.history, end)
            await self._save(self._kept.with_history(history))
            await self._node.stream(end)

    async def _become_master(self, epoch: int, required: frozenset[Member]) -> None:
        # The promise and the new epoch are on disk before the first append.
        end = self._node.facts().appended_end
        history = self._kept.history.truncate(end).begin(epoch, end)
        await self._save(self._kept.with_history(history).change(promised_epoch=epoch, **self._joined()))
        self._catch_up.reset()
        await self._node.become_master(epoch, history, required)
        self._required, self._gate = required, SendGate.REFUSE
        self._acknowledge_until = float("-inf")
        self._resigned_at = None
        self._progress_at = self._clock.now()
        self._take_role(Role.MASTER, epoch)

    async def _step_down(self, reason: str, view: View) -> None:
        _log.warning(
            "node %d is no longer master of epoch %d: %s", self._identity.node_id, self._epoch, reason
        )
        await self._node.step_down()
        self._required, self._gate = frozenset(), SendGate.REFUSE
        record = view.register.record
        if record is not None and record.master == NO_MASTER:
            self._resigned_at = self._clock.now()
        self._take_role(Role.REPLICA)

    async def _promise(self, epoch: int) -> None:
        await self._save(
            self._kept.change(promised_epoch=max(epoch, self._kept.promised_epoch), **self._joined())
        )

    def _joined(self) -> dict[str, object]:
        return {"cluster_id": self._session.cluster_id}

    def _take_role(self, role: Role, epoch: int = 0, following: int = 0) -> None:
        self._role, self._epoch, self._following = role, epoch, following
        self._role_since = self._clock.now()
        self._session.urgent = role is Role.CANDIDATE
        self._session.read_now.set()
        self._beat_now.set()

    def _end_switch(self, error: str) -> None:
        answer, self._switch, self._switch_answer = self._switch_answer, None, None
        if answer is not None and not answer.done():
            answer.set_result(error)
