"""Checks that brokers can write exactly once: only MetaQ's accept half messages that hold many messages."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable
from typing import Final

from metaq.client.message import check_topic
from metaq.client.producer.row_sender import route_of
from metaq.client.session.session import Session
from metaq.errors import NoRoute
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import MeasureQueue
from metaq.protocol.errors import Unreachable
from metaq.retry import Retry, steady
from metaq.spark.errors import OptionError

PAUSE_S: Final = 0.5

_ours: weakref.WeakKeyDictionary[Session, set[str]] = weakref.WeakKeyDictionary()
"""Addresses of MetaQ brokers."""


async def require_metaq(session: Session, topics: Iterable[str], timeout_s: float) -> None:
    """Raises OptionError if a broker of a topic is not a MetaQ broker, NoRoute if the topic does not exist,
    and Unreachable if none of its brokers answers in time.

    It does not wait for a broker that is away while others answer: rows go to the others meanwhile.
    """
    tries = Retry(timeout_s, steady(PAUSE_S))
    for topic in topics:
        check_topic(topic)
        while True:
            route = await route_of(session, topic, tries.left_s)
            names = sorted({queue.broker for queue in route.writable})
            found = await asyncio.gather(*(_away(session, topic, name) for name in names))
            away = [error for error in found if error is not None]
            if not names or len(away) < len(names):
                break
            if not await tries.pause():
                raise away[0]


async def _away(session: Session, topic: str, broker: str) -> Unreachable | NoRoute | None:
    """Returns why a broker does not answer. Raises OptionError if it is not a MetaQ broker."""
    known = _ours.setdefault(session, set())
    try:
        address = session.address(broker)
        if address in known:
            return None
        # The broker need not have the topic; it only has to know the request.
        command = MeasureQueue(topic=topic, queue_id=0, queue_offset=0, end_offset=0)
        reply = await session.call(broker, command)
    except (Unreachable, NoRoute) as error:
        return error
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise OptionError(
            f"option deliveryGuarantee is exactly_once, and {broker} at {address}, a broker of topic {topic},"
            " is not a MetaQ broker: it would show rows to no consumer",
            hint="deliveryGuarantee=at_least_once writes to every broker",
        )
    known.add(address)
    return None
