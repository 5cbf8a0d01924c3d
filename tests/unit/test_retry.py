"""The one loop that tries again."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from metaq.errors import MetaqError
from metaq.retry import Backoff, Retry, retry, steady


class Passing(MetaqError):
    retriable = True


def failing(count: int, error: MetaqError) -> tuple[list[int], object]:
    calls: list[int] = []

    async def call() -> str:
        calls.append(1)
        if len(calls) <= count:
            raise error
        return "done"

    return calls, call


def test_pauses_grow_up_to_their_bound_and_differ() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0, jitter=0.0)
    assert [backoff.pause_s(tries) for tries in (1, 2, 3, 4, 5, 10_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses = {Backoff(jitter=0.5).pause_s(5) for _ in range(20)}
    assert len(pauses) > 1
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
    assert {steady(0.3).pause_s(tries) for tries in range(1, 9)} == {0.3}


def test_what_may_pass_is_tried_again() -> None:
    calls, call = failing(3, Passing("later"))
    assert asyncio.run(retry(call, 60, backoff=steady(0.001))) == "done"  # type: ignore[arg-type]
    assert len(calls) == 4


def test_what_will_not_pass_is_raised_at_once() -> None:
    calls, call = failing(3, MetaqError("never"))
    with pytest.raises(MetaqError, match="never"):
        asyncio.run(retry(call, 60))  # type: ignore[arg-type]
    assert len(calls) == 1


def test_a_rule_of_its_own() -> None:
    calls, call = failing(1, MetaqError("never"))
    outcome = retry(call, 60, backoff=steady(0.001), retriable=lambda error: "never" in str(error))  # type: ignore[arg-type]
    assert asyncio.run(outcome) == "done"
    assert len(calls) == 2


def test_no_time_is_one_try() -> None:
    calls, call = failing(9, Passing("later"))
    with pytest.raises(Passing, match="later"):
        asyncio.run(retry(call, 0))  # type: ignore[arg-type]
    assert len(calls) == 1


def test_a_pause_never_passes_the_deadline() -> None:
    began = time.monotonic()
    tries = Retry(0.2, steady(0.15))
    assert tries.pause_blocking()
    assert not tries.pause_blocking(), "a second one would end too late"
    assert tries.tries == 2
    assert time.monotonic() - began < 0.3
    assert 0 <= tries.left_s < 0.1


def test_without_a_timeout_it_never_ends() -> None:
    tries = Retry(None, steady(0.0))
    assert tries.left_s == float("inf")
    assert all(asyncio.run(tries.pause()) for _ in range(3))


def test_the_last_try_has_no_pause() -> None:
    tries = Retry(None, steady(0.0), tries_max=3)
    assert [tries.pause_blocking() for _ in range(3)] == [True, True, False]
    calls, call = failing(9, Passing("later"))
    with pytest.raises(Passing, match="later"):
        asyncio.run(retry(call, None, backoff=steady(0.0), tries_max=2))  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_try_at_once_counts_and_obeys_the_deadline() -> None:
    tries = Retry(60, Backoff(first_s=0.1, jitter=0.0))
    assert tries.next_pause_s(at_once=True) == 0.0
    assert tries.next_pause_s() == 0.2, "it was the second failure"
    assert Retry(0).next_pause_s(at_once=True) is None


def test_after_a_success_the_pauses_begin_again() -> None:
    tries = Retry(None, Backoff(first_s=0.1, jitter=0.0))
    assert [tries.next_pause_s(), tries.next_pause_s()] == [0.1, 0.2]
    tries.reset()
    assert tries.next_pause_s() == 0.1


def test_a_stop_ends_the_pause() -> None:
    stop = threading.Event()
    tries = Retry(None, steady(0.001))
    assert tries.pause_blocking(stop)
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    assert not Retry(None, steady(60.0)).pause_blocking(stop)
    timer.join()
    assert not tries.pause_blocking(stop), "it was set before"
