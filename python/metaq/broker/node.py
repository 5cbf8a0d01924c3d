"""Everything of a broker that lives as long as its process, whatever role it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from metaq._core import Clock, Closed, Listener, Store
from metaq.broker.background.closed_connections import ClosedConnections
from metaq.broker.background.name_server_link import NameServerLink
from metaq.broker.background.registration import Registration
from metaq.broker.functions import Functions
from metaq.broker.lone_drain import LoneDrain
from metaq.broker.options import BrokerOptions
from metaq.broker.replication.offset_merge import OffsetMerge
from metaq.broker.requests.without_role import NO_ROLE
from metaq.broker.scrubbing.scrubber import Peer, Scrubber
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Change, ConsumerGroup
from metaq.broker.state.locks import Leases
from metaq.broker.state.run_time_options import RunTimeOptions
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.topics import Topics
from metaq.ha.operators.group_control import GroupControl
from metaq.journal.journal import Journal
from metaq.memory import MemoryTrim
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.pump import Pump
from metaq.protocol.handling.slots import QuestionLimits
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.settings import ServerSettings
from metaq.work_pools import WorkPools


class Replicated(GroupControl, Protocol):
    """The group, as the roles of this broker see it."""

    @property
    def broker_id(self) -> int:
        """The id of this node while it is a replica."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that this node serves or follows."""
        ...

    @property
    def replication_address(self) -> str: ...

    @property
    def has_fixed_roles(self) -> bool:
        """No replica ever becomes master."""
        ...

    @property
    def scrub_peer(self) -> Peer | None:
        """The master that this node follows, if it does."""
        ...

    @property
    def kept_offsets(self) -> OffsetMerge:
        """The offsets that were committed at this node while there was no master."""
        ...

    async def wait_replicated(self) -> None:
        """Returns when the replicas that must hold the control state have all of it. Raises Refused."""
        ...


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
    slow_requests: SlowRequests
    memory_trim: MemoryTrim
    started_ms: int
    scrubber: Scrubber = field(init=False)
    run_time: RunTimeOptions = field(init=False)
    """The options with their sources, and changes of them. It replaces `options` when some change."""
    pools: WorkPools = field(default_factory=WorkPools)
    switches: Switches = field(default_factory=Switches)
    leases: Leases = field(default_factory=dict)
    """Connections outlast a role, so the locks that consumers hold do as well."""
    group: Replicated | None = None
    """The group whose node this broker is; None for a lone broker."""
    lone_drain: LoneDrain | None = None
    """Takes a lone broker out of service; None in a group."""
    without_role: Handlers = NO_ROLE
    """Answers the requests that cross while the node has no role; the data plane refuses the others."""
    metrics_address: str | None = None
    """The address of /metrics and /readyz; None if this process does not serve them."""
    name_servers: list[NameServerLink] = field(default_factory=list)
    """The connections to name servers that the last role handed over to the next one."""

    def __post_init__(self) -> None:
        self.scrubber = Scrubber(self.options.scrub, self, Path(self.options.store.directory), self.clock)
        self.run_time = RunTimeOptions(self)

    @property
    def scrub_peer(self) -> Peer | None:
        """The master that this node follows, if it does."""
        return None if self.group is None else self.group.scrub_peer

    async def wait_replicated(self) -> None:
        """Returns when the replicas that must hold the control state have all of it. Raises Refused."""
        if self.group is not None:
            await self.group.wait_replicated()

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

    def new_registration(
        self,
        broker_id: int,
        topics: Topics,
        permission: Callable[[], int],
        apache_ha_port: int | None = None,
    ) -> Registration:
        """Returns the registration of a new role. With an `apache_ha_port`, name servers show that port to
        Apache slaves, in place of the group's replication port."""
        group, links = self.group, self.name_servers
        self.name_servers = []
        apache_ha_address = None
        if apache_ha_port is not None:
            apache_ha_address = f"{self.address.rpartition(':')[0]}:{apache_ha_port}"
        if group is None:
            return Registration(
                self.options,
                broker_id,
                topics,
                self.address,
                permission,
                replication_address=apache_ha_address,
            )
        return Registration(
            self.options,
            broker_id,
            topics,
            self.address,
            permission,
            state_version=lambda: group.epoch,
            replication_address=apache_ha_address or group.replication_address,
            acts_as_master=True,
            links=links,
        )

    async def end_registration(self, registration: Registration, *, leaves: bool) -> None:
        """Ends the registration of a role. Unless the broker `leaves` for good, the next role goes on with
        its connections, and the group is never missing in the routes."""
        if leaves or self.group is None:
            await registration.stop()
        else:
            self.name_servers = await registration.hand_over()

    async def leave_name_servers(self) -> None:
        """Closes connections that no role has taken over, which removes this broker from the routes."""
        links, self.name_servers = self.name_servers, []
        for link in links:
            await link.close()

    def let_clients_in(self) -> None:
        """Accepts connections from now on; safe to call again."""
        self.listener.start()
        self.pump.start()
        self.memory_trim.start()
        self.slow_requests.start()


def question_limits(settings: ServerSettings) -> QuestionLimits:
    return QuestionLimits(
        count_max=settings.questions_max,
        bytes_max=settings.questions_bytes_max,
        per_connection_max=settings.questions_per_connection_max,
        bytes_per_connection_max=settings.questions_bytes_per_connection_max,
        per_client_max=settings.questions_per_client_max,
    )


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
    opened: list[Node] = []

    async def close_store() -> None:
        # A replica may have opened its store anew.
        await asyncio.to_thread((opened[0].store if opened else store).close)

    undo.push_async_callback(close_store)
    replication = options.replication
    has_peers = replication is not None and replication.takes_state
    journal = await open_journal(Path(options.store.directory), has_peers=has_peers)
    undo.push_async_callback(journal.close)
    listener = Listener(options.server, serves_broker=True)
    undo.push_async_callback(asyncio.to_thread, listener.stop)
    clients = Clients(
        clock, options.client_expiry_s, consumers_changed, options.clients, listener.count_group_memory
    )

    closed_connections = ClosedConnections(clients)
    undo.callback(closed_connections.stop)

    def forget(closed: Closed) -> None:
        closed_connections.add(closed.connection)

    slow_requests = SlowRequests(listener, options.server.slow_request_ms)
    undo.push_async_callback(slow_requests.stop)
    pump = Pump(
        listener,
        NO_ROLE,
        on_closed=forget,
        questions=question_limits(options.server),
        slow_requests=slow_requests,
    )
    undo.push_async_callback(pump.stop)
    memory_trim = MemoryTrim(listener, options.server.memory_trim_interval_s, options.server.freed_memory_ms)
    undo.push_async_callback(memory_trim.stop)
    started_ms = clock.now_ms()
    node = Node(
        options,
        clock,
        functions,
        store,
        journal,
        listener,
        clients,
        pump,
        slow_requests,
        memory_trim,
        started_ms=started_ms,
        switches=Switches(options.server_side_reset, options.store_replies),
    )
    opened.append(node)
    return node
