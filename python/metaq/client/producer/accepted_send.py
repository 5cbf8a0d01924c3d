"""The result of `send_soon` on asyncio: the message is accepted, and `await` slows its sender down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from metaq.errors import NotSent

if TYPE_CHECKING:
    from metaq._core import AsyncSendFuture
    from metaq.client.producer.send_buffer import BufferedSender

_log = logging.getLogger(__name__)


class AcceptedSend(Awaitable["AsyncSendFuture"]):
    """A message that is sent, whether or not you await it.

    `await` waits while the buffer is full, and returns the message's future. `future` is the same future,
    without the wait.
    """

    __slots__ = ("_buffered", "_future")

    _future: AsyncSendFuture

    def __init__(self, buffered: BufferedSender, future: AsyncSendFuture) -> None:
        self._buffered = buffered
        self._future = future

    @property
    def future(self) -> AsyncSendFuture:
        return self._future

    def __await__(self) -> Generator[Any, None, AsyncSendFuture]:
        if not self._buffered.is_clear or self._buffered.should_yield():
            yield from self._buffered.drain().__await__()
        return self.future


class DeferredSend(AcceptedSend):
    """A message for which there was no room at all: too many wait for the buffer already.

    `await` waits until it is accepted. If nobody awaits it, it is not sent: the log says so, and `flush` and
    `close` raise NotDelivered.
    """

    __slots__ = ("_accept", "_is_lost", "_refusal", "_timeout_s")

    def __init__(
        self,
        buffered: BufferedSender,
        accept: Callable[[], AsyncSendFuture],
        timeout_s: float,
        refusal: NotSent,
    ) -> None:
        self._buffered = buffered
        self._accept = accept
        self._timeout_s = timeout_s
        self._refusal = refusal
        self._is_lost = True

    @property
    def future(self) -> AsyncSendFuture:
        """Raises NotSent if the message was not accepted so far."""
        if self._is_lost:
            # A new one, because the traceback of an error keeps this object alive.
            raise NotSent(str(self._refusal), hint=self._refusal.hint)
        return self._future

    def __await__(self) -> Generator[Any, None, AsyncSendFuture]:
        return self._enter().__await__()

    async def _enter(self) -> AsyncSendFuture:
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._is_lost:
                    await self._buffered.drain()
                    try:
                        self._future, self._is_lost = self._accept(), False
                    except NotSent as refusal:
                        # Others were faster.
                        self._refusal = refusal
        except TimeoutError:
            self._is_lost = False  # The caller knows.
            raise self._refusal from None
        return self._future

    def __del__(self) -> None:
        if self._is_lost:
            self._buffered.count_failure(self._refusal)
            _log.error("a message of send_soon was not sent: %s (%s)", self._refusal, self._refusal.hint)
