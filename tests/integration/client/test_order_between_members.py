"""Ordered consumption by two members: queues move from one to the other, and locks are renewed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from metaq import Queue
from metaq.broker.state.locks import LEASE_MS
from metaq.client.consumer.group import assignment
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.group.rebalance import Locks
from metaq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from metaq.protocol.commands.clients import LockBatchQueues, UnlockBatchQueues
from metaq.protocol.java_json import MessageQueue
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import _value, connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.moved import STEP_MS
from tests.support.patient import Connection
from tests.support.waiting import run, until

QUEUES = 2


async def queues_of(face: Face, consumer: Any, topic: str) -> set[int]:
    return {queue.id for queue in await _value(face, lambda: consumer.queues) if queue.topic == topic}


def member_of(face: Face, consumer: Any) -> GroupMember:
    """Returns the group member inside a consumer of either face."""
    member: GroupMember = (consumer._consumer if face.is_sync else consumer)._consumption.member
    return member


async def shared(face: Face, topic: str, *consumers: Any) -> None:
    """Waits until each consumer has the same number of queues."""
    async with asyncio.timeout(60):
        while {len(await queues_of(face, consumer, topic)) for consumer in consumers} != {
            QUEUES // len(consumers)
        }:
            await asyncio.sleep(0.02)


def count_locks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each client has asked for locks."""
    asked: Counter[str] = Counter()
    lock = Locks.lock

    async def counted(locks: Locks, queues: frozenset[Queue]) -> frozenset[Queue]:
        granted = await lock(locks, queues)
        asked[locks._session.client_id] += 1
        return granted

    monkeypatch.setattr(Locks, "lock", counted)
    return asked


def test_a_queue_is_handed_over_between_two_messages(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old member finishes the message in hand, and the new one continues with the next."""

    asked = count_locks(monkeypatch)

    async def scenario() -> None:
        topic, group = name(face, "handed"), name(face, "handed-group")
        await create_topic(served.broker, topic, queues=QUEUES)
        for queue_id in range(QUEUES):
            await send(served.broker, topic, *(f"{n}" for n in range(6)), queue_id=queue_id)
        seen: list[tuple[str, int, int]] = []
        release = threading.Event()

        def handler(who: str) -> Any:
            def handle(message: Any) -> None:
                # A plain function in both faces: it only blocks its own thread.
                if message.body == b"2":
                    release.wait(60)
                seen.append((who, message.queue.id, int(message.body)))

            return handle

        async with connected(face, served, client_id="a") as first:
            declare = first.consumer(topic, group=group, start="earliest", ordered=True)
            a = await face.call(declare, handler("a"))
            await until(lambda: len(seen) == 2 * QUEUES)
            async with connected(face, served, client_id="b") as second:
                declare = second.consumer(topic, group=group, start="earliest", ordered=True)
                b = await face.call(declare, handler("b"))
                await until(
                    lambda: (
                        sum(buffer.revoked for buffer in member_of(face, a).prefetch.buffers.values()) == 1
                    )
                )
                before = asked["b"]
                await until(lambda: asked["b"] >= before + 2)
                assert await queues_of(face, b, topic) == set(), "its lock is with what is in hand"
                assert len(seen) == 2 * QUEUES
                release.set()
                await shared(face, topic, a, b)
                await until(lambda: len(seen) == 6 * QUEUES)
                (theirs,) = await queues_of(face, b, topic)
                assert [number for _, queue, number in seen if queue == theirs] == list(range(6))
                assert ("a", theirs, 2) in seen, "who had it in hand ended it"
                assert {who for who, queue, number in seen if queue == theirs and number > 2} == {"b"}
            await shared(face, topic, a)
        for queue_id in range(QUEUES):
            assert [number for _, queue, number in seen if queue == queue_id] == list(range(6)), "each once"

    run(scenario)


class Stranger:
    """Another member of the group, who wants queue 0."""

    def __init__(self, served: Served, topic: str, group: str) -> None:
        self._served = served
        queue = MessageQueue(broker_name="broker-a", queue_id=0, topic=topic)
        self._body = LockBatchRequestBody(client_id="stranger", consumer_group=group, mq_set=[queue]).encode()

    async def _call(self, command: LockBatchQueues | UnlockBatchQueues) -> bytes:
        connection = await Connection.open(self._served.broker)
        try:
            return (await connection.call(command, self._body)).check().body
        finally:
            await connection.close()

    async def locks(self) -> bool:
        """Returns whether the broker grants the lock."""
        return bool(LockBatchResponseBody.decode(await self._call(LockBatchQueues())).lock_ok_mq_set)

    async def unlocks(self) -> None:
        await self._call(UnlockBatchQueues())


# Both faces share the code of locks, so the other tests use one face.


def test_a_lock_is_renewed_for_as_long_as_its_member_lives(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "LOCK_INTERVAL_S", 0.05)
    face = Face("aio")
    renewals = count_locks(monkeypatch)

    async def scenario() -> None:
        topic, group = "renewed", "renewed-group"
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "before")
        bodies: list[str] = []
        stranger = Stranger(served, topic, group)
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest", ordered=True)
            await face.call(declare, face.handler(lambda message: bodies.append(message.body.decode())))
            await until(lambda: bodies == ["before"])
            passed_ms = 0
            while passed_ms <= LEASE_MS:
                await asyncio.to_thread(served.clock.pass_by, STEP_MS)
                passed_ms += STEP_MS
                # Waits for a renewal in each step, however slow the machine is.
                before = renewals.total()
                await until(lambda before=before: renewals.total() > before + 1)
            assert not await stranger.locks()
            await send(served.broker, topic, "after")
            await until(lambda: bodies == ["before", "after"])
        assert await stranger.locks(), "left with the group"

    run(scenario)


def test_a_member_whose_lock_is_not_renewed_stops_by_itself(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before its lock can expire at the broker, so a queue never has two readers."""
    monkeypatch.setattr(assignment, "LOCK_INTERVAL_S", 0.05)
    monkeypatch.setattr(assignment, "LOCK_TRUSTED_S", 0.5)
    is_answered = True
    asked = 0
    lock = Locks.lock

    async def perhaps(locks: Locks, queues: frozenset[Queue]) -> frozenset[Queue]:
        nonlocal asked
        granted = await lock(locks, queues) if is_answered else frozenset()
        asked += 1
        return granted

    monkeypatch.setattr(Locks, "lock", perhaps)
    face = Face("aio")

    async def scenario() -> None:
        nonlocal is_answered
        topic, group = "lapsed", "lapsed-group"
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "before")
        bodies: list[str] = []
        stranger = Stranger(served, topic, group)
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest", ordered=True)
            consumer = await face.call(
                declare, face.handler(lambda message: bodies.append(message.body.decode()))
            )
            await until(lambda: "before" in bodies)
            is_answered = False
            await until(lambda: not consumer.queues)
            await send(served.broker, topic, "another's")
            await asyncio.to_thread(served.clock.pass_by, LEASE_MS + 4_000)
            assert await stranger.locks()
            is_answered = True
            before = asked
            await until(lambda: asked >= before + 2)
            assert set(bodies) == {"before"}
            await stranger.unlocks()
            # Nothing was committed before, so the first message may come again.
            await until(lambda: bodies[-1] == "another's")
            assert bodies == sorted(bodies, reverse=True)

    run(scenario)
