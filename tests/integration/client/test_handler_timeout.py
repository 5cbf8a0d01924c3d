"""A time limit for each call of a handler, in both faces, on a real broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest

import metaq
from metaq.errors import UsageError
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until

LIMIT_S = 1.0


class Hanging:
    """A handler that hangs on some bodies until the test ends it."""

    def __init__(self, face: Face) -> None:
        self.calls: Counter[str] = Counter()
        self.done: list[str] = []
        self.release = threading.Event()
        self.handler = self.plain if face.is_sync else self.coroutine

    def plain(self, message: Any) -> None:
        body = message.body.decode()
        self.calls[body] += 1
        if body.startswith("hangs") and self.calls[body] == 1:
            self.hang_here()
        self.done.append(body)

    def hang_here(self) -> None:
        self.release.wait(60)

    async def coroutine(self, message: Any) -> None:
        body = message.body.decode()
        self.calls[body] += 1
        if body.startswith("hangs") and self.calls[body] == 1:
            await self.hang_there()
        self.done.append(body)

    async def hang_there(self) -> None:
        await asyncio.sleep(60)


def test_a_call_that_takes_too_long_is_given_back_with_its_stack(
    face: Face, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    hanging = Hanging(face)

    async def scenario() -> None:
        topic = name(face, "slow")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "hangs-1", "quick-1", "hangs-2", "quick-2")
        async with connected(face, served) as client:
            declare = client.consumer(
                topic,
                group=topic,
                start="earliest",
                concurrency=2,
                handler_timeout=LIMIT_S,
                retry=metaq.RetryPolicy(first=1, jitter=0),
            )
            await face.call(declare, hanging.handler)
            await until(lambda: {"quick-1", "quick-2"} <= set(hanging.done))
            # Retries wait for the broker's clock.
            served.clock.jump(5_000)
            await until(lambda: {"hangs-1", "hangs-2"} <= set(hanging.done))
            assert hanging.calls["hangs-1"] >= 2
            hanging.release.set()

    run(scenario)
    assert "the handler did not return within 1 s (handler_timeout)" in caplog.text
    assert ("in hang_here" if face.is_sync else "in hang_there") in caplog.text
    assert "The handler was here" in caplog.text


def workers(group: str) -> int:
    return sum(thread.name.startswith(f"metaq {group} worker") for thread in threading.enumerate())


def test_an_abandoned_call_settles_nothing_when_it_returns(served: Served) -> None:
    face = Face("sync")
    hanging = Hanging(face)

    async def scenario() -> None:
        topic = "slow-late"
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "hangs-1")
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=topic, start="earliest", ordered=True, suspend=0.05, handler_timeout=LIMIT_S
            )
            await face.call(declare, hanging.handler)
            await until(lambda: hanging.done)
            before = workers(topic)
            count = len(hanging.done)
            hanging.release.set()
            await until(lambda: len(hanging.done) > count)
            await until(lambda: workers(topic) < before, what="its thread ended")
            await send(served.broker, topic, "after")
            await until(lambda: "after" in hanging.done)

    run(scenario)


def test_threads_are_replaced_up_to_a_bound(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    face = Face("sync")
    release = threading.Event()
    started: Counter[str] = Counter()
    handled: list[str] = []

    def hang(message: Any) -> None:
        body = message.body.decode()
        started[body] += 1
        if body.startswith("hangs"):
            release.wait(60)
        handled.append(body)

    async def scenario() -> None:
        topic = "slow-bound"
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, *(f"hangs-{number}" for number in range(9)))
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=topic, start="earliest", concurrency=2, handler_timeout=LIMIT_S
            )
            await face.call(declare, hang)
            # Two threads of its own, and two that replace them.
            await until(lambda: sum(started.values()) == 4)
            await until(lambda: "gets no new thread" in caplog.text)
            await asyncio.sleep(3 * LIMIT_S)
            assert sum(started.values()) == 4, "no more threads than that hang"
            release.set()
            await send(served.broker, topic, "after")
            await until(lambda: "after" in handled, what="consumption continued")

    run(scenario)


def test_a_close_does_not_wait_for_abandoned_calls(face: Face, served: Served) -> None:
    hanging = Hanging(face)

    async def scenario() -> None:
        topic = name(face, "slow-close")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "hangs-1")
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="earliest", handler_timeout=LIMIT_S)
            consumer = await face.call(declare, hanging.handler)
            await until(lambda: hanging.calls["hangs-1"] == 1)
            await asyncio.sleep(2 * LIMIT_S)
            begun = time.monotonic()
            await face.call(consumer.close, 30)
            assert time.monotonic() - begun < 20
        hanging.release.set()

    run(scenario)


def test_a_coroutine_that_ignores_its_cancellation_is_left_behind(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaq.client.consumer.handler_timeout.CANCEL_GRACE_S", 0.05)
    caplog.set_level(logging.ERROR)
    handled: list[str] = []

    async def scenario() -> None:
        release = asyncio.Event()

        async def stubborn(message: metaq.Message) -> None:
            body = message.body.decode()
            while body == "hangs" and not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            handled.append(body)

        await create_topic(served.broker, "stubborn", queues=1)
        await send(served.broker, "stubborn", "hangs", "quick")
        async with metaq.aio.Client(served.nameserver) as client:
            client.consumer(
                "stubborn", group="stubborn", start="earliest", concurrency=1, handler_timeout=LIMIT_S
            )(stubborn)
            await until(lambda: handled == ["quick"])
            release.set()
        assert "it must let CancelledError pass" in caplog.text

    run(scenario)


def test_the_limit_holds_for_local_retries_too(face: Face, served: Served) -> None:
    hanging = Hanging(face)

    async def scenario() -> None:
        topic = name(face, "slow-local")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "hangs-1")
        async with connected(face, served) as client:
            declare = client.consumer(
                topic,
                group=topic,
                start="earliest",
                handler_timeout=LIMIT_S,
                on_failure="local",
                local_after=1,
                local_first_wait=0.05,
            )
            await face.call(declare, hanging.handler)
            await until(lambda: "hangs-1" in hanging.done)
            hanging.release.set()

    run(scenario)


@pytest.mark.parametrize("limit", [0, -1, "soon", float("inf"), True])
def test_a_limit_that_cannot_be(face: Face, limit: Any) -> None:
    with pytest.raises(UsageError, match=r"handler_timeout is .* seconds above 0"):
        face.client("127.0.0.1:1").consumer("t", group="g", handler_timeout=limit)
