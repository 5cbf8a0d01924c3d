"""The operator's side of a node: its group's state, and the orders that change its master.

`metaq.broker.requests.replication` answers requests through `GroupControl`. A broker with replicas implements
it over its conductor; `group_status.py` makes the state from the conductor's view. `broker/lone_drain.py`
implements it for a broker without replicas, `broker/replication/apache_control.py` for one that copies an
Apache master, and `StandAlone` for one that has taken over from it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final, Protocol

from metaq.ha.conducting.conductor import SwitchRefused
from metaq.protocol.commands.replication import GroupStatus, NodeStatus
from metaq.protocol.names import MASTER_ID

__all__ = ["GroupControl", "GroupStatus", "NodeStatus", "StandAlone", "SwitchRefused"]


class GroupControl(Protocol):
    """One node's group, for an operator."""

    @property
    def node_id(self) -> int:
        """The id of this node in its group."""
        ...

    def status(self) -> GroupStatus:
        """Returns the state of the group as this node sees it."""
        ...

    def switch(self, target: int, *, force: bool = False) -> Coroutine[None, None, None]:
        """Makes another node master and returns when it is. Raises SwitchRefused.

        `force` accepts losses. Only a broker that copies an Apache master obeys it.
        """
        ...

    def drain(self, wait_s: float | None = None) -> Coroutine[None, None, None]:
        """Hands the mastership over if this node has it, and leaves the in-sync set. Raises SwitchRefused.

        Returns when clients are relayed to the new master. The process stops by itself when the routes of all
        clients are up to date. A lone broker refuses messages instead, and waits `wait_s` for its clients.
        """
        ...


class StandAlone:
    """The group of a broker without replicas."""

    node_id: Final = MASTER_ID

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address

    def status(self) -> GroupStatus:
        node = NodeStatus(MASTER_ID, self._address, "master", "in sync", lag_bytes=0, lag_ms=0)
        return GroupStatus(self._name, 0, MASTER_ID, 1, (MASTER_ID,), (node,))

    async def switch(self, target: int, *, force: bool = False) -> None:
        raise SwitchRefused(f"broker {self._name} has no replicas, so there is no other node to switch to")

    async def drain(self, wait_s: float | None = None) -> None:
        raise SwitchRefused(
            f"broker {self._name} has no replicas, so nobody can take over; stop it with SIGTERM instead"
        )
