"""Slow requests that Python answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import pytest

from metaq._core import Listener
from metaq.protocol.commands import messages
from metaq.protocol.commands.clients import GetConsumerListByGroup
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from metaq.protocol.dispatch import Handlers, Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import LINES_MAX, PeerLog
from metaq.protocol.handling.process_options import ProcessOptions
from metaq.protocol.handling.pump import Pump
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.remoting import Connection
from metaq.server_logging import LogLevels, level_control
from metaq.settings import ServerSettings

SLOW_S = 0.03
LIMIT_MS = 20


class Slow:
    """Handlers, one of which takes its time."""

    def __init__(self) -> None:
        self.pump: Pump | None = None

    @handles(GetRouteInfoByTopic)
    async def get_route(self, command: GetRouteInfoByTopic, request: Request) -> Response:
        await asyncio.sleep(SLOW_S)
        return Response()

    @handles(GetConsumerListByGroup)
    async def get_consumers(self, command: GetConsumerListByGroup, request: Request) -> Response:
        assert self.pump is not None
        with self.pump.waiting_for_client():
            await asyncio.sleep(SLOW_S)
        return Response()


@contextlib.asynccontextmanager
async def serving(limit_ms: int) -> AsyncIterator[tuple[Connection, SlowRequests]]:
    handlers = Slow()
    listener = Listener(ServerSettings("127.0.0.1", 0), serves_broker=False)
    slow_requests = SlowRequests(listener, limit_ms, PeerLog())
    pump = handlers.pump = Pump(listener, Handlers(handlers), slow_requests=slow_requests)
    pump.start()
    listener.start()
    slow_requests.start()
    connection = await Connection.open(f"127.0.0.1:{listener.port}")
    try:
        yield connection, slow_requests
    finally:
        await connection.close()
        await slow_requests.stop()
        await pump.stop()
        await asyncio.to_thread(listener.stop)


async def ask(limit_ms: int, *commands: GetRouteInfoByTopic | GetConsumerListByGroup) -> None:
    async with serving(limit_ms) as (connection, _):
        for command in commands:
            (await connection.call(command)).check()
        # The answer is sent before the line is written.
        await asyncio.sleep(0)


def test_a_slow_request_is_logged_with_its_topic_and_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(ask(LIMIT_MS, GetRouteInfoByTopic("Orders")))
    (line,) = caplog.messages
    found = re.fullmatch(
        r"slow request GetRouteInfoByTopic \(105\) from 127\.0\.0\.1:\d+ for topic Orders took (\d+) ms: "
        r"(?:waited in the queue \d+ ms, )?handled (\d+) ms",
        line,
    )
    assert found, line
    assert int(found[1]) >= int(found[2]) >= LIMIT_MS


def test_the_time_that_other_clients_took_is_a_part(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(ask(LIMIT_MS, GetConsumerListByGroup("shop")))
    (line,) = caplog.messages
    assert " for group shop took " in line and "waited for other clients" in line


def test_quick_requests_are_not_logged_and_zero_switches_it_off(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(ask(60_000, GetRouteInfoByTopic("Orders")))
    asyncio.run(ask(0, GetRouteInfoByTopic("Orders")))
    assert caplog.messages == []


def test_a_client_causes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(ask(1, *[GetRouteInfoByTopic("Orders")] * (LINES_MAX + 3)))
    assert len(caplog.messages) == LINES_MAX


class Taken:
    """A listener that has slow requests of the data plane."""

    def __init__(self, *slow: object, left_out: int = 0) -> None:
        self._slow = (list(slow), left_out)

    def set_slow_request_ms(self, limit_ms: int) -> None:
        pass

    def take_slow_requests(self) -> tuple[list[object], int]:
        return self._slow


def test_slow_requests_of_the_data_plane(caplog: pytest.LogCaptureFixture) -> None:
    remote = "10.0.0.1:5"
    sent = SimpleNamespace(
        remote=remote, code=310, requests=1, topic="Orders", parts=[("flush", 1500), ("replicas", 0)]
    )
    passed = SimpleNamespace(remote=remote, code=11, requests=7, topic=None, parts=[("handled", 1200)])
    late = SimpleNamespace(remote=remote, code=None, requests=1, topic=None, parts=[("written", 3000)])
    listener = Taken(sent, passed, late, left_out=4)
    SlowRequests(listener, 1000, PeerLog()).write_native()  # type: ignore[arg-type]
    assert caplog.messages == [
        f"slow request {messages.SendMessageV2.__name__} (310) from 10.0.0.1:5 for topic Orders took 1500 ms:"
        " waited for the disk 1500 ms",
        f"slow request {messages.PullMessage.__name__} (11) from 10.0.0.1:5 took 1200 ms: handled 1200 ms "
        "(7 such requests were handled together)",
        "slow client 10.0.0.1:5: answers to it waited 3000 ms until it read them",
        "4 more requests were slow and are not in this log",
    ]


@pytest.fixture
def levels() -> Iterator[None]:
    before, logger = level_control.levels, logging.getLogger("metaq")
    level = logger.level
    yield
    level_control.set(before)
    logger.setLevel(level)


def test_options_of_the_process_change_at_once(levels: None) -> None:
    limit = SimpleNamespace(limit_ms=1000)
    options = ProcessOptions(limit)
    assert options.values() == {"log_level": str(level_control.levels), "slow_request_ms": "1000"}
    change = options.change_of("slow_request_ms", "50")
    assert limit.limit_ms == 1000, "a change is checked before it is applied"
    change()
    assert limit.limit_ms == 50
    options.change_of("log_level", "error,metaq.protocol=debug")()
    assert level_control.levels == LogLevels("error", {"metaq.protocol": "debug"})
    assert logging.getLogger("metaq.protocol.handling.pump").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("metaq.broker").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("slow_request_ms", "soon", "takes a number from 0"),
        ("slow_request_ms", "-1", "takes a number from 0"),
        ("slow_request_ms", str(2**31), "takes a number from 0"),
        ("slow_request_ms", "1" * 5_000, "takes a number from 0"),
        ("log_level", "loud", "must be one of debug"),
        ("log_level", "info,metaq.borker=debug", "there is no logger metaq.borker"),
    ],
)
def test_wrong_values_are_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        ProcessOptions(SimpleNamespace(limit_ms=0)).change_of(name, value)
