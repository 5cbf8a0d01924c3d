"""What runs in the background goes on, whatever happens to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer import group_member as consumer_core
from metaq.client.consumer import local_retry as parking
from metaq.client.consumer.buffers import Limits, QueueBuffer
from metaq.client.consumer.group_member import GroupConsumer
from metaq.client.consumer.handler import HandlerConsumer
from metaq.client.consumer.local_retry import Parking, _record
from metaq.client.consumer.local_retry_store import ParkedMessages
from metaq.client.consumer.options import consumer_options
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import Message
from metaq.client.session.routes import Queue

QUEUE = Queue("T", "b", 0)
OPTIONS = consumer_options("T", "g", {"ordered": True})


def test_pulling_goes_on_after_what_was_pulled_could_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_core, "FAILURE_PAUSE_S", 0)
    buffer = QueueBuffer(QUEUE, 0, Limits())
    kept: list[int] = []

    async def keep(buffer: QueueBuffer, pull: Any) -> None:
        kept.append(len(kept))
        buffer.dropped = len(kept) == 3
        raise RuntimeError("ours")

    async def pull(*_: Any, **__: Any) -> None:
        return None

    core: Any = SimpleNamespace(
        options=OPTIONS,
        _subscriptions={"T": Subscription.of("T")},
        _is_paused=lambda queue: False,
        _bytes_share=lambda: 1000,
        _puller=SimpleNamespace(pull=pull),
        _keep=keep,
    )
    asyncio.run(GroupConsumer._keep_pulling(core, buffer))
    assert len(kept) == 3


def test_a_parked_message_that_is_unreadable_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "LOOK_INTERVAL_S", 0)
    store = ParkedMessages(tmp_path / "g.sqlite")
    for queue_offset in range(2):
        message = Message("T", b"body", id=f"{queue_offset}", queue=QUEUE, queue_offset=queue_offset)
        store.park(message, _record(message), "why", 0, 0)
    store._database.execute("UPDATE parked SET record = '{' WHERE queue_offset = 0")

    async def scenario() -> None:
        tried = asyncio.Event()

        async def invoke(messages: list[Message]) -> None:
            tried.set()

        core: Any = SimpleNamespace(options=OPTIONS)
        worker = asyncio.create_task(Parking(core, store, invoke).work())
        async with asyncio.timeout(60):
            await tried.wait()
            while len(store) > 1:
                await asyncio.sleep(0.01)
        worker.cancel()

    asyncio.run(scenario())
    (row,) = store.rows()
    assert (row.queue_offset, row.due_ms) == (0, parking.NEVER_MS)
    assert "unreadable" in row.error


def test_a_handler_that_awaits_nothing_leaves_the_loop_its_turns() -> None:
    buffer = QueueBuffer(QUEUE, 0, Limits())
    turns: list[int] = []
    calls = 0

    def take_now(count: int) -> Any:
        nonlocal calls
        calls += 1
        return (buffer, []) if calls < 1000 else None

    async def take(count: int) -> None:
        return None

    async def handle(buffer: QueueBuffer, messages: list[Message]) -> None:
        pass

    async def scenario() -> None:
        async def others() -> None:
            while True:
                turns.append(calls)
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        core = SimpleNamespace(take_now=take_now, take=take)
        await HandlerConsumer._work(SimpleNamespace(core=core, _options=OPTIONS, _handle=handle))  # type: ignore[arg-type]
        beside.cancel()

    asyncio.run(scenario())
    assert len(turns) > 5


def test_renewing_locks_does_not_wait_for_a_rebalance() -> None:
    other = Queue("T", "b", 1)
    buffers = {queue: QueueBuffer(queue, 0, Limits()) for queue in (QUEUE, other)}
    dropped: list[Queue] = []

    async def lock(queues: frozenset[Queue]) -> frozenset[Queue]:
        return frozenset((QUEUE,))

    async def drop(queue: Queue) -> None:
        dropped.append(queue)

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []
        core: Any = SimpleNamespace(
            buffers=buffers,
            wake=lambda: None,
            spawn=lambda work, name: tasks.append(asyncio.create_task(work)),
            _locks=SimpleNamespace(lock=lock),
            _changing=asyncio.Lock(),
            _drop=drop,
        )
        core._drop_lapsed = lambda queues: GroupConsumer._drop_lapsed(core, queues)
        async with core._changing, asyncio.timeout(60):
            await GroupConsumer._renew_locks(core)
        assert dropped == []
        await asyncio.gather(*tasks)
        assert dropped == [other]

    asyncio.run(scenario())
    assert buffers[QUEUE].locked_until > 0
