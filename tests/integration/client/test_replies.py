"""Requests and replies between two of our clients, in both faces, on a real broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import metaq
from metaq.errors import InvalidMessage, UsageError
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until


async def asked(served: Served, topic: str, *bodies: bytes) -> list[bytes]:
    async with metaq.aio.Client(served.nameserver) as client, client.producer(f"asks-{topic}") as producer:
        replies = await asyncio.gather(*(producer.request(topic, body, timeout=60) for body in bodies))
        return [reply.body for reply in replies]


@pytest.mark.parametrize("handler", ["native", "plain", "batch"])
def test_a_handler_replies(face: Face, served: Served, handler: str) -> None:
    async def scenario() -> None:
        topic = name(face, f"asked-{handler}")
        await create_topic(served.broker, topic, queues=2)

        def answer(messages: Any) -> None:
            for message in messages if handler == "batch" else [messages]:
                message.reply(b"re:" + message.body)

        async def answer_async(message: Any) -> None:
            await message.reply(b"re:" + message.body)

        is_async = not face.is_sync and handler == "native"
        async with connected(face, served) as client:
            declare = client.consumer(
                topic, group=topic, start="earliest", batch=4 if handler == "batch" else None
            )
            await face.call(declare, answer_async if is_async else answer)
            bodies = [b"%d" % number for number in range(10)]
            assert await asked(served, topic, *bodies) == [b"re:" + body for body in bodies]

    run(scenario)


def test_a_loop_replies(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "asked-loop")
        await create_topic(served.broker, topic, queues=1)
        async with connected(face, served) as client:
            subscribed = client.subscribe(topic, group=topic, start="earliest")
            asking = asyncio.create_task(asked(served, topic, b"one"))
            message = await face.take(subscribed)
            with pytest.raises(InvalidMessage, match="bytes"):
                await face.call(message.reply, "text")
            await face.call(message.reply, b"re:" + message.body)
            await face.call(message.ack)
            assert await asking == [b"re:one"]
            await face.call(subscribed.close)

    run(scenario)


def test_a_reply_that_nobody_awaits_is_sent(served: Served) -> None:
    async def scenario() -> None:
        await create_topic(served.broker, "asked-unawaited", queues=1)
        async with metaq.aio.Client(served.nameserver) as client:

            @client.consumer("asked-unawaited", group="asked-unawaited", start="earliest")
            async def answer(message: metaq.Message) -> None:
                message.reply(b"re:" + message.body)

            assert await asked(served, "asked-unawaited", b"x") == [b"re:x"]

    run(scenario)


def test_what_cannot_be_replied_to(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "told")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "no request")
        errors: list[Exception] = []
        elsewhere: list[Exception] = []

        def try_there(message: Any) -> None:
            try:
                message.reply(b"x")
            except UsageError as error:
                elsewhere.append(error)

        def answer(message: Any) -> None:
            thread = threading.Thread(target=try_there, args=(message,))
            thread.start()
            thread.join()
            try:
                message.reply(b"x")
            except InvalidMessage as error:
                errors.append(error)

        async with connected(face, served) as client:
            await face.call(client.consumer(topic, group=topic, start="earliest"), face.handler(answer))
            await until(lambda: errors)
        assert "is not a request that waits for a reply" in str(errors[0])
        assert "must use request" in str(errors[0])
        assert "use producer.reply(message, body)" in str(elsewhere[0])
        with pytest.raises(UsageError, match=r"producer\.reply"):
            metaq.Message("t", b"x").reply(b"y")

    run(scenario)


def test_a_handler_replies_to_a_message_that_came_again(
    face: Face, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """An ordered queue gives a copy of the message; it is still a request."""
    caplog.set_level(logging.ERROR)

    async def scenario() -> None:
        topic = name(face, "asked-again")
        await create_topic(served.broker, topic, queues=1)

        def answer(message: Any) -> Any:
            if not message.reconsume_times:
                raise LookupError("not now")
            return message.reply(b"re:" + message.body)

        async def answer_async(message: Any) -> None:
            await answer(message)

        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="earliest", ordered=True, suspend=0.05)
            await face.call(declare, answer if face.is_sync else answer_async)
            assert await asked(served, topic, b"x") == [b"re:x"]

    run(scenario)
