"""Queues of a consumer that was killed are free after seconds; those of one that lives stay its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metaq.broker.background.vanished_owners import QUEUES_AT_ONCE, SIGN_WAIT_S, VanishedOwners
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.broker.state.locks import QueueLocks
from metaq.protocol.bodies import ConsumerData, TopicConfig
from metaq.protocol.java_json import MessageQueue

ALL = [MessageQueue("broker-a", queue_id, "orders") for queue_id in range(2)]


class FakePlane:
    """Remembers which queues are watched; a test gives the signs."""

    def __init__(self) -> None:
        self.watched: set[tuple[str, str, int]] = set()
        self.signs: set[int] = set()
        self.longest = 0

    def watch_signs(self, queues: list[tuple[str, str, int]]) -> None:
        self.longest = max(self.longest, len(queues))
        self.watched |= set(queues)

    def take_silent(self, queues: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        self.longest = max(self.longest, len(queues))
        self.watched -= set(queues)
        return [queue for queue in queues if queue[2] not in self.signs]


class Desk:
    """A group with two members, of which "a" has all locks."""

    def __init__(self, tables: Any) -> None:
        tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
        self.clock = tables.clock
        self.plane: Any = FakePlane()
        self.notified: list[str] = []
        self.locks = QueueLocks(tables.clock, tables.topics, tables.journal)
        self.clients = Clients(tables.clock, 120.0, lambda group, change: None)
        self.owners = VanishedOwners(self.plane, self.locks, self.clients, self, wait_s=0.01)  # type: ignore[arg-type]
        self.clients.vanished = self.owners.vanished
        self.beat(1, "a")
        self.beat(2, "b")
        self.locks.lock("g", "a", ALL)

    def consumers_changed(self, group: ConsumerGroup) -> None:
        self.notified.append(group.name)

    def beat(self, connection: int, client_id: str) -> None:
        member = Member(connection, client_id, 0, 500, "127.0.0.1:1", self.clock.now_ms())
        self.clients.put_consumer(ConsumerData(group_name="g"), member)

    async def wait(self) -> None:
        while self.owners._waiting:
            await asyncio.sleep(0.005)

    def free(self) -> list[MessageQueue]:
        return self.locks.lock("g", "b", ALL)


@pytest.fixture
def desk(tables: Any) -> Desk:
    return Desk(tables)


def after_close(desk: Desk, sign: Callable[[], object] = lambda: None) -> list[MessageQueue]:
    async def scenario() -> None:
        desk.clients.remove_connection(1)
        assert desk.locks.lock("g", "b", ALL) == [], "not before the time is over"
        sign()
        await desk.wait()

    _run(scenario)
    return desk.free()


def _run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def test_a_client_without_a_sign_loses_its_queues(desk: Desk) -> None:
    assert 5.0 < SIGN_WAIT_S < 6.0, "Java's consumers commit every 5 s"
    assert after_close(desk) == ALL
    assert desk.notified == ["g"], "old consumers ask again only after a notice"
    assert not desk.plane.watched


def test_a_client_that_is_back_keeps_them(desk: Desk) -> None:
    assert after_close(desk, lambda: desk.beat(3, "a")) == []


def test_a_client_that_renews_keeps_them(desk: Desk) -> None:
    def renew() -> None:
        desk.clock.advance_ms(1)
        desk.locks.lock("g", "a", ALL[:1])

    assert after_close(desk, renew) == ALL[1:]


def test_a_queue_that_is_pulled_or_committed_keeps_its_reader(desk: Desk) -> None:
    assert after_close(desk, lambda: desk.plane.signs.add(0)) == ALL[1:]


def test_a_client_with_another_connection_has_not_vanished(desk: Desk) -> None:
    desk.beat(4, "a")

    async def scenario() -> None:
        desk.clients.remove_connection(1)
        assert not desk.owners._waiting

    _run(scenario)
    assert desk.free() == []


def test_only_the_last_close_counts(desk: Desk) -> None:
    async def scenario() -> None:
        desk.clients.remove_connection(1)
        desk.beat(5, "a")
        desk.clients.remove_connection(5)
        assert len(desk.owners._waiting) == 1
        desk.owners.stop()
        assert not desk.owners._waiting

    _run(scenario)
    assert desk.free() == []


def test_very_many_queues_are_freed_in_parts(desk: Desk, tables: Any) -> None:
    tables.topics.put(TopicConfig(topic_name="wide", read_queue_nums=1_000, write_queue_nums=1_000))
    wide = [MessageQueue("broker-a", queue_id, "wide") for queue_id in range(1_000)]
    desk.locks.lock("g", "a", wide)
    before = desk.locks._count

    async def scenario() -> None:
        nonlocal before
        desk.clients.remove_connection(1)
        while desk.owners._waiting:
            await asyncio.sleep(0)
            assert before - desk.locks._count <= QUEUES_AT_ONCE
            before = desk.locks._count

    _run(scenario)
    assert desk.locks._count == 0 and not desk.plane.watched
    assert desk.plane.longest <= QUEUES_AT_ONCE
    assert desk.notified == ["g"]
