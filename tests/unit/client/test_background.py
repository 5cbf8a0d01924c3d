"""Background work continues after failures, and leaves the event loop time for everything else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.handler import HandlerConsumer
from metaq.client.consumer.options import consumer_options
from metaq.client.consumer.pull import pull_loops
from metaq.client.consumer.pull.buffers import Limits, QueueBuffer
from metaq.client.consumer.pull.requests import PullRequests, PullResult
from metaq.client.consumer.settlement import local_retry
from metaq.client.consumer.settlement.local_retry import LocalRetries, _record
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session

QUEUE = Queue("T", "b", 0)
OPTIONS = consumer_options("T", "g", {"ordered": True})


def test_pulling_continues_after_a_pull_could_not_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_loops, "FAILURE_PAUSE_S", 0)

    async def pull(*_: Any, **__: Any) -> PullResult:
        return PullResult([], 0, False, [])

    monkeypatch.setattr(PullRequests, "pull", pull)

    async def scenario() -> None:
        member = GroupMember(Session("127.0.0.1:1"), OPTIONS)
        stored = 0
        enough = asyncio.Event()

        def put(*_: Any) -> None:
            nonlocal stored
            stored += 1
            if stored == 3:
                enough.set()
            raise RuntimeError("ours")

        member.prefetch.put = put  # type: ignore[method-assign]
        member._pulls.begin(QUEUE, 0, 0.0)
        async with asyncio.timeout(60):
            await enough.wait()
        await member._pulls.drop(QUEUE)

    asyncio.run(scenario())


def test_a_stored_message_that_is_unreadable_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_retry, "POLL_INTERVAL_S", 0)
    store = LocalRetryStore(tmp_path / "g.sqlite")
    for queue_offset in range(2):
        message = Message("T", b"body", id=f"{queue_offset}", queue=QUEUE, queue_offset=queue_offset)
        store.add(message, _record(message), "why", 0, 0)
    store._database.execute("UPDATE parked SET record = '{' WHERE queue_offset = 0")

    async def scenario() -> None:
        tried = asyncio.Event()

        async def invoke(messages: list[Message]) -> None:
            tried.set()

        retries = LocalRetries(Session("127.0.0.1:1"), OPTIONS, store, invoke)
        worker = asyncio.create_task(retries.work())
        async with asyncio.timeout(60):
            await tried.wait()
            while len(store) > 1:
                await asyncio.sleep(0)
        worker.cancel()

    asyncio.run(scenario())
    (row,) = store.rows()
    assert (row.queue_offset, row.due_ms) == (0, local_retry.NEVER_MS)
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
        member = SimpleNamespace(prefetch=SimpleNamespace(take_now=take_now, take=take))
        await HandlerConsumer._work(SimpleNamespace(member=member, _options=OPTIONS, _handle=handle))  # type: ignore[arg-type]
        beside.cancel()

    asyncio.run(scenario())
    assert len(turns) > 5


def test_renewing_locks_does_not_wait_for_a_rebalance() -> None:
    other = Queue("T", "b", 1)

    async def lock(queues: frozenset[Queue]) -> frozenset[Queue]:
        return frozenset((QUEUE,))

    async def scenario() -> None:
        member = GroupMember(Session("127.0.0.1:1"), OPTIONS)
        assignment, buffers = member.assignment, member.prefetch.buffers
        assignment._locks.lock = lock  # type: ignore[method-assign]
        for queue in (QUEUE, other):
            member._pulls.begin(queue, 0, 0.0)
        async with assignment._changing, asyncio.timeout(60):
            await assignment._renew_locks()
        assert buffers.keys() == {QUEUE, other}
        assert buffers[QUEUE].locked_until > 0
        async with asyncio.timeout(60):
            while other in buffers:
                await asyncio.sleep(0)
        assert buffers.keys() == {QUEUE}
        await member._pulls.drop(QUEUE)

    asyncio.run(scenario())
