"""Handlers that are annotated with `ReceivedMessage` settle their messages by calls, in both faces."""

from __future__ import annotations

from typing import Any

import pytest

import metaq
import metaq.aio
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until

TRIES: list[tuple[str, str, int]] = []


def plain(message: metaq.ReceivedMessage) -> None:
    assert isinstance(message, metaq.ReceivedMessage)
    body = message.body.decode()
    TRIES.append(("sync", body, message.reconsume_times))
    if body == "retried":
        if not message.reconsume_times:
            message.retry(1)
    elif body == "rejected":
        message.reject("not today")
        message.retry(1)  # The first call has decided.
    elif body == "acknowledged":
        message.ack()
        raise LookupError("too late")
    elif body == "processed":
        with message.process():
            raise metaq.Reject("in the block")


async def coroutine(message: metaq.aio.ReceivedMessage) -> None:
    assert isinstance(message, metaq.aio.ReceivedMessage)
    body = message.body.decode()
    TRIES.append(("aio", body, message.reconsume_times))
    if body == "retried":
        if not message.reconsume_times:
            await message.retry(1)
    elif body == "rejected":
        await message.reject("not today")
        await message.retry(1)
    elif body == "acknowledged":
        await message.ack()
        raise LookupError("too late")
    elif body == "processed":
        async with message.process():
            raise metaq.Reject("in the block")


def test_the_first_call_settles_the_message(face: Face, served: Served) -> None:
    async def scenario() -> None:
        topic = name(face, "received")
        await create_topic(served.broker, topic, queues=1)
        await send(served.broker, topic, "retried", "rejected", "acknowledged", "processed", "plain")
        async with connected(face, served) as client:
            declare = client.consumer(topic, group=topic, start="earliest")
            await face.call(declare, plain if face.is_sync else coroutine)
            letters = client.puller(start="earliest")
            reasons: set[str] = set()

            async def are_dead() -> bool:
                try:
                    await face.call(letters.assign, f"%DLQ%{topic}")
                except metaq.NoRoute:
                    return False
                found: list[Any] = await face.call(letters.poll, 1)
                reasons.update(letter.system_properties["DLQ_REASON"] for letter in found)
                return len(reasons) == 2

            await until(are_dead)
            await until(lambda: (face.name, "retried", 1) in TRIES)
        assert reasons == {"not today", "in the block"}
        mine = sorted((body, number) for kind, body, number in TRIES if kind == face.name)
        assert mine == [
            *(("acknowledged", 0), ("plain", 0), ("processed", 0), ("rejected", 0)),
            *(("retried", 0), ("retried", 1)),
        ]

    run(scenario)


def many(messages: list[metaq.ReceivedMessage]) -> None:
    TRIES.append(("batch", type(messages[0]).__name__, len(messages)))
    messages[0].ack()


def test_a_batch_of_them(served: Served) -> None:
    async def scenario() -> None:
        await create_topic(served.broker, "received-batch", queues=1)
        await send(served.broker, "received-batch", "a", "b")
        face = Face("sync")
        async with connected(face, served) as client:
            declare = client.consumer("received-batch", group="received-batch", start="earliest", batch=5)
            consumer = await face.call(declare, many)
            assert consumer.handler is many
            await until(lambda: any(kind == "batch" for kind, *_ in TRIES))
        assert ("batch", "ReceivedMessage", 2) in TRIES

    run(scenario)


@pytest.mark.parametrize("annotation", ["metaq.Message", "Any", ""])
def test_other_handlers_get_plain_messages(annotation: str) -> None:
    from metaq.client.consumer.received_handler import receiving

    names: dict[str, Any] = {"metaq": metaq, "Any": Any}
    exec(f"def handler(message{': ' + annotation if annotation else ''}): ...", names)
    assert receiving(names["handler"], None, lambda handled: None) is names["handler"]
