"""Routes of broker groups whose nodes change their roles."""

from __future__ import annotations

import asyncio

import pytest

from metaq.client.producer.queue_selection import writable_queues
from metaq.client.session.answers import read_body
from metaq.client.session.routes import Queue, Route, Routes
from metaq.errors import NoRoute
from metaq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from metaq.protocol.command import Command
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.errors import ProtocolError
from metaq.protocol.reply import Reply


class NameServer:
    """Shows one group: its nodes by id, and in routes an acting master while it has no other."""

    def __init__(self, nodes: dict[int, str]) -> None:
        self.nodes = nodes
        self.asked: list[type[Command]] = []
        self.changed: list[str] = []
        self.routes = Routes(self.ask, lambda: None)
        self.routes.watch(self.changed.append)

    async def ask(self, command: Command) -> Reply:
        self.asked.append(type(command))
        if isinstance(command, GetBrokerClusterInfo):
            data = BrokerData(dict(self.nodes), "b", "c", True)
            return Reply(0, None, {}, ClusterInfo({"b": data}, {"c": ["b"]}).encode())
        shown = dict(self.nodes)
        if 0 not in shown:
            shown[0] = shown.pop(min(shown))
        queues = QueueData("b", 6 if 0 in self.nodes else 4, 2, 0, 2)
        body = TopicRouteData([BrokerData(shown, "b", "c", True)], queue_datas=[queues]).encode()
        return Reply(0, None, {}, body)


def test_a_replica_that_acts_as_master_is_seen_as_what_it_is() -> None:
    async def scenario() -> None:
        names = NameServer({0: "one:1", 2: "two:1", 3: "three:1"})
        assert len((await names.routes.get("t")).writable) == 2
        assert GetBrokerClusterInfo not in names.asked, "a name server is asked twice only in doubt"
        del names.nodes[0]
        route = await names.routes.get("t", refresh=True)
        assert route.brokers == {"b": {2: "two:1", 3: "three:1"}}
        assert len(route.readable) == 2
        with pytest.raises(NoRoute) as caught:
            writable_queues(route)
        assert caught.value.retriable, "a master may be elected"
        assert (names.routes.address("b"), names.routes.group_address("b")) == (None, "two:1")

    asyncio.run(scenario())


def test_one_topic_moves_the_addresses_of_all() -> None:
    async def scenario() -> None:
        names = NameServer({0: "one:1", 2: "two:1"})
        for topic in ("first", "second"):
            await names.routes.get(topic)
        names.changed.clear()
        names.nodes = {0: "two:1", 1: "one:1"}
        await names.routes.get("first", refresh=True)
        assert names.changed == ["first", "second"]
        known = names.routes.known("second")
        assert known is not None
        assert known.brokers == {"b": {0: "two:1", 1: "one:1"}}
        assert len(known.writable) == 2

    asyncio.run(scenario())


def test_a_master_that_is_back_makes_all_topics_writable_again() -> None:
    async def scenario() -> None:
        names = NameServer({0: "one:1", 2: "two:1"})
        for topic in ("first", "second"):
            await names.routes.get(topic)
        names.nodes = {2: "two:1"}
        await names.routes.get("first", refresh=True)
        assert (await names.routes.get("second")).writable == []
        names.nodes = {0: "two:1"}
        await names.routes.get("first", refresh=True)
        assert len((await names.routes.get("second")).writable) == 2, "asked for again"

    asyncio.run(scenario())


def route_of(*queues: QueueData) -> Route:
    brokers = [BrokerData({0: "one:1"}, data.broker_name, "c") for data in queues]
    return Route.of("t", TopicRouteData(brokers, queue_datas=list(queues)))


def test_a_broker_that_claims_too_many_queues_is_left_out_alone() -> None:
    most = 2**31 - 1
    route = route_of(QueueData("liar", 6, most, 0, most), QueueData("b", 6, 8, 0, 4))
    assert (len(route.readable), len(route.writable)) == (8, 4)
    assert route.left_out == {"liar"}


def test_many_brokers_and_repeated_lines_stay_within_the_queues_of_a_route() -> None:
    liars = [QueueData(f"liar{number}", 6, 20_000, 0, 20_000) for number in range(500)]
    route = route_of(QueueData("b", 6, 8, 0, 8), QueueData("b", 6, 8, 0, 8), *liars)
    assert len(route.readable) == len(set(route.readable)) == 40_008
    assert Queue("t", "b", 7) in route.readable and len(route.left_out) == 498


def test_the_loop_goes_on_while_a_long_route_is_read() -> None:
    """A name server may answer in Java's way, which is slow to read."""
    entries = ",".join(f'"{number}":{{"brokerAddrs":{{0:"a:1"}}}}' for number in range(8000))
    body = f'{{"brokerAddrTable":{{{entries}}}}}'.encode()

    async def scenario() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        assert len((await read_body(ClusterInfo, body)).broker_addr_table) == 8000
        ticking.cancel()
        return ticks

    assert asyncio.run(scenario()) > 10


def test_a_route_in_javas_way_has_a_limit() -> None:
    entries = ",".join(f'"{number}":{{"brokerAddrs":{{0:"a:1"}}}}' for number in range(40_000))
    with pytest.raises(ProtocolError, match="the limit"):
        ClusterInfo.decode(f'{{"brokerAddrTable":{{{entries}}}}}'.encode())
