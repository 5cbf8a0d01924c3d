"""A broker's part in its group: the replication port, the conductor, and the roles that follow from it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol

from metaq.broker.node import Node
from metaq.broker.options import BrokerOptions
from metaq.broker.replica import Replica
from metaq.broker.replication.group_node import GroupNode, Roles
from metaq.broker.replication.link_port import LinkPort
from metaq.broker.replication.offset_merge import FILE_NAME, OffsetMerge
from metaq.broker.replication.options import ReplicationOptions
from metaq.broker.replication.source_link import SourceLink
from metaq.errors import CommandError
from metaq.ha.conducting.boot_clock import BootClock
from metaq.ha.conducting.conductor import Conductor, Identity, SwitchRefused
from metaq.ha.conducting.fixed_conductor import FixedConductor
from metaq.ha.conducting.node_driver import NodeDriver, Peer
from metaq.ha.conducting.node_files import NodeFiles
from metaq.ha.decisions.fixed import FixedView
from metaq.ha.group_record import FIXED_MASTER_ID, NO_MASTER, GroupKeys, shown_id
from metaq.ha.operators.group_status import fixed_status, group_status
from metaq.ha.register import Register, RegisterUnavailable, open_register
from metaq.ha.view import Role, SendGate, SourceState, View
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.errors import Refused

_log = logging.getLogger(__name__)

REPLICA_INTERVAL_S = 0.25
SAVE_INTERVAL_S = 0.5
"""How often the offsets that a replica keeps for its master are written."""
STOP_SWITCH_S = 3.0
"""How long a master that stops tries to hand its mastership over."""
LEAVE_S = 3.0
"""How long a replica that stops waits for its master to go on without it."""


class GroupBroker(Roles, Protocol):
    """The broker that takes part in the group."""

    options: BrokerOptions

    @property
    def node(self) -> Node: ...
    @property
    def address(self) -> str: ...
    @property
    def replica(self) -> Replica | None: ...


class Group:
    """This broker as a node of its group, from `start` to `stop`."""

    def __init__(self, broker: GroupBroker, options: ReplicationOptions) -> None:
        self._broker = broker
        self._options = options
        self._clock = BootClock()
        self._undo = AsyncExitStack()
        self._register: Register | None = None
        self._conductor: Conductor | FixedConductor | None = None
        self._node: GroupNode | None = None
        self._port: LinkPort | None = None
        self._task: asyncio.Task[None] | None = None
        self._caring: asyncio.Task[None] | None = None
        config = Path(broker.options.store.directory) / "config"
        self.kept_offsets = OffsetMerge(config / FILE_NAME if self.has_fixed_roles else None)
        self._save_at = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when a drained broker may stop; has an exception if it can no longer take part."""

    # ---- what the roles see

    @property
    def broker_id(self) -> int:
        return self._options.broker_id

    @property
    def node(self) -> GroupNode:
        """The store and the links. Raises RuntimeError before `start`."""
        if self._node is None:
            raise RuntimeError("this broker has not joined its group yet")
        return self._node

    @property
    def driver(self) -> NodeDriver:
        """The roles of this node. Raises RuntimeError before `start`."""
        if self._conductor is None:
            raise RuntimeError("this broker has not joined its group yet")
        return self._conductor.driver

    @property
    def epoch(self) -> int:
        # A new master registers before its driver has taken the role.
        return self.node.epoch or self.driver.epoch

    @property
    def replication_address(self) -> str:
        host, port = self._options.advertised_host, self._port.port if self._port is not None else 0
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def has_fixed_roles(self) -> bool:
        return self._options.register is None

    @property
    def takes_messages(self) -> bool:
        """Whether this node is a master that accepts messages now."""
        return self.driver.role is Role.MASTER and self.driver.gate is SendGate.OPEN

    @property
    def in_sync_ids(self) -> list[int]:
        """The ids of the nodes that hold everything that was acknowledged, as far as this node knows."""
        if isinstance(self._conductor, Conductor):
            record = self._conductor.session.view(self._clock.now()).record
            return [member.id for member in record.in_sync] if record is not None else []
        return sorted(shown_id(member.id) for member in self.driver.required)

    @property
    def scrub_peer(self) -> SourceLink | None:
        link = self.node.source_link
        return link if link is not None and link.source.state is SourceState.STREAMING else None

    async def wait_replicated(self) -> None:
        links = self.node.links
        if links is None:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "[ROLE] this broker is no longer master, and the next one may not have the change: try again",
            )
        point = self.node.journal.point
        if not await links.wait_state((point.epoch, point.version), self._options.state_timeout_s):
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "[REPLICAS] the change is stored here, but not every replica in sync confirmed it within "
                f"{self._options.state_timeout_s:g} s: try again later",
            )

    # ---- life

    async def start(self) -> None:
        """Opens the replication port and reaches the register.

        Raises OSError, ConfigError or RegisterUnavailable; `stop` undoes the steps that were done.
        """
        options, broker = self._options, self._broker
        settings = broker.options
        self._node = GroupNode(
            broker,
            broker.node.journal,
            options,
            settings.store,
            settings.broker.cluster,
            settings.broker.name,
            lambda: broker.address,
            self._clock,
        )
        self._node.on_repair = broker.node.scrubber.note_repair
        self._undo.push_async_callback(self._node.close)
        self._port = LinkPort(options, self._node, self._node.admitted)
        self._undo.push_async_callback(self._port.stop)
        if options.register is not None:
            self._register = open_register(options.register)
            self._undo.push_async_callback(self._register.close)
            await self._reach(self._register, options.register)
            self._conductor = self._conductor_with(self._register)
        else:
            self._conductor = self._fixed_conductor()

    async def _reach(self, register: Register, address: str) -> None:
        """Returns when the register has answered. Raises RegisterUnavailable."""
        problem = "it did not answer"
        try:
            async with asyncio.timeout(self._options.register_wait_s):
                while True:
                    try:
                        await register.cluster_id()
                        return
                    except RegisterUnavailable as error:
                        problem = str(error)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise RegisterUnavailable(
                f"the register {address} cannot be reached: {problem}",
                hint="check --register and whether etcd runs",
            ) from None

    def _conductor_with(self, register: Register) -> Conductor:
        broker, options = self._broker, self._options
        settings = broker.options.broker
        keys = GroupKeys(settings.cluster, settings.name)
        return Conductor(
            Identity(options.node_id, broker.address, self.replication_address, keys),
            self.node,
            register,
            self._files(),
            options.ha,
            self._clock,
            _new_incarnation,
        )

    def _fixed_conductor(self) -> FixedConductor:
        options, fixed = self._options, self._options.fixed
        assert fixed is not None, "a group has a register or fixed roles"
        return FixedConductor(
            options.node_id,
            Peer(FIXED_MASTER_ID, fixed.master_address or self.replication_address),
            fixed.replica_ids,
            self.node,
            self._files(),
            options.ha,
            self._clock,
            _new_incarnation,
        )

    def _files(self) -> NodeFiles:
        return NodeFiles(Path(self._broker.options.store.directory))

    def run(self) -> None:
        """Takes part in the group from now on."""
        assert self._conductor is not None
        self._task = asyncio.create_task(self._conductor.run())
        self._task.add_done_callback(self._conductor_ended)
        self._caring = asyncio.create_task(self._look_after_replica_regularly())

    async def stop(self) -> None:
        """Hands a mastership over if another node can take it, then leaves the group. Safe to call twice."""
        await self._hand_over()
        if isinstance(self._conductor, Conductor) and self._task is not None and not self._task.done():
            await self._conductor.leave(LEAVE_S)
        for task in (self._caring, self._task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        # While the links live, so that replicas get the last changes.
        await self._broker.step_down(leaves=True)
        await self._broker.node.leave_name_servers()
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()

    def _conductor_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.ended.done():
            return
        error = task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.ended.set_exception(error or CommandError("the node has left its group"))
        # Whoever does not wait for it gets no warning.
        self.ended.exception()

    async def _hand_over(self) -> None:
        conductor = self._conductor
        if not isinstance(conductor, Conductor) or conductor.driver.role is not Role.MASTER:
            return
        target = self._best_successor(conductor)
        if target is None:
            return
        with suppress(SwitchRefused, TimeoutError):
            async with asyncio.timeout(STOP_SWITCH_S):
                await conductor.switch(target)
                _log.info("handed the mastership over to node %d", target)

    def _best_successor(self, conductor: Conductor) -> int | None:
        """The id of the in-sync replica with the longest log; None if there is none with a sound one."""
        record = conductor.session.view(self._clock.now()).record
        if record is None:
            return None
        beats = conductor.session.beats
        damaged = {node_id for node_id, seen in beats.items() if seen.beat.damaged_at is not None}
        links = self.node.links.look() if self.node.links is not None else {}
        held = {
            member.id: links[member].flushed_end
            for member in record.in_sync
            if member in links and member.id not in damaged
        }
        return max(held, key=lambda node_id: (held[node_id], -node_id), default=None)

    async def _look_after_replica_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPLICA_INTERVAL_S)
            if (replica := self._broker.replica) is not None:
                try:
                    await self._look_after(replica)
                except Exception:
                    _log.exception("the regular work of a replica failed")

    async def _look_after(self, replica: Replica) -> None:
        """Registers a replica as soon as its log is worth reading, and sends its master the offsets that were
        committed here while there was none."""
        link, store = self.node.source_link, self._broker.store
        is_following = link is not None and link.source.state is SourceState.STREAMING
        is_new = store.end_offset() <= store.start_offset()
        if not is_new or (is_following and link is not None and link.is_caught_up):
            await replica.announce()
        self.kept_offsets.keep(await asyncio.to_thread(replica.state.offsets.take_kept))
        await self._save_kept_offsets()
        if self.kept_offsets and is_following and link is not None:
            await self.kept_offsets.send(link.client_address)

    async def _save_kept_offsets(self) -> None:
        """Not at every look, because there may be many."""
        if self._clock.now() >= self._save_at:
            await self.kept_offsets.save()
            self._save_at = self._clock.now() + SAVE_INTERVAL_S

    # ---- what operators ask

    @property
    def node_id(self) -> int:
        """The id of this node, as operators know it."""
        return self._options.broker_id

    def status(self) -> GroupStatus:
        """Returns the state of the group as this node sees it."""
        name, address = self._broker.options.broker.name, self._broker.address
        view = self._conductor.view if self._conductor is not None else None
        if view is None:
            return GroupStatus(name, 0, NO_MASTER, self._options.ha.min_in_sync, (), ())
        if isinstance(view, View) and isinstance(self._conductor, Conductor):
            return group_status(
                name, view, address, reason=self._reason(), same_id=self._conductor.session.namesake
            )
        assert isinstance(view, FixedView)
        link = self.node.source_link
        return fixed_status(name, view, address, link.client_address if link is not None else "")

    def _reason(self) -> str:
        """Why this node waits; for one that only follows, why its connection fails."""
        link = self.node.source_link
        return (link.complaint if link is not None else "") or self.driver.status

    async def switch(self, target: int, *, force: bool = False) -> None:
        """Hands the mastership over to another node. Raises SwitchRefused."""
        if force:
            raise SwitchRefused(
                "a node of a group hands over without losses or not at all",
                hint="use `metaq cluster switch --force` with --register",
            )
        conductor = self._conductor
        if not isinstance(conductor, Conductor):
            raise SwitchRefused(
                "this group has fixed roles, so its master cannot be switched",
                hint="give its nodes a --register",
            )
        await conductor.switch(target)

    async def drain(self, wait_s: float | None = None) -> None:
        """Hands a mastership over, leaves the set, relays requests for a while, and then lets the process
        stop. Returns when clients are relayed. Raises SwitchRefused."""
        conductor = self._conductor
        if not isinstance(conductor, Conductor):
            raise SwitchRefused(
                "this group has fixed roles, so nobody can take over", hint="stop the broker instead"
            )
        if conductor.driver.role is Role.MASTER:
            target = self._best_successor(conductor)
            if target is None:
                raise SwitchRefused(
                    "no replica is in sync, so nobody can take over without losses",
                    hint="wait until `metaq cluster status` shows a replica in sync",
                )
            await conductor.switch(target)
        if not await conductor.leave(LEAVE_S, for_good=True):
            raise SwitchRefused(
                "too few nodes would be in sync without this one, so it stays",
                hint="start another node first, or lower min_in_sync",
            )
        _log.info("drained: relays requests for %g s and then stops", self._options.relay_s)
        asyncio.get_running_loop().call_later(self._options.relay_s, self._drained)

    def _drained(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _new_incarnation() -> str:
    return secrets.token_hex(16)
