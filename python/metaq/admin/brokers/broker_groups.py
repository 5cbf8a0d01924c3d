"""Broker groups, on asyncio: who is master, who is in sync, and orders to their nodes.

The state of a group comes from three places. The register, if its address is given, has the record that
counts. The nodes themselves are asked, and the master's answer says how far each replica is behind. Without a
register the name servers say where the nodes are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metaq.admin.brokers.clients import clients_of
from metaq.admin.brokers.group_views import NodeAnswer, combined, gone_group
from metaq.admin.calls import Calls, in_parallel
from metaq.admin.results import Switched
from metaq.digits import LONG_MAX, number_in
from metaq.errors import CommandError, MetaqError
from metaq.ha.operators.register_groups import RegisteredGroup, read_groups
from metaq.ha.register import Register
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.replication import (
    DrainBroker,
    GetGroupStatus,
    GroupStatus,
    NodeStatus,
    SwitchMaster,
)
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.names import MASTER_ID

STATUS_TIMEOUT_S: Final = 3.0
SWITCH_TIMEOUT_S: Final = 15.0
"""A master gives up a switch after 5 s, so an answer that takes longer is lost."""
DRAIN_TIMEOUT_S: Final = 30.0
TAKE_OVER_TIMEOUT_S: Final = 60.0
"""A broker with many topics takes a while to load them."""
_POLL_S: Final = 0.02
_STOP_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Survey:
    """The groups that were found, and remarks for the operator."""

    groups: tuple[GroupStatus, ...]
    notes: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    """Brokers that belong to no group, because they are not MetaQ's. A note names each of them."""


class BrokerGroups:
    """The broker groups of one cluster."""

    def __init__(
        self,
        calls: Calls,
        cluster: str | None,
        *,
        register: Register | None = None,
        asks_nameservers: bool = True,
    ) -> None:
        """Without a cluster, all brokers of the name servers count; a register needs its name."""
        self._calls = calls
        self._cluster = cluster
        self._register = register
        self._asks_nameservers = asks_nameservers

    async def survey(self, name: str | None = None) -> Survey:
        """Returns the state of all groups, or of one. Raises RegisterUnavailable or Unreachable."""
        registered = {}
        if self._register is not None and self._cluster is not None:
            registered = await read_groups(self._register, self._cluster)
        announced = await self._announced() if self._asks_nameservers else {}
        names = [found for found in sorted({*registered, *announced}) if name in (None, found)]
        places = {found: _places(registered.get(found), announced.get(found, {})) for found in names}
        answers = await in_parallel({place for each in places.values() for place in each}, self._ask)
        groups: list[GroupStatus] = []
        notes: list[str] = []
        left_out: set[str] = set()
        for found in names:
            group = registered.get(found)
            notes += group.faults if group is not None else []
            own = {place: answers[place] for place in places[found]}
            if group is None and all(_is_foreign(answer) for answer in own.values()):
                left_out.add(found)
                notes.append(f"{found} is not a broker of MetaQ that knows its group; it is left out")
                continue
            status = combined(
                found, {place: answer for place, answer in own.items() if _is_about(answer, found)}, group
            )
            groups.append(status if status is not None else gone_group(found, announced.get(found, {})))
        return Survey(tuple(groups), tuple(notes), frozenset(left_out))

    async def group(self, name: str) -> GroupStatus:
        """Returns the state of one group. Raises CommandError if there is none."""
        found = await self.survey(name)
        if not found.groups:
            hint = "; ".join(found.notes) or "`metaq cluster status` lists all groups"
            where = "the cluster" if self._cluster is None else f"cluster {self._cluster}"
            raise CommandError(f"there is no broker group {name} in {where}", hint=hint)
        return found.groups[0]

    async def switch(self, name: str, target: int) -> Switched:
        """Hands the mastership of a group over to another node, without losses.

        Raises CommandError or Refused if that is not possible; then the master stays.
        """
        group = await self.group(name)
        chosen = _node(group, target)
        master = group.node(group.master)
        if group.master == target and master is not None and master.state != "gone":
            return Switched(name, group.epoch, target, target, 0)
        if master is None or master.role != "master" or master.state == "gone":
            raise CommandError(
                f"{name} has no master that answers, so nobody can hand over",
                hint="wait for the election; if the nodes in sync are lost for good, see --force",
            )
        if not chosen.address:
            raise CommandError(f"nobody knows the address of node {target}", hint="is it running?")
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._calls.change(master.address, SwitchMaster(target=target), timeout_s=SWITCH_TIMEOUT_S)
        except Unreachable as error:
            # The order may have arrived, and only its answer may be lost.
            if not await self._becomes_master(chosen, SWITCH_TIMEOUT_S):
                raise CommandError(
                    f"node {master.id} did not answer, and node {target} did not become master: {error}",
                    hint="look at `metaq cluster status`",
                ) from None
        else:
            if not await self._becomes_master(chosen, SWITCH_TIMEOUT_S):
                raise CommandError(
                    f"node {target} is named as master, but does not serve yet",
                    hint="look at `metaq cluster status` and at its log",
                )
        took_ms = round((clock() - began) * 1000)
        served = await self._ask(chosen.address)
        epoch = served.epoch if isinstance(served, GroupStatus) else group.epoch + 1
        return Switched(name, epoch, master.id, target, took_ms)

    async def drain(self, broker: str, *, wait_s: int | None = None) -> tuple[str, GroupStatus | None]:
        """Drains a broker, given by `host:port`, `name/id`, or its name if it is alone. Returns its address,
        and its group as it sees it afterwards. Raises CommandError or Refused if it cannot be drained; then
        it serves on. A lone broker stops when its clients have left, or after `wait_s`."""
        address = broker if ":" in broker else await self._address_of(broker)
        await self._calls.change(address, DrainBroker(wait_s=wait_s), timeout_s=DRAIN_TIMEOUT_S)
        after = await self._ask(address)
        return address, after if isinstance(after, GroupStatus) else None

    async def wait_stopped(self, address: str, tell: Callable[[int], None], timeout_s: float) -> bool:
        """Waits until a drained broker has stopped; False after the time. Tells how many of its clients are
        connected, whenever that changes."""
        told: int | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        found = await clients_of(self._calls, address)
                    except Unreachable:
                        return True
                    except Refused:
                        found = None
                    connected = told if found is None else len({each.address for each in found.clients})
                    if connected is not None and connected != told:
                        told = connected
                        tell(connected)
                    await asyncio.sleep(_STOP_POLL_S)
        except TimeoutError:
            return False

    async def status_at(self, address: str) -> GroupStatus:
        """Returns the state of a group as the broker at this address sees it.

        Raises Unreachable or Refused.
        """
        reply = await self._calls.ask(address, GetGroupStatus(), timeout_s=STATUS_TIMEOUT_S)
        return GroupStatus.decode(reply.body)

    async def take_over(self, address: str, *, force: bool = False) -> None:
        """Lets a broker take over from the Apache master that it copies. Returns when it serves.

        Raises Refused if it cannot yet; then it goes on copying.
        """
        order = SwitchMaster(target=MASTER_ID, force=force)
        await self._calls.change(address, order, timeout_s=TAKE_OVER_TIMEOUT_S)

    # Inside

    async def _announced(self) -> dict[str, dict[int, str]]:
        """Returns the brokers that the name servers know: name → id → address, with 0 for the master."""
        table = (await self._calls.brokers()).broker_addr_table
        return {
            name: dict(data.broker_addrs)
            for name, data in table.items()
            if self._cluster is None or data.cluster in ("", self._cluster)
        }

    async def _ask(self, address: str) -> NodeAnswer:
        try:
            reply = await self._calls.ask(address, GetGroupStatus(), timeout_s=STATUS_TIMEOUT_S)
            return GroupStatus.decode(reply.body)
        except MetaqError as error:
            return error

    async def _becomes_master(self, node: NodeStatus, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    view = await self._ask(node.address)
                    own = view.node(node.id) if isinstance(view, GroupStatus) else None
                    if own is not None and own.role == "master":
                        return True
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False

    async def _address_of(self, broker: str) -> str:
        if "/" not in broker:
            nodes = (await self.group(broker)).nodes
            if len(nodes) == 1 and nodes[0].address:
                return nodes[0].address
        name, slash, digits = broker.rpartition("/")
        number = number_in(digits, LONG_MAX)
        if not slash or not name or number is None:
            raise CommandError(
                f'"{broker}" is not a broker', hint="write 127.0.0.1:10911 or broker-a/1, which is node 1"
            )
        node = _node(await self.group(name), number)
        if not node.address:
            raise CommandError(f"nobody knows the address of node {number}", hint="is it running?")
        return node.address


def _node(group: GroupStatus, node_id: int) -> NodeStatus:
    node = group.node(node_id)
    if node is None:
        known = ", ".join(str(node.id) for node in group.nodes)
        raise CommandError(
            f"{group.name} has no node {node_id}", hint=f"its nodes are {known or 'not known'}"
        )
    return node


def _places(registered: RegisteredGroup | None, announced: Mapping[int, str]) -> list[str]:
    beats: Iterable[str] = ()
    if registered is not None:
        beats = (beat.client_address for beat in registered.beats.values() if beat.client_address)
    return sorted({*announced.values(), *beats})


def _is_foreign(answer: NodeAnswer) -> bool:
    return isinstance(answer, Refused) and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _is_about(answer: NodeAnswer, name: str) -> bool:
    """Whether the answer is of a node of this group: a node of another one may have taken its address."""
    return not isinstance(answer, GroupStatus) or answer.name == name
