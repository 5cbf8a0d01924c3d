"""Retries with delays that a program chooses, in both faces, on a real broker."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import metaq
from metaq import RetryPolicy
from metaq.client.consumer.settlement import settlement
from metaq.client.consumer.settlement.send_back import send_again, send_back
from metaq.errors import UsageError
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until


class Failing:
    """A handler that fails and keeps when, by the broker's clock, each message was stored."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.stored: list[tuple[int, int]] = []
        self.ids: set[str] = set()
        self.bodies: set[bytes] = set()

    def __call__(self, message: Any) -> None:
        self.stored.append((message.reconsume_times, message.stored_at))
        self.ids.add(message.id)
        self.bodies.add(message.body)
        if message.reconsume_times < self.fails:
            raise LookupError("no customer")

    def waits_s(self) -> list[float]:
        times = [stored_at for _, stored_at in sorted(self.stored)]
        return [(after - before) / 1000 for before, after in pairwise(times)]


async def retried(face: Face, served: Served, what: str, handler: Failing, policy: RetryPolicy) -> str:
    """Lets a handler fail until it succeeds."""
    topic = name(face, what)
    await create_topic(served.broker, topic, queues=1)
    await send(served.broker, topic, "x" * 5000, UNIQ_KEY="THE-ID")
    async with connected(face, served) as client:
        declare = client.consumer(topic, group=topic, start="earliest", retry=policy)
        await face.call(declare, face.handler(handler))
        await until(lambda: len(handler.stored) > handler.fails)
    return topic


def test_delays_grow_on_the_levels_of_the_broker(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []

    async def watched(session: Any, options: Any, message: Any, level: int, error: Any = None) -> None:
        levels.append(level)
        await send_back(session, options, message, level, error)

    monkeypatch.setattr(settlement, "send_back", watched)

    async def scenario() -> None:
        failing = Failing(2)
        await retried(face, served, "levels", failing, RetryPolicy(first=1, factor=3, jitter=0))
        first, second = failing.waits_s()
        assert levels == [1, 2], "3 s are not a level, 5 s are"
        assert first >= 1
        assert second >= 5
        assert failing.ids == {"THE-ID"}

    run(scenario)


def test_exact_delays_are_delayed_messages(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []

    async def watched(session: Any, options: Any, message: Any, delay_s: float) -> None:
        delays.append(delay_s)
        await send_again(session, options, message, delay_s)

    monkeypatch.setattr(settlement, "send_again", watched)

    async def scenario() -> None:
        failing = Failing(3)
        policy = RetryPolicy(first=timedelta(seconds=0.4), factor=2, jitter=0, exact=True, retries_max=3)
        await retried(face, served, "exact", failing, policy)
        assert [number for number, _ in sorted(failing.stored)] == [0, 1, 2, 3]
        for wait, expected in zip(failing.waits_s(), (0.4, 0.8, 1.6), strict=True):
            assert wait >= expected
        assert delays == [0.4, 0.8, 1.6]
        assert failing.ids == {"THE-ID"}
        assert failing.bodies == {b"x" * 5000}

    run(scenario)


@pytest.mark.parametrize("exact", [False, True])
def test_after_its_retries_a_message_is_a_dead_letter_with_its_reason(
    face: Face, served: Served, exact: bool
) -> None:
    async def scenario() -> None:
        failing = Failing(99)
        topic = name(face, f"dead-{exact}")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "x")
        policy = RetryPolicy(first=0.2, jitter=0, retries_max=2, exact=exact)
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="earliest", retry=policy)
            await face.call(declare, face.handler(failing))
            letters = client.puller(start="earliest")

            async def letter() -> Any:
                try:
                    await face.call(letters.assign, f"%DLQ%{topic}")
                except metaq.NoRoute:
                    return None
                return await face.call(letters.poll, 1)

            (found,) = await until(letter)
        assert [number for number, _ in sorted(failing.stored)] == [0, 1, 2]
        assert found.system_properties["DLQ_REASON"] == "no customer"
        assert found.system_properties["DLQ_ERROR_TYPE"] == "LookupError"
        assert found.body == b"x"

    run(scenario)


def test_an_ordered_queue_waits_as_the_policy_says(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "ordered-policy")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a", "b")
        tries: list[tuple[str, float]] = []

        def fail(message: Any) -> None:
            tries.append((message.body.decode(), time.monotonic()))
            if len(tries) < 4:
                raise LookupError("not now")

        async with connected(face, served) as client:
            policy = RetryPolicy(first=0.2, factor=2, jitter=0)
            declare = client.consumer(topic, group=topic, start="earliest", ordered=True, retry=policy)
            await face.call(declare, face.handler(fail))
            await until(lambda: len(tries) == 5)
        assert [body for body, _ in tries] == ["a", "a", "a", "a", "b"]
        waits = [after - before for (_, before), (_, after) in pairwise(tries[:4])]
        for wait, expected in zip(waits, (0.2, 0.4, 0.8), strict=True):
            assert wait >= expected

    run(scenario)


def test_a_loop_retries_as_the_policy_says_and_retry_overrides_it(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "loop-policy")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "x")
        async with connected(face, served) as client:
            policy = RetryPolicy(first=0.3, factor=1, jitter=0, exact=True, retries_max=9)
            subscribed = client.subscribe(topic, group=topic, start="earliest", retry=policy)
            first = await face.take(subscribed)
            await face.call(first.retry)
            second = await face.take(subscribed)
            await face.call(second.retry, 2)
            third = await face.take(subscribed)
            await face.call(third.ack)
            await face.call(subscribed.close)
        assert [each.reconsume_times for each in (first, second, third)] == [0, 1, 2]
        assert second.stored_at - first.stored_at >= 300
        assert third.stored_at - second.stored_at >= 2000

    run(scenario)


def test_jitter_only_shortens() -> None:
    policy = RetryPolicy(first=10, factor=2, maximum=60, jitter=0.5)
    for retry, longest in ((1, 10), (2, 20), (3, 40), (4, 60), (400, 60)):
        delays = [policy.delay_s(retry) for _ in range(100)]
        assert longest / 2 <= min(delays) < max(delays) <= longest


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"first": 0}, "first is 0"),
        ({"first": -1}, "first is -1"),
        ({"first": "soon"}, "first is 'soon'"),
        ({"first": 20, "maximum": 10}, "not less than first"),
        ({"maximum": 7201}, "7200 s; exact=True allows longer delays"),
        ({"maximum": 41 * 86400, "exact": True}, "at most 3456000 s"),
        ({"exact": True}, "exact=True needs retries_max"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": float("inf")}, "factor is inf"),
        ({"jitter": 2}, "jitter is 2"),
        ({"retries_max": -1}, "retries_max is -1"),
        ({"retries_max": 1.5}, "retries_max is 1.5"),
    ],
)
def test_a_policy_that_cannot_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        RetryPolicy(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retry": 5}, "must be a metaq.RetryPolicy"),
        ({"retry": RetryPolicy(), "retries_max": 3}, "retries_max of its own"),
        ({"retry": RetryPolicy(), "mode": "broadcast"}, "broadcast mode lacks"),
        ({"retry": RetryPolicy(), "on_failure": "local"}, "exclude each other"),
        ({"retry": RetryPolicy(exact=True, retries_max=3), "ordered": True}, "leave out exact"),
    ],
)
def test_options_that_exclude_a_policy(face: Face, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        face.client("127.0.0.1:1").consumer("t", group="g", **options)
