"""The answers of a node that has no role: it starts, stops, changes its role, or refuses its register."""

from __future__ import annotations

from typing import Final

from metaq.broker.requests.replication import ReplicationRequests
from metaq.ha.operators.group_control import GroupControl
from metaq.protocol.commands.replication import GetGroupStatus
from metaq.protocol.dispatch import Handlers, Request, Unavailable, Unfinished

NO_ROLE: Final = Unavailable(
    "[ROLE] this broker starts, stops or changes its role: try again later or ask another broker"
)
"""Answers the requests that cross while a lone broker has no role; the data plane refuses the others."""


class WithoutRole(Handlers):
    """Tells operators what a node knows of its group, and refuses all other requests.

    A node that refuses its register may have no role for days, and only the node itself can say why.
    """

    def __init__(self, control: GroupControl, requests: ReplicationRequests) -> None:
        super().__init__(requests)
        self._control = control

    def begin(self, request: Request) -> Unfinished | None:
        # Before its first look at the register, the node knows nothing.
        if request.code == GetGroupStatus.code and self._control.status().nodes:
            return super().begin(request)
        NO_ROLE.begin(request)
        return None
