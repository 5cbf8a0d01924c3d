"""Programs of users that type checkers must accept in their strict modes."""

from __future__ import annotations

import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import metaq
import metaq.aio
from metaq import (
    Consumer,
    Message,
    MetaqError,
    NotDelivered,
    NotDurable,
    NotSent,
    Producer,
    Puller,
    ReceivedMessage,
    Refused,
    SendFuture,
    Unreachable,
    UnusableFile,
)

client = metaq.Client("127.0.0.1:9876")
aio_client = metaq.aio.Client("127.0.0.1:9876")


@client.consumer("orders", group="one", tags=["paid"], start="earliest", concurrency=4)
def one(message: metaq.Message) -> None:
    if not message.body:
        raise metaq.Reject("empty")
    if message.reconsume_times > 3:
        raise metaq.Retry(60)
    if datetime.now(UTC) - message.stored_time > timedelta(hours=1):
        raise metaq.Retry(timedelta(minutes=1), "old")
    raise metaq.Retry("locked", after=timedelta(minutes=1))


@client.consumer("orders", group="many", batch=100, start=datetime.now())
def many(messages: list[metaq.Message]) -> None:
    print(messages[0].born_time.year, len(messages))


@client.consumer("orders", group="sequence", batch=100, mode="broadcast", offsets="memory")
def sequence(messages: Sequence[Message]) -> None:
    print(messages[0].born_at + 1)


@aio_client.consumer("orders", group="task")
async def task(message: metaq.Message) -> None:
    print(message.keys)


@aio_client.consumer("orders", group="tasks", batch=5)
async def tasks(messages: list[metaq.Message]) -> int:
    return len(messages)


@aio_client.consumer("orders", group="thread")
def thread(message: metaq.Message) -> None:
    print(message.tag)


def declare(batch: int | None) -> Consumer:
    def either(message: object) -> None:
        print(message)

    return client.consumer("orders", group="either", batch=batch)(either)


def read(puller: Puller) -> list[Message]:
    puller.seek("earliest")
    puller.seek(datetime.now())
    puller.seek(7)
    return puller.poll(1, count=10)


def settle(message: ReceivedMessage) -> None:
    with message.process():
        print(message.body.decode())
    message.retry(timedelta(seconds=5))
    message.reject("never")


def send(producer: Producer) -> SendFuture:
    try:
        result = producer.send("orders", b"x", keys=None, properties={"a": "b"}, delay=timedelta(hours=2))
        print(result.id, result.queue.id, result.status)
        producer.send("orders", bytearray(b"x"), keys=["k"])
        producer.send("orders", memoryview(b"x"), key="k")
        producer.send("orders", array.array("d", [1.0]))
        producer.send_many([Message("orders", b"x")], key=lambda message: message.id)
    except NotDurable as error:
        print(error.result.offset_id)
    except NotDelivered as error:
        print(error.count)
    except (NotSent, Refused, Unreachable, UnusableFile) as error:
        print(error.code, error.retriable, error.hint)
    except MetaqError:
        raise
    return producer.send_soon("orders", b"x", tag="t")


@client.consumer("orders", group="received", retry=metaq.RetryPolicy(first=5), handler_timeout=30)
def settles(message: metaq.ReceivedMessage) -> None:
    message.reply(b"thanks")
    if message.tag is None:
        message.reject("no tag")
    message.retry(60)


@client.consumer("orders", group="received-batch", batch=3)
def settles_many(messages: list[metaq.ReceivedMessage]) -> None:
    for message in messages:
        message.ack()


@client.consumer("orders", group="replies")
def replies(message: Message) -> None:
    message.reply(b"thanks")


@aio_client.consumer("orders", group="received")
async def settles_on_asyncio(message: metaq.aio.ReceivedMessage) -> None:
    await message.reply(b"thanks")
    await message.ack()


@aio_client.consumer("orders", group="received-batch", batch=3)
async def settles_many_on_asyncio(messages: list[metaq.aio.ReceivedMessage]) -> None:
    for message in messages:
        await message.ack()


async def on_asyncio(producer: metaq.aio.Producer) -> metaq.SendResult:
    future: metaq.aio.AsyncSendFuture = await producer.send_soon("orders", b"x")
    await producer.drain()
    async for message in aio_client.subscribe("orders", group="loop", idle_timeout=3):
        async with message.process():
            print(message.queue_offset)
    return await future


if __name__ == "__main__":
    client.start(wait=10)
    with client.producer("shop", compression="zstd") as shop:
        print(send(shop).result(5).id)
    one(Message("orders", b"x"))
    many([Message("orders", b"x")])
    client.run(timeout=3)
