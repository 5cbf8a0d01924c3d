"""Threads for the work that clients ask for: each kind has its own, each connection gets its turn."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import Asker
from metaq.turns import REMEMBERED_MAX, Turns
from metaq.work_pools import HELD_S, NICENESS, WorkPool, WorkPools, let_event_loop_run
from tests.support.fake_request import FakeRequest
from tests.support.waiting import run, until

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.9"


def peer(connection: int, host: str = HERE) -> FakeRequest:
    return FakeRequest(connection=connection, remote=f"{host}:{50_000 + connection}")


def test_connections_take_turns() -> None:
    done: list[int] = []

    async def scenario() -> None:
        pool = WorkPool("test", 1, waiting_max=5)
        gate = threading.Event()
        first = asyncio.create_task(pool.run(peer(0), gate.wait))
        await asyncio.sleep(0)
        work = [
            asyncio.create_task(pool.run(peer(connection), lambda number=connection: done.append(number)))
            for connection in (1, 1, 1, 1, 1, 2, 3, 3)
        ]
        await asyncio.sleep(0)
        assert [pool.waiting(peer(connection)) for connection in (0, 1, 2, 3)] == [0, 5, 1, 2]
        with pytest.raises(Refused, match="5 requests of this connection wait") as raised:
            await pool.run(peer(1), lambda: None)
        assert raised.value.code == 2
        gate.set()
        await asyncio.gather(first, *work)
        assert pool.waiting(peer(1)) == 0

    run(scenario)
    assert done.index(2) <= 3 and done.index(3) <= 4
    assert Counter(done) == {1: 5, 2: 1, 3: 2}


def test_who_has_used_little_does_not_wait_for_all_who_have_used_much() -> None:
    """Nine connections keep the thread busy. A newcomer waits for the work that runs, and for one turn."""
    done: list[int] = []

    async def scenario() -> None:
        pool = WorkPool("test", 1)
        busy = [
            asyncio.create_task(pool.run(peer(connection), lambda number=connection: _work(done, number)))
            for connection in range(9)
            for _ in range(40)
        ]
        await until(lambda: len(done) > 20)
        before = len(done)
        await pool.run(peer(9), lambda: done.append(9))
        assert done.index(9) - before <= 3
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    run(scenario)


def test_addresses_take_turns_before_connections() -> None:
    """A hundred connections of one address, each a newcomer, wait for one piece of work each. Another address
    waits for the work that runs, and for one turn."""
    done: list[str] = []

    async def scenario() -> None:
        pool = WorkPool("test", 1)
        gate = threading.Event()
        first = asyncio.create_task(pool.run(peer(0), gate.wait))
        await asyncio.sleep(0)
        flood = [asyncio.create_task(pool.run(peer(n), lambda: done.append(HERE))) for n in range(1, 101)]
        await asyncio.sleep(0)
        other = [
            asyncio.create_task(pool.run(peer(number, ELSEWHERE), lambda: done.append(ELSEWHERE)))
            for number in (101, 101, 102)
        ]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *flood, *other)
        assert not pool._turns._of, "addresses that do not wait any more are forgotten"

    run(scenario)
    # The newcomer is next. Then it has used next to nothing, like the other: they take turns.
    assert done.index(ELSEWHERE) <= 1
    assert done[:10].count(ELSEWHERE) == 3
    assert done.count(HERE) == 100


def test_an_address_has_no_more_turns_if_it_opens_more_connections() -> None:
    turns = Turns()
    loop = asyncio.new_event_loop()
    taken: list[str] = []
    whose: dict[asyncio.Future[None], Asker] = {}
    for number in range(200):
        for asker in (Asker(HERE, number), Asker(ELSEWHERE, 1_000)):
            turn = loop.create_future()
            whose[turn] = asker
            turns.add(asker, turn)
    for _ in range(100):
        turn_or_none = turns.take()
        assert turn_or_none is not None
        asker = whose[turn_or_none]
        taken.append(asker.source)
        turns.charge(asker, 1.0)
    assert abs(taken.count(HERE) - taken.count(ELSEWHERE)) <= 2
    loop.close()


def test_connections_of_an_address_are_one_in_a_pool_by_address() -> None:
    async def scenario() -> None:
        pool = WorkPool("test", 1, waiting_max=2, is_by_address=True)
        gate = threading.Event()
        first = asyncio.create_task(pool.run(peer(0), gate.wait))
        await asyncio.sleep(0)
        work = [asyncio.create_task(pool.run(peer(number), lambda: None)) for number in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="2 requests of this address wait"):
            await pool.run(peer(3), lambda: None)
        other = asyncio.create_task(pool.run(peer(4, ELSEWHERE), lambda: 5))
        gate.set()
        assert await other == 5
        await asyncio.gather(first, *work)

    run(scenario)


def _work(done: list[int], number: int) -> None:
    time.sleep(0.02)
    done.append(number)


def test_a_connection_that_was_away_does_not_take_all_turns() -> None:
    turns = Turns()
    loop = asyncio.new_event_loop()
    waiting = {connection: [loop.create_future() for _ in range(20)] for connection in (1, 2)}
    whose = {id(turn): connection for connection, of_one in waiting.items() for turn in of_one}

    def take() -> int:
        turn = turns.take()
        assert turn is not None
        connection = whose[id(turn)]
        turns.charge(Asker(HERE, connection), 1.0)
        return connection

    for turn in waiting[1]:
        turns.add(Asker(HERE, 1), turn)
    assert [take() for _ in range(10)] == [1] * 10
    for turn in waiting[2]:
        turns.add(Asker(HERE, 2), turn)
    assert Counter(take() for _ in range(10)) == {1: 5, 2: 5}
    loop.close()


def test_a_stream_of_newcomers_has_no_more_than_its_share() -> None:
    """Each of them asks once and leaves. One connection that asks again and again still has its turns."""
    turns = Turns()
    loop = asyncio.new_event_loop()
    whose: dict[int, int] = {}
    taken: list[int] = []

    def add(connection: int) -> None:
        turn = loop.create_future()
        kept.append(turn)
        whose[id(turn)] = connection
        turns.add(Asker(HERE, connection), turn)

    kept: list[asyncio.Future[None]] = []
    for _ in range(1_000):
        add(0)
    for newcomer in range(1, 5_000):
        add(newcomer)
        turn = turns.take()
        assert turn is not None
        taken.append(whose[id(turn)])
        turns.charge(Asker(HERE, taken[-1]), 1.0)
    assert taken.count(0) == 1_000
    assert len(turns._of[HERE]._order._used_s) <= REMEMBERED_MAX, "connections that have left are forgotten"
    loop.close()


def test_long_work_gives_the_lock_away_after_a_time_and_not_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, pauses = 100.0, 0

    def sleep(duration_s: float) -> None:
        nonlocal pauses
        pauses += 1

    monkeypatch.setattr("metaq.work_pools.time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))

    def work() -> None:
        nonlocal now_s
        for _ in range(10_000):
            now_s += HELD_S / 100
            let_event_loop_run()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 95 <= pauses <= 101


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_threads_that_serve_connections_run_before_those_that_compute() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def scenario() -> None:
        pools = WorkPools()
        own = priority()
        for pool in (pools.look_ups, pools.compilation, pools.administration):
            assert await pool.run(peer(0), priority) == min(own + NICENESS, 19)
        assert await pools.storing.run(peer(0), priority) == own, "a client waits for the store with it"
        assert priority() == own

    run(scenario)


def test_a_request_that_is_given_up_keeps_no_thread() -> None:
    async def scenario() -> None:
        pool = WorkPool("test", 1)
        gate = threading.Event()
        first = asyncio.create_task(pool.run(peer(1), gate.wait))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(pool.run(peer(1), lambda: None)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        gate.set()
        await first
        assert await pool.run(peer(2), lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await pool.run(peer(2), lambda: 1 // 0)
        assert await pool.run(peer(2), lambda: 6) == 6

    run(scenario)


def test_work_that_nobody_waits_for_ends_at_its_next_step_or_never_begins() -> None:
    async def scenario() -> None:
        pool = WorkPool("test", 1)
        steps = 0
        stopped = threading.Event()

        def long_work() -> None:
            nonlocal steps
            try:
                for _ in range(20_000):
                    time.sleep(0.001)
                    steps += 1
                    let_event_loop_run()
            finally:
                stopped.set()

        begun: list[int] = []
        running = asyncio.create_task(pool.run(peer(1), long_work))
        queued = [asyncio.create_task(pool.run(peer(1), lambda: begun.append(1))) for _ in range(100)]
        await until(lambda: steps > 3)
        for task in (running, *queued):
            task.cancel()
        await asyncio.gather(running, *queued, return_exceptions=True)
        assert all(task.cancelled() for task in (running, *queued))
        assert await pool.run(peer(2), lambda: 5) == 5
        # The one thread was free only once the long work had ended.
        assert stopped.is_set()
        assert steps < 20_000
        assert begun == []

    run(scenario)


def test_no_kind_of_work_waits_for_another() -> None:
    async def scenario() -> None:
        pools = WorkPools()
        gate = threading.Event()
        look_ups = [asyncio.create_task(pools.look_ups.run(peer(1), gate.wait)) for _ in range(50)]
        storing = [asyncio.create_task(pools.storing.run(peer(1), gate.wait)) for _ in range(50)]
        await asyncio.sleep(0)
        name = await pools.compilation.run(peer(1), lambda: threading.current_thread().name)
        assert name.startswith("metaq-compilation")
        assert await asyncio.to_thread(lambda: 5) == 5
        gate.set()
        await asyncio.gather(*look_ups, *storing)

    run(scenario)
