"""Everything of a broker that lives as long as its process, whatever role it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from metaq._core import Clock, Closed, Listener, Store
from metaq.broker.functions import Functions
from metaq.broker.options import BrokerOptions
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.clients import Change, Clients, ConsumerGroup
from metaq.broker.state.journal import Journal
from metaq.broker.state.locks import Leases
from metaq.broker.state.runtime_switches import Switches
from metaq.protocol.dispatch import Unavailable
from metaq.protocol.pump import Pump

NO_ROLE = Unavailable(
    "[ROLE] this broker starts, stops or changes its role: try again later or ask another broker"
)
"""Answers the requests that cross while the node has no role; the data plane refuses the others."""


@dataclass(slots=True)
class Node:
    """The store, the listener with its connections, and the tables about these connections."""

    options: BrokerOptions
    clock: Clock
    functions: Functions
    store: Store
    journal: Journal
    listener: Listener
    clients: Clients
    pump: Pump
    started_ms: int
    switches: Switches = field(default_factory=Switches)
    leases: Leases = field(default_factory=dict)
    """Connections outlast a role, so the locks that consumers hold do as well."""

    @property
    def address(self) -> str:
        """The `host:port` that clients connect to."""
        host, _, port = self.options.broker.store_host.rpartition(":")
        return f"{host}:{self.listener.port if port == '0' else port}"

    @property
    def old_address(self) -> str | None:
        """The same for clients up to 4.4; None if that second port is not open."""
        port = self.listener.old_port
        return None if port is None else f"{self.address.rpartition(':')[0]}:{port}"

    def let_clients_in(self) -> None:
        """Accepts connections from now on; safe to call again."""
        self.listener.start()
        self.pump.start()


async def open_node(
    options: BrokerOptions,
    clock: Clock,
    functions: Functions,
    consumers_changed: Callable[[ConsumerGroup, Change], None],
    undo: AsyncExitStack,
) -> Node:
    """Opens the store and the journal and binds the ports. `undo` collects the steps that close them again.

    Raises StoreFailure, MetadataDamaged or OSError.
    """
    store = await asyncio.to_thread(Store, options.store, clock)
    undo.push_async_callback(asyncio.to_thread, store.close)
    journal = await open_journal(Path(options.store.directory))
    undo.push_async_callback(journal.close)
    listener = Listener(options.server, serves_broker=True)
    undo.push_async_callback(asyncio.to_thread, listener.stop)
    clients = Clients(clock, options.client_expiry_s, consumers_changed)

    def forget(closed: Closed) -> None:
        clients.remove_connection(closed.connection)

    pump = Pump(listener, NO_ROLE, on_closed=forget)
    undo.push_async_callback(pump.stop)
    return Node(options, clock, functions, store, journal, listener, clients, pump, started_ms=clock.now_ms())
