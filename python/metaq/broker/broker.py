"""A broker: a node, and the role that it plays at the moment."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from metaq._core import Clock, Listener, Store, StoreFailure
from metaq.broker.functions import Functions
from metaq.broker.lone_drain import LoneDrain
from metaq.broker.master import Master
from metaq.broker.node import Node, open_node
from metaq.broker.options import BrokerOptions
from metaq.broker.replica import Replica
from metaq.broker.replication.apache_control import ApacheControl
from metaq.broker.replication.apache_start import ApacheCopy, plan_copy
from metaq.broker.replication.group import Group
from metaq.broker.requests.replication import ReplicationRequests
from metaq.broker.requests.without_role import WithoutRole
from metaq.broker.state.consumer_group import Change, ConsumerGroup, Member
from metaq.broker.state.runtime_switches import Switches
from metaq.journal.journal import Entry
from metaq.settings import StoreSettings

_log = logging.getLogger(__name__)

STATE_PART_ENTRIES: Final = 500
"""How many entries of replaced control state a replica applies before other work has its turn."""


class Broker:
    """One broker; `start` returns once clients may connect and the name servers have been tried.

    A lone broker starts as master. A broker that is one node of a group (`options.replication`) plays the
    roles that its group gives it. A broker that copies an Apache master (`options.apache_master`) has no role
    until an operator lets it take over; then it is master. `step_down`, `become_master` and `become_replica`
    change its role while it runs: clients stay connected, and in between their requests are refused with
    SERVICE_NOT_AVAILABLE.
    """

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        if options.replication is not None:
            options = dataclasses.replace(
                options,
                store=dataclasses.replace(options.store, replicated=True, damaged_messages="stop"),
                offsets_persist_interval_s=options.replication.offsets_persist_interval_s,
                # Decisions about the group must not wait for a name server.
                register_wait_s=0.0,
            )
        self.options = options
        self.clock = clock
        self.functions = Functions(options.filters)
        self.group: Group | None = None
        self.apache: ApacheControl | None = None
        """Copies an Apache master, or did so until this broker took over; None for other brokers."""
        self._node: Node | None = None
        self._role: Master | Replica | None = None
        self._stepped_down_ms = clock.now_ms()
        self._hold_end: asyncio.TimerHandle | None = None
        self._undo = AsyncExitStack()

    @property
    def node(self) -> Node:
        """Raises RuntimeError unless the broker runs."""
        if self._node is None:
            raise RuntimeError("this broker does not run")
        return self._node

    @property
    def master(self) -> Master:
        """Raises RuntimeError unless the broker is master now."""
        if not isinstance(self._role, Master):
            raise RuntimeError("this broker is not a master now")
        return self._role

    @property
    def replica(self) -> Replica | None:
        """The role, if it is that of a replica."""
        return self._role if isinstance(self._role, Replica) else None

    @property
    def role(self) -> Master | Replica | None:
        return self._role

    @property
    def is_master(self) -> bool:
        return isinstance(self._role, Master)

    @property
    def ended(self) -> asyncio.Future[None] | None:
        """Is done when a drained broker may stop, and fails if the broker cannot go on; None if nothing but
        its owner ends it."""
        if self.group is not None:
            return self.group.ended
        if self.apache is not None:
            return self.apache.ended
        drain = None if self._node is None else self._node.lone_drain
        return None if drain is None else drain.ended

    @property
    def store(self) -> Store:
        return self.node.store

    @property
    def listener(self) -> Listener:
        return self.node.listener

    @property
    def switches(self) -> Switches:
        return self.node.switches

    @property
    def address(self) -> str:
        """The `host:port` that clients connect to."""
        return self.node.address

    @property
    def old_address(self) -> str | None:
        """The same for clients up to 4.4; None if that second port is not open."""
        return self.node.old_address

    async def start(self) -> None:
        """Raises ConfigError, CommandError, StoreFailure, MetadataDamaged, RegisterUnavailable or OSError;
        nothing is left open then."""
        async with AsyncExitStack() as undo:
            await self.functions.load()
            copy = await plan_copy(self.options)
            self._node = await open_node(
                self.options, self.clock, self.functions, self._consumers_changed, undo
            )
            self._node.clients.member_changed = self._member_changed
            self._node.clients.convert = self._convert_member
            undo.push_async_callback(self.step_down)
            if copy is not None:
                await self._copy_apache(copy, undo)
            elif self.options.replication is None:
                node = self._node
                node.lone_drain = LoneDrain(self.options.broker.name, lambda: node.address, node.clients)
                undo.push_async_callback(node.lone_drain.stop)
                await self.become_master()
            else:
                await self._join_group(undo)
            undo.push_async_callback(self.node.scrubber.stop)
            self.node.scrubber.start()
            self._undo = undo.pop_all()
        _log.info("broker %s is up at %s", self.options.broker.name, self.address)

    async def _join_group(self, undo: AsyncExitStack) -> None:
        assert self.options.replication is not None
        group = Group(self, self.options.replication)
        undo.push_async_callback(group.stop)
        await group.start()
        self.group = self.node.group = group
        requests = ReplicationRequests(group, self.store, self.clock, self.node.pools)
        self.node.without_role = WithoutRole(group, requests)
        await self.node.pump.hand_over(self.node.without_role)
        self.node.let_clients_in()
        group.run()

    async def _copy_apache(self, copy: ApacheCopy, undo: AsyncExitStack) -> None:
        self.apache = ApacheControl(self, copy)
        undo.push_async_callback(self.apache.stop)
        await self.apache.start()

    async def stop(self) -> None:
        """Gives up the role and closes everything. Safe to call twice."""
        if self._hold_end is not None:
            self._hold_end.cancel()
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()

    # ---- roles

    async def become_master(self, epoch: int = 0) -> None:
        """Loads the data of the store's directory and serves it, with the parts of a new master.

        Raises RuntimeError if the broker is master already, or the errors of `start`. After an error, the
        broker is as it was before.
        """
        if self.is_master:
            raise RuntimeError("this broker is a master already")
        await self.step_down()
        node = self.node
        if epoch:
            # The journal has the locks of all nodes.
            node.leases.clear()
        master = Master(node)
        # Without a role the broker hears no client, so their silence meanwhile means nothing.
        node.clients.shift_time(self.clock.now_ms() - self._stepped_down_ms)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.step_down)
            self._role = master
            await master.start()
            # Before the address is announced, so that no client finds the port closed.
            node.let_clients_in()
            await master.announce()
            undo.pop_all()

    async def become_replica(self) -> None:
        """Serves reads from the store, unless the broker does so already. Raises the errors of `start`."""
        if self.replica is not None:
            return
        await self.step_down()
        node = self.node
        node.leases.clear()
        replica = Replica(node)
        node.journal.begin_following()
        node.clients.shift_time(self.clock.now_ms() - self._stepped_down_ms)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.step_down)
            self._role = replica
            await replica.start()
            undo.pop_all()

    async def step_down(self, *, deposed: bool = False, leaves: bool = False) -> None:
        """Ends the role: answers whatever waits, then writes everything. Does nothing without a role.

        A master that is `deposed` waits for no confirmation and writes nothing. A broker that `leaves` takes
        no other role, so it is removed from the routes.
        """
        role = self._role
        if role is None:
            return
        try:
            if isinstance(role, Master):
                await role.stop(deposed=deposed, leaves=leaves)
            else:
                await role.stop(leaves=leaves)
        finally:
            self._role = None
            self._stepped_down_ms = self.clock.now_ms()

    async def reopen_store(self, change: Callable[[StoreSettings], None]) -> None:
        """Closes the store, changes its files, and opens it again. A replica then goes on serving reads."""
        was_replica = self.replica is not None
        await self.step_down(deposed=True)
        node, settings = self.node, self.node.options.store
        try:
            await asyncio.to_thread(node.store.close)
        except StoreFailure:
            # Then its files are as after a kill, and the start recovers them.
            if not (node.store.sync_failed() or node.store.is_log_cut()):
                raise
        await asyncio.to_thread(change, settings)
        node.store = await asyncio.to_thread(Store, settings, self.clock)
        if was_replica:
            await self.become_replica()

    async def follow_state(self, entries: Sequence[Entry]) -> None:
        """Lets a replica serve by control state that was replaced as a whole, while other work goes on."""
        for start in range(0, len(entries), STATE_PART_ENTRIES):
            if self.replica is None:
                return
            self.replica.state.follow(entries[start : start + STATE_PART_ENTRIES])
            await asyncio.sleep(0)

    async def hold_deliveries(self) -> None:
        """Delivers no delayed message until `release_requests`: the next master goes on with the next one."""
        if isinstance(self._role, Master) and not await self._role.state.delays.hold():
            _log.warning("a delivery of delayed messages takes long, and the next master may repeat it")

    async def drain_state(self) -> None:
        """Writes everything that the next master must know, while no request changes it."""
        if isinstance(self._role, Master):
            await self._role.persist()

    def hold_requests(self, timeout_ms: int) -> None:
        """Keeps requests that change something, until `release_requests` or the time is over."""
        self.listener.hold_appends(timeout_ms)
        self.node.pump.hold()
        self._end_hold_later(timeout_ms)

    def release_requests(self) -> None:
        """Lets the requests that were held be handled by the role of now."""
        self._end_hold_later(None)
        if isinstance(self._role, Master):
            self._role.state.delays.release()
        self.node.pump.release()
        self.listener.release_appends()

    def _end_hold_later(self, timeout_ms: int | None) -> None:
        """The listener refuses what it held by itself. Requests for Python are handled then."""
        if self._hold_end is not None:
            self._hold_end.cancel()
        self._hold_end = (
            asyncio.get_running_loop().call_later(timeout_ms / 1000, self.node.pump.release)
            if timeout_ms is not None
            else None
        )

    def relay_to(self, address: str | None) -> None:
        """Relays requests that only a master can handle to this address; None: refuses them."""
        self.listener.set_relay(address)

    # ---- time, for tests

    def skip_time(self, by_ms: int, *, silent: bool = False) -> None:
        """The clock was moved by this much, and that counts as time that passed. Clients did meanwhile what
        they do, unless they were `silent`; leases run on."""
        self.master.housekeeping.skip_time(by_ms)
        if not silent:
            self.node.clients.shift_time(by_ms)

    async def catch_up(self) -> None:
        """Does all work that is due after a clock jump at once, instead of a little later."""
        await self.master.catch_up()

    def _consumers_changed(self, group: ConsumerGroup, change: Change) -> None:
        if self._role is not None:
            self._role.consumers_changed(group, change)

    def _convert_member(self, member: Member) -> object:
        return None if self._role is None else self._role.state.policy.convert_member(member)

    def _member_changed(self, group: str, connection: int) -> None:
        if self._role is not None:
            self._role.state.policy.send_member(group, connection)
