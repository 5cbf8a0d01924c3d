"""Routes with many brokers, which strangers can make: each is written on a thread, step by step."""

from __future__ import annotations

import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from metaq._core import Clock
from metaq.nameserver import long_routes
from metaq.nameserver.brokers import Registration
from metaq.nameserver.key_values import KeyValues
from metaq.nameserver.long_routes import BROKERS_MAX, LongRoutes
from metaq.nameserver.options import Options
from metaq.nameserver.requests import LISTS_WAITING_MAX, RouteRequests
from metaq.nameserver.route_table import RouteTable
from metaq.nameserver.topic_table import STEP_TOPICS
from metaq.protocol.bodies import (
    READ,
    WRITE,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.commands.routes import (
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNameServer,
)
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.process_options import ProcessOptions
from metaq.settings import NameServerSettings
from tests.support.fake_request import FakeRequest

LONG = 4 * BROKERS_MAX


def registration(number: int, *topics: str, version: int = 1, **more: Any) -> Registration:
    name = f"b{number:04}"
    table = {topic: TopicConfig(topic_name=topic) for topic in topics or ("Long", name)}
    return Registration(
        **{
            "cluster": f"c{number % 2}",
            "name": name,
            "broker_id": 0,
            "address": f"10.0.0.1:{number + 1}",
            "topics": TopicConfigTable(DataVersion(version), table),
            "connection": number + 1,
            **more,
        }
    )


class Desk:
    def __init__(self, brokers: int = LONG) -> None:
        self.routes = RouteTable(limits=NameServerSettings(nameserver_brokers_per_address_max=2_000))
        for number in range(brokers):
            self.routes.register(registration(number), 0)
        options = Options("127.0.0.1:9876", ProcessOptions(SimpleNamespace(limit_ms=0)))
        requests = RouteRequests(self.routes, KeyValues(), options, clock=Clock.manual(1))
        self.handlers = Handlers(requests)

    def begin(self, command: Any, **more: Any) -> tuple[FakeRequest, asyncio.Future[None] | None]:
        request = FakeRequest(command.code, command.to_fields(), **more)
        rest = self.handlers.begin(request)
        return request, None if rest is None else asyncio.ensure_future(rest)

    async def ask(self, command: Any, **more: Any) -> bytes:
        request, rest = self.begin(command, **more)
        if rest is not None:
            await rest
        [(code, remark, _, body)] = request.answers
        assert code == 0, remark
        return body


def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongRoutes, "_written", lambda *_: pytest.fail("it was written again"))


def test_a_short_route_is_answered_at_once_and_a_long_one_on_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written_on: list[str] = []
    write = long_routes.LongRoutes._written

    def note(*arguments: Any) -> bytes | None:
        written_on.append(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(LongRoutes, "_written", note)

    async def run() -> None:
        for brokers in (BROKERS_MAX, BROKERS_MAX + 1):
            _, rest = Desk(brokers).begin(GetRouteInfoByTopic("Long"))
            assert (rest is not None) == (brokers > BROKERS_MAX)
            if rest is not None:
                await rest
        assert len(written_on) == 1 and written_on[0].startswith("metaq-routes")

    asyncio.run(run())


@pytest.mark.parametrize("more", [{}, {"zone_mode": "true", "zone_name": "east"}], ids=["all", "zone"])
@pytest.mark.parametrize("version", [30, 513])
def test_a_long_route_is_the_same_as_a_short_one(
    monkeypatch: pytest.MonkeyPatch, version: int, more: dict[str, str]
) -> None:
    async def run() -> None:
        desk = Desk()
        desk.routes.register(registration(1, "Long", "Other", zone="East", version=2), 0)
        replica = registration(0, broker_id=3, address="10.0.0.2:1", connection=9_000)
        desk.routes.register(replica, 0)
        long = await desk.ask(GetRouteInfoByTopic("Long", **more), version=version)
        monkeypatch.setattr("metaq.nameserver.requests.BROKERS_MAX", LONG)
        assert long == await desk.ask(GetRouteInfoByTopic("Long", **more), version=version)
        assert b'{0:"10' in long if version == 30 else b'{"0":"10' in long
        assert len(TopicRouteData.decode(long).broker_datas) == (1 if more else LONG)

    asyncio.run(run())


def test_a_long_route_is_written_once_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        desk = Desk()
        routes = desk.routes
        many = ("Long", *(f"T{number}" for number in range(3 * STEP_TOPICS)))
        steps = routes.register_in_steps(registration(9, *reversed(many), version=9, zone="y"), 0)
        changes = [
            lambda: None,
            lambda: routes.register(registration(1, "Other", "Long", zone="z", version=2), 1),
            lambda: routes.register(registration(1, "Other", "Long", zone="z", version=2, cluster="c0"), 2),
            lambda: routes.unregister("c0", "10.0.0.1:3"),
            lambda: routes.connection_closed(5),
            lambda: routes.put_queues("Long", [QueueData("b0000", 6, 9, 0, 9)]),
            lambda: routes.wipe_write_permission("b0000"),
            lambda: routes.add_write_permission("b0000"),
            *[lambda: next(steps)] * 4,
            lambda: routes.delete_topic("Long", "c1"),
        ]
        question = long_routes.Question("Long", True, None, None, True)
        seen = set()
        for change in changes:
            change()
            body = await desk.ask(GetRouteInfoByTopic("Long"))
            assert body == LongRoutes(routes)._written(question)
            seen.add(body)
            with monkeypatch.context() as patched:
                no_thread(patched)
                _, rest = desk.begin(GetRouteInfoByTopic("Long"))
                assert rest is None, "it is answered at once"
        assert len(seen) == 9, "the others change nothing that it shows"
        routes.expire(10**9)
        request, rest = desk.begin(GetRouteInfoByTopic("Long"))
        assert rest is None and request.answers[0][0] == 17

    asyncio.run(run())


def test_the_routes_that_are_kept_have_a_limit() -> None:
    async def run() -> None:
        desk = Desk()
        kept = LongRoutes(desk.routes, kept_bytes_max=150_000)
        request = FakeRequest()
        for zone in range(50):
            question = long_routes.Question("Long", True, str(zone), None, True)
            body = await kept.body(question, request)
            assert body is not None and kept.kept(question) == body
        assert kept._kept_bytes == sum(len(body) for _, body in kept._kept.values()) <= 150_000
        assert 1 <= len(kept._kept) < 50

    asyncio.run(run())


def test_a_topic_that_goes_meanwhile_has_no_route() -> None:
    async def run() -> None:
        desk = Desk()
        request, rest = desk.begin(GetRouteInfoByTopic("Long"))
        assert rest is not None
        desk.routes.delete_topic("Long")
        await rest
        [(code, remark, _, _)] = request.answers
        assert code == 17 and remark is not None and "'Long'" in remark

    asyncio.run(run())


def test_brokers_come_and_go_while_long_answers_are_written() -> None:
    async def run() -> None:
        desk = Desk()
        for round_number in range(60):
            commands = (
                GetRouteInfoByTopic("Long"),
                GetBrokerClusterInfo(),
                GetSystemTopicListFromNameServer(),
            )
            begun = [desk.begin(command, version=30) for command in commands]
            number = round_number % LONG
            while not all(rest is None or rest.done() for _, rest in begun):
                desk.routes.unregister(f"c{number % 2}", f"10.0.0.1:{number + 1}")
                await asyncio.sleep(0)
                desk.routes.register(registration(number), 0)
                number = (number + 1) % LONG
                await asyncio.sleep(0)
            assert [request.answers[0][0] for request, _ in begun] == [0, 0, 0]
        await asyncio.sleep(0)
        info = ClusterInfo.decode(await desk.ask(GetBrokerClusterInfo()))
        assert len(info.broker_addr_table) == LONG and list(info.cluster_addr_table) == ["c0", "c1"]

    asyncio.run(run())


def test_a_name_that_loses_its_master_loses_the_permission_of_its_topics_in_steps() -> None:
    count = 20 * STEP_TOPICS
    topics = [f"T{number}" for number in range(count)]
    routes = RouteTable()
    master = registration(0, *topics, acting_master=True)
    routes.register(master, 0)
    routes.register(
        registration(0, *topics, broker_id=1, address="10.0.0.2:1", connection=9, acting_master=True), 0
    )
    data = dict(routes._topics.on("b0000"))
    assert routes.unregister("c0", "10.0.0.1:1")

    def writable() -> int:
        return sum(1 for one in data.values() if one.perm & WRITE)

    assert writable() == count, "none has been changed yet"
    route = routes.route("T5")
    assert route is not None and route.queue_datas[0].perm == READ, "who asks sees it"
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.2:1"}
    left = [writable()]
    while routes.sweep():
        left.append(writable())
    assert len(left) == 20 and all(
        before - after <= STEP_TOPICS for before, after in itertools.pairwise(left)
    )
    assert writable() == 0


def test_a_master_that_is_back_before_the_last_step_has_its_permissions() -> None:
    topics = [f"T{number}" for number in range(3 * STEP_TOPICS)]
    routes = RouteTable()
    master = registration(0, *topics, acting_master=True)
    routes.register(master, 0)
    routes.register(
        registration(0, *topics, broker_id=1, address="10.0.0.2:1", connection=9, acting_master=True), 0
    )
    for _ in range(2):
        routes.unregister("c0", "10.0.0.1:1")
        routes.sweep()
        routes.register(master, 0)
    while routes.sweep():
        pass
    for topic in topics:
        route = routes.route(topic)
        assert route is not None and route.queue_datas[0].perm == READ | WRITE
    assert routes.wipe_write_permission("b0000") == len(topics)
    assert routes.add_write_permission("b0000") == len(topics)
    while routes.sweep():
        pass
    assert all(data.perm == READ | WRITE for data in routes._topics.on("b0000").values())


def test_many_connections_of_one_address_do_not_delay_a_list_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over, order = threading.Event(), list[int]()

    async def run() -> None:
        desk = Desk(2)
        topics = desk.routes.topics
        monkeypatch.setattr(desk.routes, "topics", lambda *_: is_over.wait(60) and topics())
        begun = []
        for number in range(LISTS_WAITING_MAX + 9):
            command = GetAllTopicListFromNameServer()
            begun.append(desk.begin(command, connection=number, remote=f"10.0.0.1:{number + 1}"))
            await asyncio.sleep(0)
        refused = [request for request, _ in begun if request.answers]
        assert len(refused) == 8, "one runs, and the limit waits"
        assert "of this address wait" in str(refused[0].answers[0][1])
        honest, rest = desk.begin(GetBrokerClusterInfo(), connection=9_999, remote="10.0.0.2:1")
        assert rest is not None
        rest.add_done_callback(lambda _: order.append(sum(bool(request.answers) for request, _ in begun)))
        is_over.set()
        await asyncio.gather(rest, *(other for _, other in begun if other is not None))
        assert honest.answers[0][0] == 0
        assert order[0] - len(refused) <= 3, "it waited for one turn of the other address"

    asyncio.run(run())
