"""Selection of queues, avoided brokers, and routes."""

from __future__ import annotations

import asyncio

import pytest

from metaq.client.producer.queue_selection import QueueSelector, queue_of_key, require_queue
from metaq.client.session.routes import Queue, Route, Routes
from metaq.errors import NoRoute
from metaq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from metaq.protocol.command import Command
from metaq.protocol.commands.routes import GetBrokerClusterInfo, GetRouteInfoByTopic
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply
from tests.support.waiting import run


def route_data(*brokers: str, queues: int = 2, perm: int = 6) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[BrokerData(broker_addrs={0: f"{name}:1"}, broker_name=name) for name in brokers],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name in brokers
        ],
    )


def test_a_key_goes_where_java_would_send_it() -> None:
    route = Route.of("t", route_data("a", "b", queues=4))
    assert queue_of_key(route, "order-7") == route.writable[_java_hash("order-7") % 8]
    assert len({queue_of_key(route, f"k{number}") for number in range(100)}) == 8


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value)


def test_a_broker_that_failed_is_avoided_while_there_is_another() -> None:
    async def scenario() -> None:
        route = Route.of("t", route_data("a", "b"))
        selector = QueueSelector()
        assert {selector.next(route).broker for _ in range(4)} == {"a", "b"}
        selector.faults.failed("a")
        assert {selector.next(route).broker for _ in range(4)} == {"b"}
        assert {selector.next(route, {"b"}).broker for _ in range(4)} == {"b"}
        selector.faults.failed("b")
        assert {selector.next(route, {"b"}).broker for _ in range(4)} == {"a"}
        selector.faults.worked("a")
        assert {selector.next(route).broker for _ in range(4)} == {"a"}

    run(scenario)


def test_changes_of_faults_are_reported() -> None:
    async def scenario() -> None:
        told: list[list[str]] = []
        selector = QueueSelector()
        selector.faults.on_change = lambda: told.append([broker for broker, _ in selector.faults.left()])
        selector.faults.failed("a")
        selector.faults.failed("b")
        assert all(0 < seconds <= 1 for _, seconds in selector.faults.left())
        selector.faults.worked("a")
        selector.faults.worked("a")
        assert told == [["a"], ["a", "b"], ["b"]]

    run(scenario)


def test_a_queue_that_is_not_writable_is_an_error() -> None:
    async def scenario() -> None:
        with pytest.raises(NoRoute) as read_only:
            QueueSelector().next(Route.of("t", route_data("a", perm=4)))
        assert not read_only.value.retriable
        without_master = Route("t", {"a": {1: "a:2"}}, [], [Queue("t", "a", 0)])
        with pytest.raises(NoRoute) as no_master:
            QueueSelector().next(without_master)
        assert no_master.value.retriable
        replica_shown_as_master = route_data("a", perm=4)
        replica_shown_as_master.broker_datas[0].enable_acting_master = True
        with pytest.raises(NoRoute) as acting_master:
            QueueSelector().next(Route.of("t", replica_shown_as_master))
        assert acting_master.value.retriable
        with pytest.raises(NoRoute) as one_queue:
            require_queue(Route.of("t", replica_shown_as_master), Queue("t", "a", 0))
        assert one_queue.value.retriable
        with pytest.raises(NoRoute):
            require_queue(Route.of("t", route_data("a")), Queue("t", "a", 9))

    run(scenario)


class NameServer:
    """A name server whose answers a test sets."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicRouteData] = {}
        self.brokers: dict[str, BrokerData] = {"a": BrokerData()}
        self.is_down = False
        self.asked = 0

    async def ask(self, command: Command) -> Reply:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise Unreachable("down")
        if isinstance(command, GetBrokerClusterInfo):
            return Reply(0, None, {}, ClusterInfo(broker_addr_table=self.brokers).encode())
        assert isinstance(command, GetRouteInfoByTopic)
        data = self.topics.get(command.topic)
        return Reply(17, "none", {}, b"") if data is None else Reply(0, None, {}, data.encode())


def test_routes_are_asked_for_once_and_kept() -> None:
    async def scenario() -> None:
        server = NameServer()
        changes: list[int] = []
        routes = Routes(server.ask, lambda: changes.append(1))
        server.topics["t"] = route_data("a")
        found = await asyncio.gather(*(routes.get("t") for _ in range(5)))
        assert server.asked == 1
        assert found[0].readable == [Queue("t", "a", 0), Queue("t", "a", 1)]
        assert (routes.address("a"), routes.address("a", 1), len(changes)) == ("a:1", None, 1)
        heard: list[str] = []
        routes.watch(heard.append)
        server.topics["t"] = route_data("a", "b")
        await routes.refresh_all()
        assert (routes.address("b"), len(changes)) == ("b:1", 2)
        assert routes.known("u") is None
        await routes.get("t", refresh=True)
        assert heard == ["t"], "told once: the second answer brought nothing new"
        routes.unwatch(heard.append)
        server.is_down = True
        assert len((await routes.get("t", refresh=True)).brokers) == 2

    run(scenario)


def test_a_topic_that_is_not_there() -> None:
    async def scenario() -> None:
        server = NameServer()
        routes = Routes(server.ask, lambda: None)
        with pytest.raises(NoRoute, match="metaq topic create t") as off:
            await routes.get("t", creatable=True)
        assert not off.value.retriable
        server.brokers = {}
        with pytest.raises(NoRoute, match="no broker is registered") as empty:
            await routes.get("t", creatable=True)
        assert empty.value.retriable
        server.topics["TBW102"] = route_data("a", queues=8)
        new = await routes.get("t", creatable=True)
        assert (new.is_template, len(new.writable), new.readable) == (True, 4, [])
        with pytest.raises(NoRoute, match="send a message to it"):
            await routes.get("t")

    run(scenario)
