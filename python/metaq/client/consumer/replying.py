"""Replies to requests, from the code that consumes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from metaq.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from metaq._core import Message
    from metaq.client.session.session import Session

Reply = Callable[["Message", "Buffer"], Awaitable[None]]

_current: ContextVar[Reply | None] = ContextVar("metaq_reply", default=None)
"""How the handler that runs here replies. It is set once for each thread or task that calls handlers, so it
costs nothing per message."""


class Sent(Awaitable[None]):
    """A reply that its broker has taken. Nothing is left to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


SENT: Final = Sent()


def reply(message: Message, body: Buffer) -> Awaitable[None]:
    """Replies from the handler that runs in this thread or task; `Message.reply` calls it."""
    current = _current.get()
    if current is None:
        raise UsageError(
            "message.reply works in the handler that got the message",
            hint="elsewhere, for example in a thread of your own, use producer.reply(message, body)",
        )
    return current(message, body)


def reply_from_here(how: Reply) -> None:
    """Makes `Message.reply` work in this thread or task, and in those that inherit its context."""
    _current.set(how)


def task_reply(session: Session, group: str) -> Reply:
    """Returns how a coroutine function replies: in a task that begins at once, so that a reply is sent even
    if nobody awaits it."""

    def send(message: Message, body: Buffer) -> Awaitable[None]:
        content = _checked(message, body)
        return asyncio.ensure_future(_send(session, group, message, content))

    return send


def blocking_reply(session: Session, group: str, loop: asyncio.AbstractEventLoop) -> Reply:
    """Returns how a plain function replies: it waits until the broker has the reply."""

    def send(message: Message, body: Buffer) -> Awaitable[None]:
        content = _checked(message, body)
        asyncio.run_coroutine_threadsafe(_send(session, group, message, content), loop).result()
        return SENT

    return send


def _checked(message: Message, body: Buffer) -> bytes:
    from metaq.client.message import checked_body
    from metaq.client.producer.request_reply import require_request

    require_request(message)
    return checked_body(body)


async def _send(session: Session, group: str, message: Message, body: bytes) -> None:
    from metaq.client.producer.request_reply import send_reply

    await send_reply(session, group, message, body)
