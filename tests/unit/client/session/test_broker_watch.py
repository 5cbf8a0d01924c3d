"""Brokers that no route shows: masters that must know a checker, and brokers that come back."""

from __future__ import annotations

import asyncio

from metaq.client.session.broker_watch import BrokerWatch
from metaq.client.session.routes import Routes
from metaq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from metaq.protocol.command import Command
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.reply import Reply


class NameServer:
    """Shows brokers by name; all of them have the topic."""

    def __init__(self, *brokers: str) -> None:
        self.brokers = list(brokers)
        self.asked: list[type[Command]] = []
        self.beats: list[frozenset[str]] = []
        self.routes = Routes(self.ask, lambda: None)
        self.watch = BrokerWatch(self.routes, self.ask, self.beat)

    async def beat(self) -> None:
        self.beats.append(self.watch.masters)

    async def ask(self, command: Command) -> Reply:
        self.asked.append(type(command))
        brokers = [BrokerData({0: f"{name}:1"}, name, "c") for name in self.brokers]
        if isinstance(command, GetBrokerClusterInfo):
            table = {broker.broker_name: broker for broker in brokers}
            return Reply(0, None, {}, ClusterInfo(table, {"c": self.brokers}).encode())
        queues = [QueueData(name, 6, 2, 0, 2) for name in self.brokers]
        return Reply(0, None, {}, TopicRouteData(brokers, queue_datas=queues).encode())


def test_a_broker_that_returns_is_in_the_routes_after_one_look() -> None:
    async def scenario() -> None:
        names = NameServer("a", "b")
        await names.routes.get("t")
        await names.watch.look()
        assert GetBrokerClusterInfo not in names.asked, "nothing is missing"
        names.brokers = ["a"]
        await names.routes.get("t", refresh=True)
        for _ in range(3):
            await names.watch.look()
        assert "b" not in names.routes.brokers()
        names.brokers = ["a", "b"]
        await names.watch.look()
        assert "b" in names.routes.brokers()
        asked = len(names.asked)
        await names.watch.look()
        assert len(names.asked) == asked, "nobody is asked without need"

    asyncio.run(scenario())


def test_every_master_is_found_for_a_checker() -> None:
    async def scenario() -> None:
        names = NameServer("a", "b")
        names.watch.wants_masters = True
        await names.watch.look()
        assert names.beats == [{"a:1", "b:1"}]
        await names.watch.look()
        assert len(names.asked) == 1, "it is not asked all the time"
        names.watch._masters_due = 0.0
        names.brokers.append("later")
        await names.watch.look()
        assert names.beats[1:] == [{"a:1", "b:1", "later:1"}]

    asyncio.run(scenario())
