"""Orders to broker groups: the master is found, the outcome is checked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from metaq.admin.brokers import broker_groups
from metaq.admin.brokers.broker_groups import BrokerGroups
from metaq.admin.calls import Calls
from metaq.errors import CommandError
from metaq.protocol.bodies import BrokerData, ClusterInfo
from metaq.protocol.command import Command
from metaq.protocol.commands.replication import (
    DrainBroker,
    GetGroupStatus,
    GroupStatus,
    NodeStatus,
    SwitchMaster,
)
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply

PLACES = {1: "h:1", 2: "h:2", 3: "h:3"}


class Nodes:
    """The requests of a group of three, without a network. Takes the place of `Calls`."""

    def __init__(self) -> None:
        self.master = 1
        self.epoch = 5
        self.dead: set[str] = set()
        self.foreign: set[str] = set()
        self.refusal = ""
        self.loses_answer = False
        self.orders: list[tuple[str, Command]] = []

    async def brokers(self) -> ClusterInfo:
        places = {0 if number == self.master else number: place for number, place in PLACES.items()}
        group = BrokerData(places, "g", "DefaultCluster")
        return ClusterInfo(broker_addr_table={"g": group, "x": BrokerData({0: "h:9"}, "x", "Other")})

    async def ask(self, address: str, command: Command, **_: Any) -> Reply:
        assert isinstance(command, GetGroupStatus)
        if address in self.dead:
            raise Unreachable(f"{address}: refused")
        if address in self.foreign:
            raise Refused(3, "unknown")
        nodes = tuple(
            NodeStatus(number, place, "master" if number == self.master else "replica", "in sync", 0, 0)
            for number, place in PLACES.items()
        )
        return Reply(0, None, {}, GroupStatus("g", self.epoch, self.master, 2, (1, 2, 3), nodes).encode())

    async def change(self, address: str, command: Command, body: bytes = b"", **_: Any) -> Reply:
        self.orders.append((address, command))
        if self.refusal:
            raise Refused(604, self.refusal)
        if isinstance(command, SwitchMaster):
            self.master, self.epoch = command.target, self.epoch + 1
        if self.loses_answer:
            raise Unreachable(f"{address}: no answer")
        return Reply(0, None, {}, b"")


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def groups(nodes: Nodes) -> BrokerGroups:
    return BrokerGroups(cast(Calls, nodes), "DefaultCluster")


def test_only_the_groups_of_the_cluster_are_shown(groups: BrokerGroups, nodes: Nodes) -> None:
    [group] = asyncio.run(groups.survey()).groups
    assert (group.name, group.master, len(group.nodes)) == ("g", 1, 3)
    assert asyncio.run(groups.survey("other")).groups == ()
    nodes.foreign = set(PLACES.values())
    survey = asyncio.run(groups.survey())
    assert survey.groups == () and "g is not a broker of MetaQ" in survey.notes[0]
    nodes.foreign, nodes.dead = set(), set(PLACES.values())
    [group] = asyncio.run(groups.survey()).groups
    assert {node.state for node in group.nodes} == {"gone"}


def test_the_master_gets_the_order(groups: BrokerGroups, nodes: Nodes) -> None:
    done = asyncio.run(groups.switch("g", 2))
    assert [(address, cast(SwitchMaster, order).target) for address, order in nodes.orders] == [("h:1", 2)]
    assert (done.former, done.master, done.epoch) == (1, 2, 6)


def test_a_node_that_is_master_already_gets_no_order(groups: BrokerGroups, nodes: Nodes) -> None:
    assert asyncio.run(groups.switch("g", 1)).took_ms == 0
    assert nodes.orders == []


def test_a_refusal_is_passed_on(groups: BrokerGroups, nodes: Nodes) -> None:
    nodes.refusal = "node 2 is not in sync"
    with pytest.raises(Refused, match="node 2 is not in sync"):
        asyncio.run(groups.switch("g", 2))


def test_a_switch_whose_answer_was_lost_has_happened(groups: BrokerGroups, nodes: Nodes) -> None:
    nodes.loses_answer = True
    assert asyncio.run(groups.switch("g", 2)).master == 2


def test_a_switch_that_did_not_happen_is_not_called_done(
    groups: BrokerGroups, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_groups, "SWITCH_TIMEOUT_S", 0.05)
    nodes.loses_answer = True

    async def lost(address: str, command: Command, body: bytes = b"", **_: Any) -> Reply:
        raise Unreachable(f"{address}: no answer")

    monkeypatch.setattr(nodes, "change", lost)
    with pytest.raises(CommandError, match="node 1 did not answer, and node 2 did not become master"):
        asyncio.run(groups.switch("g", 2))


def test_a_dead_master_cannot_hand_over(groups: BrokerGroups, nodes: Nodes) -> None:
    nodes.dead = {"h:1"}
    with pytest.raises(CommandError, match="g has no master that answers"):
        asyncio.run(groups.switch("g", 2))
    assert nodes.orders == []


@pytest.mark.parametrize(("name", "error"), [("g", "g has no node 7"), ("nobody", "no broker group nobody")])
def test_unknown_names_are_explained(groups: BrokerGroups, name: str, error: str) -> None:
    with pytest.raises(CommandError, match=error):
        asyncio.run(groups.switch(name, 7))


@pytest.mark.parametrize("broker", ["h:3", "g/3"])
def test_a_broker_is_drained_by_address_or_by_name(groups: BrokerGroups, nodes: Nodes, broker: str) -> None:
    address, group = asyncio.run(groups.drain(broker))
    assert address == "h:3" and group is not None and group.master == 1
    assert [(place, type(order)) for place, order in nodes.orders] == [("h:3", DrainBroker)]


@pytest.mark.parametrize("broker", ["g", "g/", "/1", "g/x", "g/²"])
def test_other_names_of_brokers_are_refused(groups: BrokerGroups, broker: str) -> None:
    with pytest.raises(CommandError, match="is not a broker"):
        asyncio.run(groups.drain(broker))
