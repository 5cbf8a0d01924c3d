"""The order in which a group's offsets are sent to brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq.client.consumer.offsets.storage import BrokerOffsets
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session


class Brokers:
    """Stores commits as Apache's broker does: the first one of a group and topic creates a table, and others
    at the same time create tables of their own, which the first one replaces."""

    def __init__(self, *, lost: str = "") -> None:
        self.tables: dict[tuple[str, str], dict[int, int]] = {}
        self.routes = SimpleNamespace(group_address=self.group_address)
        self.masters: dict[str, str] = {}
        self._lost = lost

    def group_address(self, broker: str) -> str:
        return self.masters.get(broker, broker)

    async def call_group(self, queue: Queue, command: Any, *, timeout: float) -> SimpleNamespace:
        broker = self.group_address(queue.broker)
        if broker == self._lost:
            raise ConnectionError(broker)
        table = self.tables.get((broker, command.topic), {})
        await asyncio.sleep(0)
        table[command.queue_id] = command.commit_offset
        self.tables[broker, command.topic] = table
        return SimpleNamespace(check=lambda: SimpleNamespace(remark=None))


def queues(broker: str, topic: str, count: int) -> list[Queue]:
    return [Queue(topic, broker, number) for number in range(count)]


def test_no_offset_is_lost_where_a_broker_makes_its_table_at_the_first() -> None:
    brokers = Brokers()
    offsets = BrokerOffsets(cast(Session, brokers), "group")
    wanted = [*queues("a", "orders", 4), *queues("a", "bills", 3), *queues("b", "orders", 4)]
    asyncio.run(offsets.commit({queue: queue.id + 1 for queue in wanted}))
    assert brokers.tables == {
        ("a", "orders"): {0: 1, 1: 2, 2: 3, 3: 4},
        ("a", "bills"): {0: 1, 1: 2, 2: 3},
        ("b", "orders"): {0: 1, 1: 2, 2: 3, 3: 4},
    }


def test_a_new_master_makes_its_tables_at_the_first_offset_too() -> None:
    brokers = Brokers()
    offsets = BrokerOffsets(cast(Session, brokers), "group")

    async def scenario() -> None:
        for brokers.masters in ({"a": "one"}, {"a": "two"}):
            await offsets.commit({queue: queue.id + 1 for queue in queues("a", "orders", 4)})

    asyncio.run(scenario())
    assert brokers.tables == {(node, "orders"): {0: 1, 1: 2, 2: 3, 3: 4} for node in ("one", "two")}


def test_a_broker_that_is_gone_keeps_the_others_from_nothing() -> None:
    brokers = Brokers(lost="a")
    offsets = BrokerOffsets(cast(Session, brokers), "group")
    wanted = [*queues("a", "orders", 2), *queues("b", "orders", 2)]
    with pytest.raises(ConnectionError):
        asyncio.run(offsets.commit(dict.fromkeys(wanted, 7)))
    assert brokers.tables == {("b", "orders"): {0: 7, 1: 7}}


class SlowBroker:
    """Stores the first commit when the test allows it, and every later one at once."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.routes = SimpleNamespace(group_address=lambda broker: broker)
        self.has_first = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def call_group(self, queue: Queue, command: Any, *, timeout: float) -> SimpleNamespace:
        if not self.has_first.is_set():
            self.has_first.set()
            await self.may_answer.wait()
        self.stored.append(command.commit_offset)
        return SimpleNamespace(check=lambda: SimpleNamespace(remark=None))


def test_a_cancelled_commit_does_not_overtake_the_next_one() -> None:
    async def scenario() -> list[int]:
        broker = SlowBroker()
        offsets = BrokerOffsets(cast(Session, broker), "group")
        (queue,) = queues("a", "orders", 1)
        cancelled = asyncio.create_task(offsets.commit({queue: 1}))
        await broker.has_first.wait()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        last = asyncio.create_task(offsets.commit({queue: 2}))
        await asyncio.sleep(0)
        broker.may_answer.set()
        await last
        await offsets.close()
        return broker.stored

    assert asyncio.run(scenario()) == [1, 2]
