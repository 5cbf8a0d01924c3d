"""Rows that are fetched when somebody looks at them."""

from __future__ import annotations

import asyncio

from metaq.console.live.looks import KEPT_MAX, ROWS_MAX, Looks
from metaq.errors import NoRoute
from tests.support.waiting import run

AGE_MS = 10_000


class Broker:
    """Counts the names that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[frozenset[str]] = []
        self.is_away = False
        self.now_ms = 0
        self.looks = Looks(self.fetch, lambda: self.now_ms)

    async def fetch(self, names: frozenset[str]) -> dict[str, str]:
        self.asked.append(names)
        await asyncio.sleep(0)
        if self.is_away:
            raise NoRoute("nobody is here")
        return {name: name.upper() for name in names if name != "missing"}


def test_rows_are_fetched_once_in_an_interval() -> None:
    async def scenario() -> None:
        broker = Broker()
        assert await broker.looks.rows(["a", "missing"], AGE_MS) == {"a": "A"}
        broker.now_ms = AGE_MS - 1
        assert await broker.looks.rows(["a", "missing", "b"], AGE_MS) == {"a": "A", "b": "B"}
        broker.now_ms = AGE_MS
        assert await broker.looks.rows(["a"], AGE_MS) == {"a": "A"}
        assert broker.asked == [{"a", "missing"}, {"b"}, {"a"}]

    run(scenario)


def test_two_viewers_share_an_answer() -> None:
    async def scenario() -> None:
        broker = Broker()
        await asyncio.gather(*(broker.looks.rows(["a", "b"], AGE_MS) for _ in range(10)))
        assert broker.asked == [{"a", "b"}]

    run(scenario)


def test_viewers_of_other_rows_do_not_wait() -> None:
    async def scenario() -> None:
        never, asked = asyncio.Event(), []

        async def fetch(names: frozenset[str]) -> dict[str, str]:
            asked.append(names)
            if "slow" in names:
                await never.wait()
            return {name: name.upper() for name in names}

        looks = Looks(fetch, lambda: 0)
        slow = [asyncio.create_task(looks.rows(["slow"], AGE_MS)) for _ in range(2)]
        while not asked:
            await asyncio.sleep(0)
        assert await looks.rows(["quick"], AGE_MS) == {"quick": "QUICK"}
        slow[0].cancel()
        await asyncio.gather(slow[0], return_exceptions=True)
        never.set()
        assert await slow[1] == {"slow": "SLOW"}, "a viewer who leaves takes no answer away"
        assert asked == [{"slow"}, {"quick"}]

    run(scenario)


def test_a_change_has_rows_fetched_again_even_those_under_way() -> None:
    async def scenario() -> None:
        broker = Broker()
        looking = asyncio.create_task(broker.looks.rows(["a"], AGE_MS))
        while not broker.asked:
            await asyncio.sleep(0)
        broker.looks.forget()
        assert await looking == {"a": "A"}
        for _ in range(2):
            assert await broker.looks.rows(["a"], AGE_MS) == {"a": "A"}
        assert len(broker.asked) == 2, "the answer that the change overtook was not kept"

    run(scenario)


def test_one_call_fetches_a_bounded_number() -> None:
    async def scenario() -> None:
        broker = Broker()
        found = await broker.looks.rows([f"n{number}" for number in range(500)], AGE_MS)
        assert len(found) == len(broker.asked[0]) == ROWS_MAX
        for begin in range(0, 3 * KEPT_MAX, ROWS_MAX):
            await broker.looks.rows([f"m{number}" for number in range(begin, begin + ROWS_MAX)], AGE_MS)
        assert len(broker.looks._kept) == KEPT_MAX

    run(scenario)


def test_a_broker_that_is_away_is_not_asked_again_at_once() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.is_away = True
        assert await broker.looks.rows(["a"], AGE_MS) == {}
        broker.now_ms = 1
        assert await broker.looks.rows(["a"], AGE_MS) == {}
        broker.is_away, broker.now_ms = False, AGE_MS
        assert await broker.looks.rows(["a"], AGE_MS) == {"a": "A"}
        assert len(broker.asked) == 2

    run(scenario)
