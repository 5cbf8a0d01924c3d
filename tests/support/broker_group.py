"""Nodes of one group in the test's own process: real stores, links and, if wanted, a real register."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from metaq._core import Clock
from metaq.broker import Broker
from metaq.broker.replication.options import FixedRoles, ReplicationOptions
from metaq.ha.settings import HaSettings
from tests.support.broker_cluster import broker_options, small_store
from tests.support.processes import free_port
from tests.support.waiting import until

KEY = b"the key of the group in this test"


class BrokerGroup:
    """Starts and stops nodes by their id. With a register ids begin at 1; without one, 0 is the master."""

    def __init__(
        self,
        directory: Path,
        *nameservers: str,
        register: str | None = None,
        ids: tuple[int, ...] = (1, 2, 3),
        flush: Literal["sync", "async"] = "sync",
        ha: HaSettings | None = None,
    ) -> None:
        self._directory = directory
        self._nameservers = nameservers
        self._register = register
        self._flush: Literal["sync", "async"] = flush
        self._ha = ha or HaSettings()
        self._ids = ids
        self._link_ports = {node_id: free_port() for node_id in ids}
        # A broker also opens the port for clients up to 4.4, two below its own.
        self._ports = {node_id: free_port(neighbours=(-2,)) for node_id in ids}
        self.name = f"group-{uuid.uuid4().hex[:12]}"
        self.running: dict[int, Broker] = {}
        self.clock = Clock.ahead(0)

    async def __aenter__(self) -> BrokerGroup:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node_id in sorted(self.running, reverse=True):
            await self.stop(node_id)

    def directory_of(self, node_id: int) -> Path:
        return self._directory / f"node-{node_id}"

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self._ids:
            options = broker_options(self.directory_of(node_id), *self._nameservers)
            options = replace(
                options,
                # Tests share a register, so each has a group of its own.
                broker=replace(options.broker, name=self.name),
                store=small_store(self.directory_of(node_id), self._flush),
                server=replace(options.server, port=self._ports[node_id]),
                replication=ReplicationOptions(
                    broker_id=node_id,
                    host="127.0.0.1",
                    port=self._link_ports[node_id],
                    advertised_host="127.0.0.1",
                    register=self._register,
                    fixed=self._fixed(node_id),
                    key=KEY,
                    ha=self._ha,
                ),
            )
            broker = Broker(options, self.clock)
            await broker.start()
            self.running[node_id] = broker

    async def stop(self, node_id: int) -> None:
        await self.running.pop(node_id).stop()

    async def master(self) -> Broker:
        """Waits until a node serves as master and takes messages."""

        def find() -> Broker | None:
            for broker in self.running.values():
                if broker.is_master and broker.group is not None and broker.group.takes_messages:
                    return broker
            return None

        found = await until(find, 90, "a master that takes messages")
        assert found is not None
        return found

    async def in_sync(self, *node_ids: int) -> None:
        """Waits until the master counts exactly these nodes as in sync."""

        async def same() -> bool:
            master = await self.master()
            assert master.group is not None
            return set(master.group.in_sync_ids) == set(node_ids)

        await until(same, 90, f"in sync: {node_ids}")

    def _fixed(self, node_id: int) -> FixedRoles | None:
        if self._register is not None:
            return None
        replica_ids = tuple(other for other in self._ids if other != 0)
        if node_id == 0:
            return FixedRoles(None, replica_ids)
        return FixedRoles(f"127.0.0.1:{self._link_ports[0]}")
