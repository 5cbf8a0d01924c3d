"""Selects the node of a broker group that a queue is pulled from.

With `read_from="master"`, pulls go to the master, or to the replica that it suggests. With "replica", they go
to the replicas, and each queue keeps to one of them. Either way, a node that failed is avoided for a while if
the group has another one: a consumer reads on from a replica while the master is away.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

from metaq.client.session.broker_faults import BrokerFaults
from metaq.errors import NoRoute
from metaq.protocol.names import MASTER_ID

if TYPE_CHECKING:
    from metaq.client.session.routes import Queue, Routes

ReadFrom = Literal["master", "replica"]
"""The kind of node that a consumer reads from if the group has one."""


def check_read_from(read_from: ReadFrom) -> None:
    """Raises ValueError unless the value is one of the two."""
    if read_from not in ("master", "replica"):
        raise ValueError(f"read_from is {read_from!r}: it must be one of master, replica")


class ReadNode(NamedTuple):
    """One node of a broker group."""

    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


class ReadNodes:
    """The nodes that one consumer pulls from, and which of them failed recently."""

    def __init__(self, routes: Routes, read_from: ReadFrom = "master") -> None:
        self._routes = routes
        self._prefers_replicas = read_from == "replica"
        self._faults = BrokerFaults()

    def select(self, queue: Queue, suggested_id: int = MASTER_ID) -> ReadNode:
        """Returns the node for the next pull of a queue. Raises NoRoute if its broker has none.

        `suggested_id` is what the broker suggested with its last answer; it counts only if the master is
        preferred.
        """
        addresses = self._routes.brokers().get(queue.broker, {})
        if not addresses and ":" in queue.broker:
            return ReadNode(MASTER_ID, queue.broker)  # An address needs no route.
        if not addresses:
            raise NoRoute(
                f"no route contains a node of {queue.broker}",
                hint="the broker may be down, or not registered with this name server",
                retriable=True,
            )
        nodes = [
            ReadNode(broker_id, addresses[broker_id])
            for broker_id in self._order(queue, addresses, suggested_id)
        ]
        avoided = self._faults.avoided()
        return next((node for node in nodes if node.address not in avoided), nodes[0])

    def master(self, queue: Queue) -> ReadNode | None:
        """Returns the master of a queue if the route has one."""
        address = self._routes.address(queue.broker)
        return None if address is None else ReadNode(MASTER_ID, address)

    def failed(self, node: ReadNode) -> None:
        """Avoids a node for a while."""
        self._faults.failed(node.address)

    def worked(self, node: ReadNode) -> None:
        self._faults.worked(node.address)

    def avoided_s(self, node: ReadNode) -> float:
        """Returns for how many seconds a node is still avoided."""
        return dict(self._faults.left()).get(node.address, 0.0)

    def _order(self, queue: Queue, addresses: dict[int, str], suggested_id: int) -> list[int]:
        replicas = sorted(addresses.keys() - {MASTER_ID})
        if replicas:
            # Neighbouring queues go to different replicas, and every member of the group selects the same.
            turn = (zlib.crc32(f"{queue.topic}/{queue.broker}".encode()) + queue.id) % len(replicas)
            replicas = replicas[turn:] + replicas[:turn]
        order = [*replicas, MASTER_ID] if self._prefers_replicas else [suggested_id, MASTER_ID, *replicas]
        return [broker_id for broker_id in dict.fromkeys(order) if broker_id in addresses]
