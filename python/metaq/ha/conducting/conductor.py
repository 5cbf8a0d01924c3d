"""Runs one node of a group with a register: reads the register, beats, decides, and acts.

Nothing here decides anything: see `decisions/`. All time comes from the given clock and nothing is random, so
a simulation with its own scheduler replays the same run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from metaq.errors import MetaqError
from metaq.ha.actions import Action, EndSwitch, PromiseRecord, StepDown, Swap
from metaq.ha.conducting.node_driver import NodeDriver, Peer
from metaq.ha.conducting.node_files import FIXED_GROUP
from metaq.ha.decisions import decide
from metaq.ha.decisions.incarnation import is_behind_its_beat, is_older_copy
from metaq.ha.decisions.master import awaits_promises
from metaq.ha.decisions.membership import may_have_hung, must_look_for_beat
from metaq.ha.group_record import NO_MASTER, Beat, GroupKeys, NodeState, RecordPromise
from metaq.ha.node import Clock, Files, Node
from metaq.ha.register import Register
from metaq.ha.registers.register_session import RegisterSession
from metaq.ha.settings import HaSettings
from metaq.ha.view import Disk, Role, SwapPurpose, SwitchRequest, View

_log = logging.getLogger(__name__)

_STATES = {
    Role.MASTER: NodeState.MASTER,
    Role.REPLICA: NodeState.REPLICA,
    Role.CANDIDATE: NodeState.CANDIDATE,
}


class WrongRegister(MetaqError):
    """The register is not the one to which the node's store belongs."""


class SwitchRefused(MetaqError):
    """A planned switch did not happen."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a node in its group, and the addresses where others reach it."""

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
        self._settings = settings
        self._clock = clock
        self._beat_now = asyncio.Event()
        self._is_leaving = self._has_left = False
        self._doubts_master = False
        self._switch: SwitchRequest | None = None
        self._switch_answer: asyncio.Future[str] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._view: View | None = None
        self.driver = NodeDriver(
            identity.node_id, node, files, settings, clock, new_incarnation, self._find_peer
        )
        self.driver.role_changed = self._role_changed
        self.driver.beat_soon = self._beat_now.set
        self.session = RegisterSession(register, identity.keys, settings, clock, self.driver.wake.set)

    @property
    def view(self) -> View | None:
        """The view of the last decision; None before the first one."""
        return self._view

    async def run(self) -> None:
        """Takes part in the group until it is cancelled.

        Raises WrongRegister, MetadataDamaged or OSError at the start; later errors come as an ExceptionGroup.
        """
        await self._open()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self.session.poll())
                tasks.create_task(self.session.watch())
                tasks.create_task(self._beat_regularly())
                tasks.create_task(self.driver.decide_regularly(self._decide, self._carry_out))
        finally:
            self._end_switch("the node stopped during the switch")

    async def switch(self, target: int) -> None:
        """Hands the mastership over to another node, without losses. Raises SwitchRefused."""
        if self.driver.role is not Role.MASTER:
            raise SwitchRefused("this node is not the master")
        if self._switch is not None:
            raise SwitchRefused("another switch is under way")
        self._switch = SwitchRequest(target, self._clock.now())
        self._switch_answer = asyncio.get_running_loop().create_future()
        self.driver.wake.set()
        if error := await self._switch_answer:
            raise SwitchRefused(error)

    async def leave(self, timeout_s: float, *, for_good: bool = False) -> bool:
        """Asks the master to go on without this replica, so that nobody waits for it when it stops.

        One that leaves `for_good` is not missed afterwards. Returns False if this node is still in the set
        after that time.
        """
        self._is_leaving = True
        self._has_left |= for_good
        self._beat_now.set()
        ends_at = self._clock.now() + timeout_s
        nothing = asyncio.Event()
        while (record := self.session.view(self._clock.now()).record) is not None:
            if self.driver.member not in record.members:
                return True
            if self._clock.now() >= ends_at:
                return False
            self.session.read_now.set()
            await self._clock.wait(nothing, self._clock.now() + self._settings.urgent_poll_interval_s)
        return True

    async def _open(self) -> None:
        opened = await self.driver.open()
        self._show_promises()
        self.session.joined = self.driver.kept.cluster_id not in (None, FIXED_GROUP)
        cluster_id = await self.session.first_read()
        kept = self.driver.kept
        if kept.cluster_id not in (None, FIXED_GROUP, cluster_id):
            raise WrongRegister(
                f"this store belongs to register {kept.cluster_id}, but the register is {cluster_id}",
                hint="check the register's address; a restored register may have a new id",
            )
        self.driver.group_id = cluster_id
        own_beat = self.session.beats.get(self._identity.node_id)
        # Sequence numbers grow over restarts, so that an older copy of the register shows.
        written = own_beat.beat.sequence if own_beat is not None else 0
        self.driver.beat_sequence = max(written, kept.cut_after_beat)
        if self.driver.was_cut:
            # The cut was finished before its last beat was known.
            await self.driver.save(kept.change(cut_after_beat=self.driver.beat_sequence))
        if own_beat is None:
            return
        if is_older_copy(kept, own_beat.beat) or (
            not self.driver.was_cut and is_behind_its_beat(kept, opened, own_beat.beat)
        ):
            _log.warning("node %d lost what its last beat had: a new incarnation", self._identity.node_id)
            await self.driver.renew(opened)

    async def _beat_regularly(self) -> None:
        while True:
            self._beat_now.clear()
            sent_at = self._clock.now()
            wait_s = self._settings.beat_interval_s
            if await self.session.write_beat(self._beat()):
                self.driver.beat_sent_at = sent_at
                self.driver.wake.set()
            else:
                wait_s /= 4
            await self._clock.wait(self._beat_now, self._clock.now() + wait_s)

    def _beat(self) -> Beat:
        facts, kept, identity = self._node.facts(), self.driver.kept, self._identity
        self.driver.beat_sequence += 1
        return Beat(
            id=identity.node_id,
            incarnation=kept.incarnation,
            client_address=identity.client_address,
            replication_address=identity.replication_address,
            flushed_end=facts.flushed_end,
            log_epoch=kept.history.log_epoch(facts.flushed_end),
            promised_epoch=kept.promised_epoch,
            sequence=self.driver.beat_sequence,
            state=self._node_state(facts.disk),
            damaged_at=facts.damaged_at,
            promised_version=kept.promised_record.version,
            min_in_sync=kept.promised_record.min_in_sync or self._settings.min_in_sync,
            state_version=facts.state_version,
        )

    def _node_state(self, disk: Disk) -> NodeState:
        if disk is Disk.FULL:
            # A master that nobody can replace goes on serving reads, and takes messages when there is room.
            serves = self.driver.role is Role.MASTER or self.driver.is_taking_over
            return NodeState.MASTER if serves else NodeState.FULL
        if disk is not Disk.HEALTHY:
            return NodeState.FAILED
        if self._is_leaving and self.driver.role is Role.REPLICA:
            return NodeState.LEFT if self._has_left else NodeState.LEAVING
        return _STATES[self.driver.role]

    def _decide(self) -> list[Action]:
        self._view = self._look()
        was_urgent = self.session.urgent
        self.session.urgent = (
            self.driver.role is Role.CANDIDATE
            or awaits_promises(self._view)
            or must_look_for_beat(self._view)
        )
        doubted, self._doubts_master = self._doubts_master, may_have_hung(self._view)
        # The time of the last beat counts from the read that shows it.
        if (self.session.urgent and not was_urgent) or (self._doubts_master and not doubted):
            self.session.read_now.set()
        return decide(self._view)

    def _look(self) -> View:
        now, facts, driver = self._clock.now(), self._node.facts(), self.driver
        session = self.session
        self._show_promises()
        session.joined = driver.kept.cluster_id == session.cluster_id
        driver.renewed_at = session.renewed_at
        links = (
            driver.catch_up.observe(now, facts.appended_end, facts.state_version, facts.links)
            if driver.role is Role.MASTER
            else {}
        )
        return View(
            now=now,
            settings=self._settings,
            own=driver.look(facts),
            register=session.view(now),
            beats=session.beats,
            links=links,
            source=facts.source,
            pending=session.pending,
            switch=self._switch,
        )

    def _show_promises(self) -> None:
        """The session refuses a record that is older than what this node promised."""
        kept = self.driver.kept
        self.session.promised_record, self.session.promised_epoch = kept.promised_record, kept.promised_epoch
        self.session.own = self.driver.member

    async def _carry_out(self, action: Action) -> None:
        assert self._view is not None
        match action:
            case Swap():
                assert self._tasks is not None
                if action.purpose is SwapPurpose.RESIGN:
                    self._report_resignation(self._view)
                self.session.begin_swap(action)
                self._tasks.create_task(self.session.finish_swap())
            case EndSwitch(error):
                self._end_switch(error)
            case StepDown():
                record = self._view.register.record
                if record is not None and record.master == NO_MASTER:
                    self.driver.resigned_at = self._view.now
                await self.driver.carry_out(action, None)
            case PromiseRecord() if self.driver.role is Role.MASTER:
                assert self._tasks is not None
                # At once, because the next look must know that it is being written.
                self.driver.begin_promise(action.promise)
                self._tasks.create_task(self._promise(action.promise))
            case PromiseRecord():
                await self._promise(action.promise)
            case _:
                await self.driver.carry_out(action, self._view.source)

    async def _promise(self, promise: RecordPromise) -> None:
        await self.driver.promise_record(promise)
        self._show_promises()
        # Others may wait for this promise.
        self._beat_now.set()
        self.driver.wake.set()

    def _report_resignation(self, view: View) -> None:
        own = view.own
        if own.damaged_at is not None:
            _log.warning("node %d resigns: its log is damaged at %d", own.member.id, own.damaged_at)
            return
        _log.warning(
            "node %d resigns from epoch %d: its disk is %s, and it has confirmed nothing for %.1f s",
            *(own.member.id, own.epoch, own.disk.value, view.now - own.progress_at),
        )

    def _find_peer(self, node_id: int) -> Peer | None:
        seen = self.session.beats.get(node_id)
        return Peer(node_id, seen.beat.replication_address) if seen is not None else None

    def _role_changed(self) -> None:
        self.session.read_now.set()
        self._beat_now.set()

    def _end_switch(self, error: str) -> None:
        answer, self._switch, self._switch_answer = self._switch_answer, None, None
        if answer is not None and not answer.done():
            answer.set_result(error)
