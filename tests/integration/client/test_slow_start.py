"""A consumer that fails to start, or is closed while it starts, leaves no member in the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq.client.session.session import Session
from metaq.errors import MetaqError
from tests.integration.broker_cluster import run, until
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic


async def declare(face: Face, client: Any, kind: str, topic: str) -> Any:
    if kind == "handler":
        return await face.call(client.consumer(topic, group=topic), face.handler(lambda message: None))
    return client.subscribe(topic, group=topic, idle_timeout=1)


# In the plain face the declaration returns after the start, so there is nothing to close before.
@pytest.mark.parametrize(
    ("face", "kind"),
    [("sync", "iteration"), ("aio", "iteration"), ("aio", "handler")],
    indirect=["face"],
)
def test_a_close_ends_a_start_that_hangs(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    beat = Session.beat
    begun: list[Session] = []
    ended: list[Session] = []

    async def slow(session: Session) -> None:
        begun.append(session)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(session)
        await beat(session)

    async def scenario() -> None:
        topic = name(face, f"slow-{kind}")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            monkeypatch.setattr(Session, "beat", slow)
            consumer = await declare(face, client, kind, topic)
            starting = asyncio.create_task(face.call(consumer.start))
            await until(lambda: bool(begun))
            await face.call(consumer.close, 0.2)
            assert ended, "the start went on"
            await asyncio.wait_for(starting, 60)
            assert not begun[0]._consumers
            monkeypatch.setattr(Session, "beat", beat)

    run(scenario)


def test_an_iteration_that_cannot_start_leaves_nothing(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Session] = []

    async def fail(session: Session) -> None:
        begun.append(session)
        raise MetaqError("not today")

    async def scenario() -> None:
        topic = name(face, "no-start")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            subscribed = await declare(face, client, "iteration", topic)
            with monkeypatch.context() as patched:
                patched.setattr(Session, "beat", fail)
                with pytest.raises(MetaqError, match="not today"):
                    await face.call(subscribed.start)
            assert subscribed.is_closed
            assert not begun[0]._consumers
            client.subscribe(topic, group=topic)

    run(scenario)
