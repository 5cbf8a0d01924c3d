"""The plain and the asyncio client behind one interface, so that a scenario is written once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import metaq
import metaq.aio
from metaq.protocol.commands.messages import SendMessageV2, Sent
from metaq.protocol.commands.topics import UpdateAndCreateTopic
from tests.support.patient import Connection

FACES = ("sync", "aio")


class Face:
    """Makes clients of one kind: plain ("sync") or asyncio ("aio")."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_sync = name == "sync"

    def client(self, nameserver: str, **options: Any) -> Any:
        return (
            metaq.Client(nameserver, **options) if self.is_sync else metaq.aio.Client(nameserver, **options)
        )

    async def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Calls a method, plain or asynchronous."""
        if self.is_sync:
            return await asyncio.to_thread(functools.partial(function, *arguments, **keywords))
        outcome = function(*arguments, **keywords)
        return await outcome if inspect.isawaitable(outcome) else outcome

    def handler(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a handler for this client that calls the function; the asyncio client awaits it."""
        if self.is_sync:
            return function

        async def handle(message: Any) -> Any:
            return function(message)

        return handle

    async def take(self, subscribed: Any) -> Any:
        """Returns the next message of an iteration; None at its end."""
        if self.is_sync:
            return await asyncio.to_thread(next, subscribed, None)
        return await anext(subscribed, None)

    async def process(self, message: Any, work: Callable[[], None]) -> None:
        if self.is_sync:

            def processed() -> None:
                with message.process():
                    work()

            await asyncio.to_thread(processed)
        else:
            async with message.process():
                work()


async def create_topic(broker: str, topic: str, queues: int = 4) -> None:
    connection = await Connection.open(broker)
    try:
        command = UpdateAndCreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
        (await connection.call(command)).check()
    finally:
        await connection.close()


async def send(broker: str, topic: str, *bodies: str, queue_id: int = 0, **properties: str) -> list[Sent]:
    """Sends to one queue without the client under test."""
    connection = await Connection.open(broker)
    try:
        sent: list[Sent] = []
        for body in bodies:
            command = SendMessageV2(
                producer_group="tests",
                topic=topic,
                queue_id=queue_id,
                properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
            )
            sent.append((await connection.call(command, body.encode())).check().header(Sent))
        return sent
    finally:
        await connection.close()
