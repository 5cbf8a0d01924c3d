"""Everything that a topic holds, read by plain pulls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from metaq._core import Message, decode_messages
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import NoRoute
from metaq.protocol.codes import ResponseCode
from metaq.protocol.messages import Pulled, PullMessage

GROUP = "TOOLS_CONSUMER"
SUBSCRIPTION = 4


def stored(nameserver: str, topic: str) -> list[Message]:
    """By queue, and in each in its order; nothing where the topic does not exist."""

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
    """Waits until there are that many: Apache's broker shows messages a moment after it acknowledges them."""
    eventually(lambda: len(stored(nameserver, topic)) >= count)
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


def eventually(find: Callable[[], object], timeout_s: float = 90.0) -> None:
    """Waits for what happens soon by itself."""
    end = time.monotonic() + timeout_s
    while not find():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
