"""Large registrations: nobody who asks for a route waits for them."""

from __future__ import annotations

import asyncio
import struct
import threading
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from metaq._core import Clock
from metaq.nameserver import requests
from metaq.nameserver.brokers import Registration
from metaq.nameserver.key_values import KeyValues
from metaq.nameserver.large_json import LargeTable
from metaq.nameserver.options import Options
from metaq.nameserver.registration_body import read_topics
from metaq.nameserver.requests import BrokerRequests
from metaq.nameserver.route_table import RouteTable
from metaq.nameserver.topic_table import STEP_TOPICS
from metaq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from metaq.protocol.commands.cluster import RegisterBroker, UnregisterBroker
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.process_options import ProcessOptions
from tests.support.fake_request import FakeRequest

COUNT = 20 * STEP_TOPICS
ADDRESS = "127.0.0.1:10911"


def table(count: int = COUNT, counter: int = 1) -> TopicConfigTable:
    topics = {f"topic-{number}": TopicConfig(topic_name=f"topic-{number}") for number in range(count)}
    return TopicConfigTable(DataVersion(counter), topics)


def code_of(request: FakeRequest) -> int:
    ((code, _, _, _),) = request.answers
    return code


def registration(count: int = COUNT) -> Registration:
    return Registration("c", "b", 0, ADDRESS, table(count), connection=1)


class Desk:
    def __init__(self) -> None:
        self.routes = RouteTable()
        self.brokers = BrokerRequests(
            self.routes,
            KeyValues(),
            Options("127.0.0.1:9876", ProcessOptions(SimpleNamespace(limit_ms=0))),
            Clock.manual(1_000_000),
        )
        self.handlers = Handlers(self.brokers)

    def register(self, body: bytes) -> tuple[FakeRequest, asyncio.Task[None] | None]:
        command = RegisterBroker("b", ADDRESS, "c", 0)
        return self.ask(FakeRequest(command.code, command.to_fields(), body, connection=1, version=513))

    def unregister(self) -> tuple[FakeRequest, asyncio.Task[None] | None]:
        command = UnregisterBroker("b", ADDRESS, "c", 0)
        return self.ask(FakeRequest(command.code, command.to_fields(), connection=1))

    def ask(self, request: FakeRequest) -> tuple[FakeRequest, asyncio.Task[None] | None]:
        rest = self.handlers.begin(request)
        return request, None if rest is None else asyncio.ensure_future(rest)


def part(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


PLAIN = RegisterBrokerBody([], table()).encode()
COMPRESSED = zlib.compress(
    part(DataVersion(1).encode())
    + struct.pack(">i", COUNT)
    + b"".join(part(f"topic-{number} 4 4 6 SINGLE_TAG".encode()) for number in range(COUNT))
)


def test_topics_are_taken_and_dropped_in_steps() -> None:
    routes = RouteTable()
    steps = routes.register_in_steps(registration(), 0)
    taken = [len(routes.topics()) for _ in steps]
    assert taken == [STEP_TOPICS * step for step in range(1, 21)]
    routes.register(Registration("c", "other", 0, "127.0.0.1:10912", table(5)), 0)
    assert routes.unregister("c", ADDRESS)
    assert routes.route("topic-9") is None, "they are hidden at once"
    route = routes.route("topic-3")
    assert route is not None and [data.broker_name for data in route.queue_datas] == ["other"]
    routes.register(registration(7), 0)
    dropped = 0
    while routes.sweep():
        dropped += 1
    assert 15 <= dropped <= 20
    assert sorted(routes.topics()) == [f"topic-{number}" for number in range(7)]
    assert routes.route("topic-6") is not None


@pytest.mark.parametrize("body", [PLAIN, COMPRESSED], ids=["plain", "compressed"])
def test_the_loop_turns_while_a_large_registration_is_taken(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_on: list[str] = []

    def read(*arguments: Any) -> TopicConfigTable:
        # Servers of other tests in this process also register, in their own threads.
        if body in arguments:
            read_on.append(threading.current_thread().name)
        return read_topics(*arguments)

    monkeypatch.setattr(requests, "read_topics", read)

    async def run() -> None:
        desk = Desk()
        request, task = desk.register(body)
        assert task is not None, "it does not hold up the loop"
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert code_of(request) == 0 and turns >= 20
        assert len(desk.routes.topics()) == COUNT
        assert read_on and all(name.startswith("metaq-registrations") for name in read_on)

    asyncio.run(run())


def test_what_comes_after_a_large_registration_is_done_after_it() -> None:
    async def run() -> None:
        desk = Desk()
        large, first = desk.register(PLAIN)
        small, second = desk.register(RegisterBrokerBody([], table(3, counter=2)).encode())
        gone, third = desk.unregister()
        assert first is not None and second is not None and third is not None
        await asyncio.gather(first, second, third)
        assert (code_of(large), code_of(small), code_of(gone)) == (0, 0, 0)
        assert desk.routes.route("topic-1") is None
        again, task = desk.register(RegisterBrokerBody([], table(3, counter=3)).encode())
        assert task is None and code_of(again) == 0, "nothing is under way any more"

    asyncio.run(run())


def test_a_broker_that_leaves_meanwhile_is_not_registered() -> None:
    async def run() -> None:
        desk = Desk()
        _, task = desk.register(PLAIN)
        assert task is not None
        await asyncio.sleep(0)
        desk.brokers.connection_closed(1)
        desk.routes.connection_closed(1)
        await task
        assert desk.routes.topics() == []

    asyncio.run(run())


def test_many_connections_of_one_address_do_not_delay_a_broker_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over, order = threading.Event(), []

    def read(command: RegisterBroker, *_: Any) -> TopicConfigTable:
        is_over.wait(60)
        order.append(command.broker_addr)
        return table(3)

    monkeypatch.setattr(requests, "read_topics", read)

    async def run() -> None:
        desk = Desk()
        tasks = []
        for number in range(41):
            # The last one is the broker; all others come from the address of a stranger.
            host = "10.0.0.1" if number < 40 else "10.0.0.2"
            command = RegisterBroker(f"b{number}", f"{host}:{number + 1}", "c", 0)
            _, task = desk.ask(
                FakeRequest(
                    *(command.code, command.to_fields(), PLAIN),
                    connection=number,
                    remote=f"{host}:{50_000 + number}",
                )
            )
            assert task is not None
            tasks.append(task)
            await asyncio.sleep(0)
        is_over.set()
        await asyncio.gather(*tasks)
        assert len(order) == 41 and order.index("10.0.0.2:41") <= 2

    asyncio.run(run())


def test_a_table_of_topics_deep_in_others_is_not_looked_for() -> None:
    """The reader goes into one wrapper and no further."""
    body = b'{"topicConfigSerializeWrapper":' * 5_000 + b"{}" + b"}" * 5_000
    assert LargeTable(body, 10).topics == {}
