"""Mistakes of users that strict type checkers must find: on each line with the mark, and on no other."""

from __future__ import annotations

from collections.abc import Sequence

import metaq
import metaq.aio

client = metaq.Client("127.0.0.1:9876")
aio_client = metaq.aio.Client("127.0.0.1:9876")


async def asynchronous(message: metaq.Message) -> None:
    print(message.id)


def single(message: metaq.Message) -> None:
    print(message.id)


def batched(messages: Sequence[metaq.Message]) -> None:
    print(messages[0].id)


def received(message: metaq.ReceivedMessage) -> None:
    message.ack()


async def received_many(messages: list[metaq.aio.ReceivedMessage]) -> None:
    await messages[0].ack()


def other(message: str) -> None:
    print(message)


client.consumer("orders", group="g")(asynchronous)  # wrong
client.consumer("orders", group="g")(batched)  # wrong
client.consumer("orders", group="g", batch=5)(single)  # wrong
client.consumer("orders", group="g")(other)  # wrong
aio_client.consumer("orders", group="g")(batched)  # wrong
aio_client.consumer("orders", group="g", batch=5)(asynchronous)  # wrong
client.consumer("orders", group="g", batch=5)(received)  # wrong
aio_client.consumer("orders", group="g")(received_many)  # wrong
client.consumer("orders", group="g", retry=5)(single)  # wrong
metaq.RetryPolicy(first="soon")  # wrong
client.consumer("orders", group="g", concurrency="4")(single)  # wrong
client.consumer("orders", group="g", start="middle")(single)  # wrong
client.consumer("orders", group="g", colour="red")(single)  # wrong
client.producer("g").send("orders", "text")  # wrong
client.producer("g").send("orders", b"x", properties=[("a", "b")])  # wrong
client.producer("g").send("orders", b"x", keys=7)  # wrong
client.puller(start=None)  # wrong
metaq.Retry(after="soon")  # wrong
metaq.Clint("127.0.0.1:9876")  # wrong
print(metaq.NotSend)  # wrong
