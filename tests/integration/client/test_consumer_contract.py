"""The contract of consumers, in both faces of the client, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from metaq import Queue, Reject, Retry
from metaq.errors import ClientClosed, NoRoute, UsageError
from metaq.protocol.errors import Refused
from tests.integration.client.conftest import Served
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until


@asynccontextmanager
async def connected(face: Face, served: Served, **options: Any) -> AsyncIterator[Any]:
    client = face.client(served.nameserver, **options)
    await face.call(client.start)
    try:
        yield client
    finally:
        await face.call(client.close, 60)


def name(face: Face, what: str) -> str:
    return f"{what}-{face.name}"


async def poll_all(face: Face, puller: Any, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [message.body.decode() for message in await face.call(puller.poll, 5)]
    return found


def test_pull_assigns_seeks_polls_and_commits(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "pull")
        await create_topic(served.broker, topic, queues=2)
        await send(served.broker, topic, "a", "b", "c", queue_id=0)
        await send(served.broker, topic, "x", "y", queue_id=1)
        async with connected(face, served) as client:
            puller = client.puller(group=name(face, "pull-group"), start="earliest")
            queues = await face.call(puller.assign, topic)
            assert [queue.id for queue in queues] == [0, 1]
            assert sorted(await poll_all(face, puller, 5)) == ["a", "b", "c", "x", "y"]
            assert await face.call(puller.poll, 0.05) == []
            assert await face.call(puller.position, queues[0]) == 3
            assert await face.call(puller.commit) == {queues[0]: 3, queues[1]: 2}

            await face.call(puller.seek, 1, queues[0])
            assert await poll_all(face, puller, 2) == ["b", "c"]
            await face.call(puller.seek, "earliest")
            assert sorted(await poll_all(face, puller, 5)) == ["a", "b", "c", "x", "y"]
            await face.call(puller.seek, "latest")
            assert await face.call(puller.poll, 0.05) == []
            served.clock.jump(60_000)
            since = datetime.fromtimestamp(served.clock.now_ms() / 1000 - 1, UTC)
            await send(served.broker, topic, "late", queue_id=1)
            await face.call(puller.seek, since)
            assert await poll_all(face, puller, 1) == ["late"]
            await face.call(puller.close)

            again = client.puller(group=name(face, "pull-group"))
            assert await face.call(again.assign, queues[0], queues[1]) == queues
            assert await poll_all(face, again, 1) == ["late"], "it goes on where it was committed"

    run(scenario)


def test_a_closed_client_consumes_nothing(face: Face, served: Served) -> None:
    async def scenario() -> None:
        async with connected(face, served) as client:
            pass
        with pytest.raises(ClientClosed):
            client.consumer("T", group="g")(face.handler(lambda message: None))
        with pytest.raises(ClientClosed):
            client.subscribe("T", group="g")
        with pytest.raises(ClientClosed):
            client.puller()

    run(scenario)


def test_pull_refuses_what_cannot_be(face: Face, served: Served) -> None:
    async def scenario() -> None:
        async with connected(face, served) as client:
            puller = client.puller()
            with pytest.raises(UsageError, match="no queue is assigned"):
                await face.call(puller.poll)
            with pytest.raises(UsageError, match="not assigned"):
                await face.call(puller.seek, 3, Queue("t", "b", 0))
            with pytest.raises(UsageError, match="not a position"):
                await face.call(puller.seek, "middle")
            with pytest.raises(UsageError, match="without a group"):
                await face.call(puller.commit)
            with pytest.raises(UsageError, match="only one filter"):
                client.puller(tags="a", sql="b = 1")

    run(scenario)


def test_a_handler_gets_every_message_once_and_its_group_goes_on_there(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "handled"), name(face, "handled-group")
        await create_topic(served.broker, topic)
        for queue_id in range(4):
            await send(served.broker, topic, *(f"{queue_id}-{n}" for n in range(25)), queue_id=queue_id)
        bodies: list[str] = []
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest", concurrency=4)
            consumer = await face.call(
                declare, face.handler(lambda message: bodies.append(message.body.decode()))
            )
            await until(lambda: len(bodies) >= 100)
            assert len(await _value(face, lambda: consumer.queues)) >= 4
        assert sorted(bodies) == sorted(f"{queue_id}-{n}" for queue_id in range(4) for n in range(25))
        bodies.clear()
        for queue_id in range(4):
            await send(served.broker, topic, f"after-{queue_id}", queue_id=queue_id)
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest")
            await face.call(declare, face.handler(lambda message: bodies.append(message.body.decode())))
            await until(lambda: sum(body.startswith("after") for body in bodies) == 4)
        assert sorted(bodies) == [f"after-{queue_id}" for queue_id in range(4)]

    run(scenario)


async def _value(face: Face, function: Callable[[], Any]) -> Any:
    """Reads a property, which in the sync face waits for the client's thread."""
    return await asyncio.to_thread(function) if face.is_sync else function()


def test_failed_messages_come_again_and_rejected_ones_are_dead_letters(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "retried"), name(face, "retried-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "fails", "waits", "rejected", "fine")
        seen: list[tuple[str, int, str]] = []

        def handle(message: Any) -> None:
            body = message.body.decode()
            seen.append((body, message.reconsume_times, message.topic))
            if message.reconsume_times == 0 and body == "fails":
                raise RuntimeError("the first time")
            if message.reconsume_times == 0 and body == "waits":
                raise Retry(after=3500)
            if body == "rejected":
                raise Reject("never")

        async with connected(face, served) as client:
            await face.call(client.consumer(topic, group=group, start="earliest"), face.handler(handle))
            await until(lambda: len(seen) == 4)
            assert await dead_letters(face, client, group) == ["rejected"]
            await passing(served, 11_000, lambda: ("fails", 1, topic) in seen)
            assert ("waits", 1, topic) not in seen
            await passing(served, 3_600_000, lambda: ("waits", 1, topic) in seen)
        assert len(seen) == 6

    run(scenario)


async def passing(served: Served, step_ms: int, condition: Callable[[], bool]) -> None:
    """Moves the clock until the condition holds. A retry may reach the broker only after the first step."""
    async with asyncio.timeout(60):
        while not condition():
            served.clock.jump(step_ms)
            with contextlib.suppress(TimeoutError):
                await until(condition, 0.5)


async def dead_letters(face: Face, client: Any, group: str) -> list[str]:
    """Waits for dead letters of the group and returns them."""
    puller = client.puller(start="earliest")
    async with asyncio.timeout(60):
        while True:
            try:
                if not await _value(face, lambda: puller.queues):
                    await face.call(puller.assign, f"%DLQ%{group}")
                return await poll_all(face, puller, 1)
            except (NoRoute, Refused):
                # The name server may know a new topic a moment before its broker serves it.
                await asyncio.sleep(0.05)


def test_iteration_settles_by_process_and_by_going_on(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "iterated"), name(face, "iterated-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "processed", "failed", "passed", "left")

        def fail() -> None:
            raise RuntimeError("once")

        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=group, start="earliest")
            first = await face.take(subscribed)
            assert first.body == b"processed"
            await face.process(first, lambda: None)
            await face.process(await face.take(subscribed), fail)
            assert (await face.take(subscribed)).body == b"passed"
            assert (await face.take(subscribed)).body == b"left"
            assert await face.call(subscribed.close, 60)
            assert await face.take(subscribed) is None
        served.clock.jump(11_000)
        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=group, start="earliest", idle_timeout=60)
            bodies = {(await face.take(subscribed)).body for _ in range(2)}
            assert bodies == {b"left", b"failed"}

    run(scenario)


def test_rejected_messages_are_dead_letters_in_a_loop_and_in_a_handler(
    face: Face, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for retries, so it runs on any broker."""

    def reject() -> None:
        raise Reject("never")

    async def scenario() -> None:
        topic = name(face, "refused")
        loops, handlers = name(face, "refused-loops"), name(face, "refused-handlers")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "processed", "rejected", "passed", "left")
        handled: list[str] = []

        def handle(message: Any) -> None:
            if message.body == b"rejected":
                reject()
            handled.append(message.body.decode())

        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=loops, start="earliest")
            await face.process(await face.take(subscribed), lambda: None)
            await face.process(await face.take(subscribed), reject)
            assert (await face.take(subscribed)).body == b"passed"
            assert (await face.take(subscribed)).body == b"left"
            assert await face.call(subscribed.close, 60)
            again = client.subscribe(topic, group=loops, start="earliest", idle_timeout=60)
            assert (await face.take(again)).body == b"left", "all the others are settled"

            await face.call(client.consumer(topic, group=handlers, start="earliest"), face.handler(handle))
            for group in (loops, handlers):
                assert await dead_letters(face, client, group) == ["rejected"]
            await until(lambda: sorted(handled) == ["left", "passed", "processed"])
        # Every dead letter is logged with its reason. MetaQ's brokers also store it.
        logged = [each.getMessage() for each in caplog.records if "is a dead letter" in each.getMessage()]
        assert len(logged) == 2 and all("Reject: never" in text for text in logged)

    run(scenario)


def test_in_order_a_failure_holds_its_queue_and_only_that(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "ordered"), name(face, "ordered-group")
        await create_topic(served.broker, topic, queues=2)
        for queue_id in range(2):
            await send(served.broker, topic, *(f"{queue_id}-{n}" for n in range(10)), queue_id=queue_id)
        seen: dict[int, list[str]] = {0: [], 1: []}
        tries: list[int] = []
        at_work: set[int] = set()

        def handle(message: Any) -> None:
            queue_id = message.queue.id
            assert queue_id not in at_work, "two messages of one queue at a time"
            at_work.add(queue_id)
            try:
                if message.body == b"1-4" and len(tries) < 3:
                    tries.append(message.reconsume_times)
                    raise RuntimeError("not yet")
                if message.body == b"0-2":
                    raise Reject
                seen[queue_id].append(message.body.decode())
            finally:
                at_work.discard(queue_id)

        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest", ordered=True, suspend=0.05)
            await face.call(declare, face.handler(handle))
            await until(lambda: len(seen[0]) == 9 and len(seen[1]) == 10)
        assert seen[0] == [f"0-{n}" for n in range(10) if n != 2]
        assert seen[1] == [f"1-{n}" for n in range(10)]
        assert tries == [0, 1, 2]

    run(scenario)


def test_members_share_the_queues_and_take_over(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "shared"), name(face, "shared-group")
        await create_topic(served.broker, topic, queues=4)
        seen: list[tuple[str, str]] = []
        changes: list[tuple[int, int]] = []

        def noting(who: str) -> Callable[[Any], None]:
            return lambda message: seen.append((who, message.body.decode()))

        async def ours(consumer: Any) -> set[int]:
            return {queue.id for queue in await _value(face, lambda: consumer.queues) if queue.topic == topic}

        async with connected(face, served, client_id="a") as first:
            declare = first.consumer(
                topic,
                group=group,
                start="earliest",
                on_rebalance=lambda gained, lost: changes.append((len(gained), len(lost))),
            )
            a = await face.call(declare, face.handler(noting("a")))
            async with asyncio.timeout(60):
                while len(await ours(a)) < 4:
                    await asyncio.sleep(0.02)
            async with connected(face, served, client_id="b") as second:
                declare = second.consumer(topic, group=group, start="earliest")
                b = await face.call(declare, face.handler(noting("b")))
                async with asyncio.timeout(60):
                    while (await ours(a), await ours(b)) != ({0, 1}, {2, 3}):
                        await asyncio.sleep(0.02)
                for queue_id in range(4):
                    await send(served.broker, topic, f"{queue_id}", queue_id=queue_id)
                await until(lambda: len(seen) == 4)
                assert sorted(seen) == [("a", "0"), ("a", "1"), ("b", "2"), ("b", "3")]
            async with asyncio.timeout(60):
                while len(await ours(a)) < 4:
                    await asyncio.sleep(0.02)
            for queue_id in range(4):
                await send(served.broker, topic, f"again-{queue_id}", queue_id=queue_id)
            await until(lambda: sum(body.startswith("again") for _, body in seen) == 4)
        again = [("a", f"again-{queue_id}") for queue_id in range(4)]
        assert sorted(seen[4:]) == again, "nothing that b had settled comes again"
        assert any(lost for _, lost in changes)

    run(scenario)


def test_close_waits_for_what_is_in_hand_but_not_for_ever(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic, group = name(face, "closed"), name(face, "closed-group")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "slow")
        release = threading.Event()
        consumers: list[Any] = []
        entered: list[str] = []
        done: list[str] = []

        def handle(message: Any) -> None:
            # A plain function in both faces: it only blocks its own thread.
            body = message.body.decode()
            entered.append(body)
            if body == "slow":
                while not consumers[0].is_closed:
                    time.sleep(0.001)
            elif body == "stuck":
                release.wait(60)
            done.append(body)

        async with connected(face, served) as client:
            declare = client.consumer(topic, group=group, start="earliest", concurrency=1)
            consumers.append(await face.call(declare, handle))
            await until(lambda: entered == ["slow"])
            assert await face.call(consumers[0].close, 60) is True
            assert done == ["slow"]
            await send(served.broker, topic, "stuck", "untouched")
            consumer = await face.call(
                client.consumer(topic, group=group, start="earliest", concurrency=1), handle
            )
            await until(lambda: entered == ["slow", "stuck"])
            assert await face.call(consumer.close, 0.2) is False
            release.set()
            entered.clear()
            declare = client.consumer(topic, group=group, start="earliest", concurrency=1)
            await face.call(declare, face.handler(lambda message: entered.append(message.body.decode())))
            await until(lambda: len(entered) == 2)
        assert entered == ["stuck", "untouched"]

    run(scenario)
