"""A broker: a node, and the role that it plays at the moment."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from metaq._core import Clock, Listener, Store
from metaq.broker.functions import Functions
from metaq.broker.master import Master
from metaq.broker.node import Node, open_node
from metaq.broker.options import BrokerOptions
from metaq.broker.state.clients import Change, ConsumerGroup
from metaq.broker.state.runtime_switches import Switches

_log = logging.getLogger(__name__)


class Broker:
    """One broker; `start` returns once clients may connect and the name servers have been tried.

    It starts as master. `step_down` and `become_master` change its role while it runs: clients stay
    connected, and in between their requests are refused with SERVICE_NOT_AVAILABLE.
    """

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.functions = Functions(options.filters)
        self._node: Node | None = None
        self._master: Master | None = None
        self._stepped_down_ms = clock.now_ms()
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
        if self._master is None:
            raise RuntimeError("this broker is not a master now")
        return self._master

    @property
    def is_master(self) -> bool:
        return self._master is not None

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
        """Raises ConfigError, StoreFailure, MetadataDamaged or OSError; nothing is left open then."""
        async with AsyncExitStack() as undo:
            await self.functions.load()
            self._node = await open_node(
                self.options, self.clock, self.functions, self._consumers_changed, undo
            )
            undo.push_async_callback(self.step_down)
            await self.become_master()
            self._undo = undo.pop_all()
        _log.info("broker %s is up at %s", self.options.broker.name, self.address)

    async def stop(self) -> None:
        """Gives up the role and closes everything. Safe to call twice."""
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()

    async def become_master(self) -> None:
        """Loads the data of the store's directory and serves it, with the parts of a new master.

        Raises RuntimeError if the broker is master already, or the errors of `start`. After an error, the
        broker is as it was before.
        """
        if self._master is not None:
            raise RuntimeError("this broker is a master already")
        node, master = self.node, Master(self.node)
        # Without a role the broker hears no client, so their silence meanwhile means nothing.
        node.clients.shift_time(self.clock.now_ms() - self._stepped_down_ms)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.step_down)
            self._master = master
            await master.start()
            # Before the address is announced, so that no client finds the port closed.
            node.let_clients_in()
            await master.announce()
            undo.pop_all()

    async def step_down(self) -> None:
        """Ends the role: answers whatever waits, then writes everything. Does nothing without a role."""
        if self._master is not None:
            try:
                await self._master.stop()
            finally:
                self._master = None
                self._stepped_down_ms = self.clock.now_ms()

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
        if self._master is not None:
            self._master.consumers_changed(group, change)
