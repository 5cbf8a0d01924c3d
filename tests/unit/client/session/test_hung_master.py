"""An attempt at a master that hangs ends when another node has become the master, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from metaq.client.session import hung_master
from metaq.client.session.hung_master import unless_replaced
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply
from tests.support.waiting import run, until

ANSWER = Reply(0, "", {}, b"")


@pytest.fixture(autouse=True)
def _without_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hung_master, "PATIENCE_S", 0.01)
    monkeypatch.setattr(hung_master, "LOOK_INTERVAL_S", 0.001)
    yield


class Master:
    """The former master, and what the route says of it."""

    def __init__(self, *, lives: bool, has_moved: bool) -> None:
        self.lives, self.moved = lives, has_moved
        self.probes = self.looks = 0
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def probe(self, timeout_s: float) -> Reply:
        self.probes += 1
        if not self.lives:
            raise Unreachable("no answer")
        return Reply(17, "no such topic", {}, b"")

    async def has_moved(self) -> bool:
        self.looks += 1
        return self.moved

    def attempt(self) -> asyncio.Task[Reply]:
        return asyncio.create_task(unless_replaced(self.answer, self.probe, self.has_moved))


def test_a_quick_answer_costs_nothing() -> None:
    async def scenario() -> None:
        master = Master(lives=False, has_moved=True)
        master.answer.set_result(ANSWER)
        assert await master.attempt() == ANSWER
        assert (master.probes, master.looks) == (0, 0)

    run(scenario)


def test_an_attempt_at_a_hung_master_ends_once_it_was_replaced() -> None:
    async def scenario() -> None:
        master = Master(lives=False, has_moved=False)
        attempt = master.attempt()
        await until(lambda: master.looks > 3)
        assert not attempt.done(), "nobody else could take the message"
        master.moved = True
        with pytest.raises(Unreachable, match="hangs"):
            await attempt
        assert master.answer.cancelled()

    run(scenario)


def test_a_former_master_that_lives_may_still_answer() -> None:
    async def scenario() -> None:
        master = Master(lives=True, has_moved=True)
        attempt = master.attempt()
        await until(lambda: master.probes > 3)
        assert not attempt.done() and master.looks == 0, "nobody asks for routes while it lives"
        master.answer.set_result(ANSWER)
        assert await attempt == ANSWER

    run(scenario)


def test_the_failure_of_an_attempt_is_passed_on_and_nothing_is_left_running() -> None:
    async def scenario() -> None:
        master = Master(lives=False, has_moved=False)
        attempt = master.attempt()
        await until(lambda: master.probes > 1)
        master.answer.set_exception(Unreachable("out of time"))
        with pytest.raises(Unreachable, match="out of time"):
            await attempt
        probes = master.probes
        await asyncio.sleep(0.02)
        assert master.probes == probes
        cancelled = Master(lives=False, has_moved=False)
        attempt = cancelled.attempt()
        await until(lambda: cancelled.probes > 1)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert cancelled.answer.cancelled()

    run(scenario)
