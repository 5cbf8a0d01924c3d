"""Answers that pages share: asked for once, kept when the cluster does not answer any more."""

from __future__ import annotations

import asyncio

import pytest

from metaq.console.live.latest import AGE_MS_MAX, KEPT_MAX, Latest
from metaq.errors import NoRoute


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Cluster:
    """Answers with the number of the question, or not at all."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_down = False
        self.before: list[int | None] = []

    async def ask(self, before: int | None) -> int:
        self.asked += 1
        self.before.append(before)
        await asyncio.sleep(0)
        if self.is_down:
            raise NoRoute("nobody is here")
        return self.asked


def test_viewers_share_an_answer_until_it_is_too_old() -> None:
    clock, cluster = Clock(), Cluster()
    latest = Latest(clock)

    async def look() -> list[int | None]:
        parts = await asyncio.gather(*(latest.ask(("a",), cluster.ask) for _ in range(5)))
        clock.now_ms += AGE_MS_MAX - 1
        parts.append(await latest.ask(("a",), cluster.ask))
        clock.now_ms += 1
        parts.append(await latest.ask(("a",), cluster.ask))
        return [part.value for part in parts]

    assert asyncio.run(look()) == [1, 1, 1, 1, 1, 1, 2]
    assert cluster.before == [None, 1]


def test_the_last_answer_stays_with_its_age_and_the_reason() -> None:
    clock, cluster = Clock(), Cluster()
    latest = Latest(clock)

    async def look() -> None:
        taken_ms = (await latest.ask(("a",), cluster.ask)).taken_ms
        cluster.is_down = True
        clock.now_ms += AGE_MS_MAX
        failing_since_ms = clock.now_ms
        for _ in range(2):
            stale = await latest.ask(("a",), cluster.ask)
            assert (stale.value, stale.taken_ms, stale.is_stale) == (1, taken_ms, True)
            assert (stale.error, stale.failing_since_ms) == ("nobody is here", failing_since_ms)
            clock.now_ms += AGE_MS_MAX
        cluster.is_down = False
        assert not (await latest.ask(("a",), cluster.ask)).is_stale

    asyncio.run(look())


def test_a_change_has_everything_asked_for_again() -> None:
    cluster, latest = Cluster(), Latest(Clock())

    async def look() -> int | None:
        await latest.ask(("a",), cluster.ask)
        latest.forget()
        return (await latest.ask(("a",), cluster.ask)).value

    assert asyncio.run(look()) == 2


def test_an_answer_that_a_change_overtakes_is_not_fresh() -> None:
    cluster, latest = Cluster(), Latest(Clock())

    async def look() -> list[int | None]:
        asking = asyncio.create_task(latest.ask(("a",), cluster.ask))
        while not cluster.asked:
            await asyncio.sleep(0)
        latest.forget()
        return [(await asking).value, (await latest.ask(("a",), cluster.ask)).value]

    assert asyncio.run(look()) == [1, 2]


def test_only_so_much_is_kept_and_other_errors_pass() -> None:
    cluster, latest = Cluster(), Latest(Clock())

    async def broken(_: int | None) -> int:
        raise ZeroDivisionError

    async def look() -> None:
        for number in range(KEPT_MAX + 1):
            await latest.ask((str(number),), cluster.ask)
        await latest.ask((str(KEPT_MAX),), cluster.ask)
        assert cluster.asked == KEPT_MAX + 1
        await latest.ask(("0",), cluster.ask)
        assert cluster.asked == KEPT_MAX + 2, "the oldest was dropped"
        with pytest.raises(ZeroDivisionError):
            await latest.ask(("broken",), broken)

    asyncio.run(look())
