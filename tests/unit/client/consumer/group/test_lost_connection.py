"""Locks of an ordered consumer after its connection to a broker has ended."""

from __future__ import annotations

import asyncio
import time

import pytest

from metaq.client.consumer.group import assignment
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.options import consumer_options
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session

QUEUES = [Queue("T", "a", 0), Queue("T", "b", 0)]


def test_locks_are_renewed_at_once_and_trusted_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "LOST_INTERVAL_S", 0.01)

    async def scenario() -> None:
        member = GroupMember(Session("127.0.0.1:1"), consumer_options("T", "g", {"ordered": True}))
        member.session.routes._brokers = {"a": {0: "host-a:1"}, "b": {0: "host-b:1"}}
        monkeypatch.setattr(member._pulls, "_run", lambda buffer: None)
        asked: list[frozenset[Queue]] = []
        is_reachable = asyncio.Event()

        async def lock(queues: frozenset[Queue]) -> frozenset[Queue]:
            asked.append(queues)
            return queues if is_reachable.is_set() else frozenset(QUEUES[1:])

        monkeypatch.setattr(member.assignment._locks, "lock", lock)
        for queue in QUEUES:
            member._pulls.begin(queue, 0, time.monotonic() + 30)
        lost, other = (member.prefetch.buffers[queue] for queue in QUEUES)

        member.assignment._connection_lost("host-a:1")
        assert lost.locked_until < time.monotonic() + assignment.LOST_TRUSTED_S + 0.1
        assert other.locked_until > time.monotonic() + 20
        async with asyncio.timeout(60):
            while len(asked) < 3:
                await asyncio.sleep(0.005)
            assert lost.locked_until < time.monotonic() + assignment.LOST_TRUSTED_S
            is_reachable.set()
            while member.assignment._doubtful:
                await asyncio.sleep(0.005)
        assert lost.locked_until > time.monotonic() + 20
        await member._tasks.end()

    asyncio.run(scenario())
