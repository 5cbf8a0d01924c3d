"""A message at which a loop was left comes again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run


async def loop_over(face: Face, subscribed: Any, count: int) -> list[str]:
    """Loops until the message of that number and leaves the loop there."""
    found: list[str] = []

    def plain() -> None:
        for message in subscribed:
            found.append(message.body.decode())
            if len(found) == count:
                break

    if face.is_sync:
        await asyncio.to_thread(plain)
    else:
        async for message in subscribed:
            found.append(message.body.decode())
            if len(found) == count:
                break
    return found


async def interrupt(face: Face, message: Any) -> None:
    def plain() -> None:
        with pytest.raises(KeyboardInterrupt), message.process():
            raise KeyboardInterrupt

    if face.is_sync:
        await asyncio.to_thread(plain)
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), message.process():
                await asyncio.sleep(60)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_loop_that_was_left_gives_its_message_to_the_next(
    face: Face, served: Served, ordered: bool
) -> None:
    async def scenario() -> None:
        topic = name(face, f"left-{ordered}")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a", "b", "c")
        async with connected(face, served) as client:
            subscribed = client.subscribe(
                topic, group=topic, start="earliest", ordered=ordered, idle_timeout=60
            )
            assert await loop_over(face, subscribed, 2) == ["a", "b"]
            assert await loop_over(face, subscribed, 2) == ["b", "c"]

    run(scenario)


def test_without_auto_ack_a_new_loop_takes_nothing_from_those_who_have_it(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "left-by-hand")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a", "b", "c")
        async with connected(face, served) as client:
            subscribed = client.subscribe(
                topic, group=topic, start="earliest", auto_ack=False, idle_timeout=60
            )
            assert await loop_over(face, subscribed, 2) == ["a", "b"]
            assert await loop_over(face, subscribed, 1) == ["c"]
            await face.call(subscribed.close, 0)

    run(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_whose_processing_was_cut_off_comes_again(
    face: Face, served: Served, ordered: bool
) -> None:
    async def scenario() -> None:
        topic = name(face, f"cut-{ordered}")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a", "b")
        async with connected(face, served) as client:
            subscribed = client.subscribe(
                topic, group=topic, start="earliest", ordered=ordered, idle_timeout=60
            )
            await interrupt(face, await face.take(subscribed))
            for body in (b"a", b"b"):
                message = await face.take(subscribed)
                assert message is not None and message.body == body
                await face.process(message, lambda: None)

    run(scenario)


@pytest.mark.parametrize("how", ["retry", "reject"])
def test_settling_that_was_cut_off_leaves_nothing_in_hand(
    served: Served, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario() -> None:
        face = Face("aio")
        topic = f"unsettled-{how}"
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "a")
        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=topic, start="earliest", idle_timeout=60)
            message = await face.take(subscribed)
            with monkeypatch.context() as patched:
                patched.setattr(
                    "metaq.client.consumer.settlement.settlement.send_back", lambda *_: asyncio.sleep(60)
                )
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await getattr(message, how)()
            again = await face.take(subscribed)
            assert again is not None and again.body == b"a"

    run(scenario)
