"""The future of `send_soon` on asyncio works with all functions of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metaq import aio
from metaq.errors import ClientClosed, NotDelivered, NotSent, UsageError
from tests.support.written_broker import STORED, Answer

Scenario = Callable[[Any, threading.Event], Awaitable[None]]


def run(broker: Any, scenario: Scenario, *, code: int = 0, timeout_s: float = 60.0) -> None:
    """Runs a scenario with a producer, and an event that lets its broker answer with this code."""
    may_answer = threading.Event()

    def answer(_: int) -> Answer:
        may_answer.wait(60)
        return code, STORED

    served = broker(answer)

    async def main() -> None:
        may_answer.set()
        async with aio.Client(served.address) as client:
            producer = client.producer("g", timeout=timeout_s)
            await producer.start()
            await asyncio.wait((await producer.send_soon("t", b"warm"),))
            may_answer.clear()
            try:
                await scenario(producer, may_answer)
            finally:
                may_answer.set()
            with contextlib.suppress(NotDelivered):
                await producer.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_it_is_awaited_alone_and_together(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        futures = [await producer.send_soon("t", b"%d" % number) for number in range(20)]
        assert all(asyncio.isfuture(future) and not future.done() for future in futures)
        assert futures[0].get_loop() is asyncio.get_running_loop()
        may_answer.set()
        first = await futures[0]
        results = await asyncio.gather(*futures)
        assert results[0] == first
        assert len({result.id for result in results}) == 20
        assert await futures[3] == futures[3].result() == results[3]
        assert futures[3].exception() is None
        assert "stored" in repr(futures[3])
        later = await producer.send_soon("t", b"x")
        assert await asyncio.wait_for(asyncio.shield(later), 60) == later.result()

    run(broker, scenario)


def test_the_other_functions_of_asyncio_take_it_too(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        futures = [await producer.send_soon("t", b"x") for _ in range(5)]
        assert asyncio.ensure_future(futures[0]) is futures[0]
        done, pending = await asyncio.wait(futures, timeout=0)
        assert (done, pending) == (set(), set(futures))
        may_answer.set()
        done, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        assert done
        assert all([await each for each in asyncio.as_completed(futures)])
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(awaited(future)) for future in futures]
        assert [task.result() for task in tasks] == [future.result() for future in futures]

    run(broker, scenario)


async def awaited(future: Any) -> Any:
    return await future


def test_a_time_out_cancels_it_and_the_message_is_sent_all_the_same(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        future = await producer.send_soon("t", b"x")
        with pytest.raises(asyncio.InvalidStateError, match="still being sent"):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.001)
        assert future.cancelled()
        assert future.done()
        assert not future.cancel()
        for ask in (future.result, future.exception):
            with pytest.raises(asyncio.CancelledError):
                ask()
        with pytest.raises(asyncio.CancelledError):
            await future
        outcomes = await asyncio.gather(future, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(future)
        may_answer.set()
        await producer.flush()
        assert future.cancelled()

    run(broker, scenario)


def test_a_task_that_waits_for_it_can_be_cancelled(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        future = await producer.send_soon("t", b"x")
        waiting = asyncio.create_task(awaited(future))
        await asyncio.sleep(0)
        waiting.cancel("enough")
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await waiting
        assert cancelled.value.args == ("enough",)
        assert future.cancelled()
        stored = await producer.send_soon("t", b"x")
        shielded = asyncio.create_task(awaited(asyncio.shield(stored)))
        await asyncio.sleep(0)
        shielded.cancel()
        may_answer.set()
        await producer.flush()
        assert stored.result().queue_offset >= 7

    run(broker, scenario)


def test_callbacks_run_on_the_loop_in_their_context(broker: Any) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    called: list[tuple[str, Any]] = []

    def note(future: Any) -> None:
        called.append((name.get(), future))

    def never(_: Any) -> None:
        raise AssertionError("it was taken back")

    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        future = await producer.send_soon("t", b"x")
        name.set("here")
        future.add_done_callback(note)
        future.add_done_callback(never)
        future.add_done_callback(note, context=contextvars.Context())
        future.add_done_callback(never)
        assert future.remove_done_callback(never) == 2
        assert future.remove_done_callback(never) == 0
        name.set("elsewhere")
        may_answer.set()
        await future
        await asyncio.sleep(0)
        assert called == [("here", future), ("none", future)]
        future.add_done_callback(note)
        assert len(called) == 2, "not at once"
        await asyncio.sleep(0)
        assert called[2:] == [("elsewhere", future)]
        may_answer.clear()
        cancelled = await producer.send_soon("t", b"x")
        cancelled.add_done_callback(note)
        assert cancelled.cancel()
        may_answer.set()
        await producer.flush()
        assert called[3:] == [("elsewhere", cancelled)], "once"

    run(broker, scenario)


def test_every_await_raises_the_failure(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        future = await producer.send_soon("t", b"x")
        may_answer.set()
        for _ in range(2):
            with pytest.raises(NotSent) as failed:
                await future
        assert future.exception() is failed.value
        outcomes = await asyncio.gather(future, return_exceptions=True)
        assert outcomes == [failed.value]

    run(broker, scenario, code=2, timeout_s=1.0)


def test_a_callback_is_kept_until_it_was_called_and_no_longer(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        done: list[bool] = []

        class Waiter:
            def __call__(self, _: Any) -> None:
                done.append(True)

        waiter = Waiter()
        gone = weakref.ref(waiter)
        (await producer.send_soon("t", b"x")).add_done_callback(waiter)
        del waiter
        gc.collect()
        assert gone() is not None, "but one that somebody waits for is"
        may_answer.set()
        await producer.flush()
        await asyncio.sleep(0)
        gc.collect()
        assert done == [True]
        assert gone() is None

    run(broker, scenario)


def test_many_in_a_row_leave_the_loop_to_others(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        may_answer.set()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        for options in ({}, {"properties": {"a": "b"}}):
            before = turns
            for _ in range(3000):
                await producer.send_soon("t", b"x", **options)
            assert turns - before >= 3
        beside.cancel()

    run(broker, scenario)


async def opened_with_little_room(served: Any, **options: Any) -> tuple[aio.Client, Any]:
    client = aio.Client(served.address)
    await client.start()
    producer = client.producer("g", **{"buffer_bytes_max": 1000, "linger": 0.001, **options})
    await producer.start()
    return client, producer


def test_a_full_buffer_is_waited_for_in_turn(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))

    async def main() -> None:
        client, producer = await opened_with_little_room(served)
        order: list[int] = []

        async def send(number: int) -> None:
            await producer.send_soon("t", bytes(300 + number))
            order.append(number)

        await asyncio.wait_for(asyncio.gather(*map(send, range(200))), 60)
        await asyncio.wait_for(client.close(), 60)
        assert sorted(order) == list(range(200))

    asyncio.run(main())


def test_what_nobody_drains_is_bounded(broker: Any) -> None:
    may_answer = threading.Event()

    def answer(_: int) -> Answer:
        may_answer.wait(60)
        return 0, STORED

    served = broker(answer)

    async def main() -> None:
        client, producer = await opened_with_little_room(served, linger=60)
        futures = []
        with pytest.raises(NotSent, match=r"1000 bytes is full.*await producer\.send_soon.*buffer_bytes_max"):
            for _ in range(12):
                futures.append(producer.send_soon("t", bytes(300)).future)
        assert 2 < len(futures) < 12
        late = asyncio.create_task(awaited(producer.send_soon("t", bytes(300))))
        waiting = futures[-1]
        assert "waits for room" in repr(waiting)
        assert not waiting.done()
        with pytest.raises(asyncio.InvalidStateError):
            waiting.result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.drain(), 0.05)
        cancelled = futures[-2]
        assert cancelled.cancel()
        may_answer.set()
        await asyncio.wait_for(producer.drain(), 60)
        futures.append(await asyncio.wait_for(late, 60))
        with pytest.raises(NotDelivered, match="1 message"):
            await asyncio.wait_for(producer.flush(), 60)
        assert all(future.done() for future in futures)
        assert waiting.result().id
        assert cancelled.cancelled()
        assert len(served.asked) >= 1
        await client.close()

    try:
        asyncio.run(main())
    finally:
        may_answer.set()


def test_a_message_that_waits_too_long_is_reported_everywhere(broker: Any) -> None:
    may_answer = threading.Event()

    def answer(_: int) -> Answer:
        may_answer.wait(60)
        return 0, STORED

    served = broker(answer)

    async def main() -> None:
        client, producer = await opened_with_little_room(served)
        futures = [producer.send_soon("t", bytes(700), timeout=0.2).future for _ in range(2)]
        called: list[object] = []
        futures[1].add_done_callback(called.append)
        with pytest.raises(NotSent, match=r"1000 bytes was full for 0\.2 s"):
            await asyncio.wait_for(futures[1], 60)
        assert called == [futures[1]]
        assert isinstance(futures[1].exception(), NotSent)
        assert "not sent" in repr(futures[1])
        may_answer.set()
        with pytest.raises(NotDelivered, match="1 message was not delivered"):
            await asyncio.wait_for(producer.flush(), 60)
        await client.close()

    try:
        asyncio.run(main())
    finally:
        may_answer.set()


def test_messages_that_wait_are_given_up_at_the_close(broker: Any) -> None:
    may_answer = threading.Event()

    def answer(_: int) -> Answer:
        may_answer.wait(60)
        return 0, STORED

    served = broker(answer)

    async def main() -> None:
        client, producer = await opened_with_little_room(served)
        futures = [producer.send_soon("t", bytes(700)).future for _ in range(2)]
        draining = asyncio.create_task(producer.drain())
        await asyncio.sleep(0)
        with pytest.raises(NotDelivered, match="2 messages"):
            await producer.close(0.1)
        await asyncio.wait_for(draining, 60)
        assert all(isinstance(future.exception(), NotSent) for future in futures)
        with pytest.raises(ClientClosed):
            producer.send_soon("t", b"x")
        with pytest.raises(ClientClosed):
            await producer.drain()
        may_answer.set()
        await client.close()

    try:
        asyncio.run(main())
    finally:
        may_answer.set()


def test_a_thread_may_not_send(broker: Any) -> None:
    async def scenario(producer: Any, may_answer: threading.Event) -> None:
        with pytest.raises(UsageError, match="another event loop"):
            await asyncio.to_thread(producer.send_soon, "t", b"x")

    run(broker, scenario)
