"""The page of a group with many topics and members sends a bounded number of requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin, aio
from metaq.client.session.routes import Queue
from metaq.console.pages import group_looks
from metaq.console.pages.group_looks import TIMED_TOPICS_MAX, MemberLook, QueueLook, ask_members, ask_queues
from tests.support.counted_requests import count_requests
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

TOPICS, MEMBERS, ASKED = 30, 3, 2


def test_requests_do_not_grow_with_topics_and_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_looks, "MEMBERS_ASKED_MAX", ASKED)
    served = Metaq.serve(tmp_path)
    with ExitStack() as stack:
        stack.callback(served.stop)
        admin = stack.enter_context(Admin(served.nameserver))
        prepare(admin, stack.enter_context(metaq.Client(served.nameserver)))
        for _ in range(MEMBERS):
            client = stack.enter_context(metaq.Client(served.nameserver))
            stack.enter_context(client.subscribe("many-00", group="crowd"))
        wait_until(lambda: len(admin.groups.members("crowd").members) == MEMBERS)
        queues, members, asked = asyncio.run(look(served.nameserver, monkeypatch))
    assert {queue.topic for queue in queues.rows} == {f"many-{number:02}" for number in range(TOPICS)}
    assert len(queues.untimed) == TOPICS - TIMED_TOPICS_MAX
    assert (asked["GetConsumeStats"], asked["QueryConsumeTimeSpan"]) == (2, TIMED_TOPICS_MAX)
    assert (asked["GetConsumerConnectionList"], asked["GetConsumerRunningInfo"]) == (2, ASKED)
    assert (len(members.members.members), len(members.running), members.knows_all) == (MEMBERS, ASKED, False)


def prepare(admin: Admin, client: metaq.Client) -> None:
    """A group that is behind in every topic. It is stopped, because brokers leave out topics that a running
    group does not subscribe to."""
    with client.producer() as producer:
        for number in range(TOPICS):
            producer.send(f"many-{number:02}", b"waits")
    admin.groups.create("many")
    for number in range(TOPICS):
        queues = [Queue(f"many-{number:02}", "broker-a", queue) for queue in range(4)]
        admin.offsets.commit("many", dict.fromkeys(queues, 0))


async def look(
    nameserver: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[QueueLook, MemberLook, Counter[str]]:
    async with aio.Admin(nameserver, timeout=30.0, partial=True) as admin:
        with monkeypatch.context() as counting:
            asked = count_requests(counting)
            queues = await ask_queues(admin.groups, "many", (), None)
            return queues, await ask_members(admin.groups, "crowd"), asked
