"""Waits until a development cluster serves: every group has a master, and all its nodes are in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from metaq.admin.brokers.broker_groups import BrokerGroups
from metaq.admin.calls import Calls
from metaq.dev.plan import CLUSTER, Plan
from metaq.errors import MetaqError
from metaq.ha.register import Register, RegisterUnavailable
from metaq.protocol.bodies import ClusterInfo
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.names import MASTER_ID

POLL_S: Final = 0.2
_ASK_TIMEOUT_S: Final = 2.0

Report = Callable[[str], None]


async def register_answers(register: Register, check: Callable[[], None]) -> None:
    """Returns when the register answers. `check` is called in between and may raise."""
    while True:
        check()
        try:
            await register.cluster_id()
            return
        except RegisterUnavailable:
            await asyncio.sleep(POLL_S)


class Readiness:
    """Looks at a cluster again and again, and reports what has changed."""

    def __init__(self, plan: Plan, register: Register, report: Report) -> None:
        self._plan = plan
        self._report = report
        self._calls = Calls(
            ";".join(plan.nameserver_addresses), timeout_s=_ASK_TIMEOUT_S, retry_s=0.0, is_partial=True
        )
        self._groups = BrokerGroups(self._calls, CLUSTER, register=register, asks_nameservers=False)
        self.missing: dict[str, str] = dict.fromkeys(plan.group_names, "no node has answered")
        """The groups that are not ready, and why not."""

    async def close(self) -> None:
        await self._calls.close()

    async def wait(self, check: Callable[[], None]) -> None:
        """Returns when all groups are ready. `check` is called in between and may raise."""
        while self.missing:
            check()
            try:
                missing = await self._look()
            except MetaqError as error:
                missing = {name: str(error) for name in self.missing}
            for name, reason in missing.items():
                if self.missing.get(name) != reason:
                    self._report(f"{name}: {reason}")
            for name in self.missing.keys() - missing.keys():
                self._report(f"{name} is ready")
            self.missing = missing
            if missing:
                await asyncio.sleep(POLL_S)

    async def _look(self) -> dict[str, str]:
        survey = await self._groups.survey()
        found = {group.name: group for group in survey.groups}
        missing = {}
        for name in self._plan.group_names:
            reason = lacks(found.get(name), self._plan.size.replicas)
            if not reason:
                reason = await self._lacks_routes(name, found[name])
            if reason:
                missing[name] = reason
        return missing

    async def _lacks_routes(self, name: str, group: GroupStatus) -> str:
        """Returns which name server does not name the master yet; empty if all of them do."""
        master = group.node(group.master)
        for address in self._plan.nameserver_addresses:
            reply = await self._calls.ask(address, GetBrokerClusterInfo())
            known = ClusterInfo.decode(reply.body).broker_addr_table.get(name)
            if known is None or master is None or known.broker_addrs.get(MASTER_ID) != master.address:
                return f"name server {address} does not know its master yet"
        return ""


def lacks(group: GroupStatus | None, replicas: int) -> str:
    """Returns what a group lacks to be ready; empty if nothing."""
    if group is None:
        return "no node has joined yet"
    master = group.node(group.master)
    if master is None or master.state == "gone":
        return "no master yet"
    ready: Sequence[int] = [node.id for node in group.nodes if node.state == "in sync"]
    if master.id not in ready or len(ready) < replicas:
        return f"node {master.id} is master, {len(ready)} of {replicas} nodes are in sync"
    return ""
