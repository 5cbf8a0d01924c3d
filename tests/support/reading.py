"""Reads everything that a topic holds, by plain pulls."""

from __future__ import annotations

import asyncio

import metaq.client.message  # noqa: F401  (gives the messages of _core their methods)
from metaq._core import Message, decode_messages
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import NoRoute
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import Pulled, PullMessage
from tests.support.waiting import wait_until

GROUP = "TOOLS_CONSUMER"
SUBSCRIPTION = 4


def stored(nameserver: str, topic: str) -> list[Message]:
    """Returns the messages of each queue in their order; nothing if the topic does not exist."""

    async def read() -> list[Message]:
        session = Session(nameserver)
        await session.start()
        try:
            route = await session.routes.get(topic)
            return [message for queue in route.readable for message in await _of(session, queue)]
        except NoRoute:
            return []
        finally:
            await session.close()

    return asyncio.run(read())


def stored_all(nameserver: str, topic: str, count: int) -> list[Message]:
    """Waits for that many messages: Apache's broker shows them a moment after it acknowledges them."""
    wait_until(lambda: len(stored(nameserver, topic)) >= count)
    return stored(nameserver, topic)


async def _of(session: Session, queue: Queue) -> list[Message]:
    messages: list[Message] = []
    offset = 0
    while True:
        command = PullMessage(
            consumer_group=GROUP,
            topic=queue.topic,
            queue_id=queue.id,
            queue_offset=offset,
            sys_flag=SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        reply = await session.call(queue.broker, command)
        if reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return messages
        if reply.code == ResponseCode.SUCCESS:
            messages += decode_messages(reply.body, queue, shows_first_topic=False)[0]
        elif reply.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
            reply.check()
        offset = reply.header(Pulled).next_begin_offset
