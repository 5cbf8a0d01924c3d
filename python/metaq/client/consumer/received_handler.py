"""Handlers whose parameter is annotated with `ReceivedMessage`.

A handler gets a plain `Message`, because that costs nothing per message. If its annotation asks for a
`ReceivedMessage`, it gets one, and can also settle the message by `ack`, `retry` and `reject`. The first of
these calls decides; if there is none, the end of the handler does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
import typing
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from metaq.client.consumer.handler_signature import bare, is_coroutine_function
from metaq.client.consumer.iteration import Unsettled
from metaq.client.consumer.replying import reply
from metaq.client.consumer.subscription import Retry

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from metaq._core import Message

_log = logging.getLogger(__name__)

_WRITTEN: Final = re.compile(r"\bReceivedMessage\b")


class HandledMessage(Unsettled):
    """A message in the hands of a handler. The caller of the handler settles it as `outcome` says."""

    outcome: Exception | None = None
    """The error that settles the message; None acknowledges it."""

    def processing(self) -> AbstractContextManager[object]:
        return nullcontext()  # The call of the handler is reported already.

    def ack(self) -> None:
        self._is_first()

    async def retry(self, after: float | None = None, error: BaseException | None = None) -> None:
        if self._is_first():
            self.outcome = error if isinstance(error, Exception) else Retry(after=after)

    async def reject(self, error: BaseException) -> None:
        if self._is_first():
            self.outcome = error if isinstance(error, Exception) else None

    def give_back(self) -> None:
        """Does nothing: the interruption reaches the caller of the handler, which gives the message back."""

    def reply(self, message: Message, body: Buffer) -> Awaitable[None]:
        return reply(self.message, body)

    async def send_reply(self, message: Message, body: Buffer) -> None:
        raise NotImplementedError  # A plain handler replies from its own thread.


Receive = Callable[[HandledMessage], Any]
"""Makes the `ReceivedMessage` of one face of the client."""


def receiving(handler: Callable[..., Any], batch: int | None, receive: Receive) -> Callable[..., Any]:
    """Returns the handler, or a function that calls it with `ReceivedMessage`s if it is annotated so."""
    if not _wants_received(handler):
        return handler

    def received(argument: Message | Sequence[Message]) -> tuple[list[HandledMessage], Any]:
        if batch is None:
            handled = [HandledMessage(typing.cast("Message", argument))]
            return handled, receive(handled[0])
        handled = [HandledMessage(message) for message in typing.cast("Sequence[Message]", argument)]
        return handled, [receive(each) for each in handled]

    if is_coroutine_function(handler):

        @functools.wraps(handler)
        async def call_async(argument: Any) -> None:
            handled, its_argument = received(argument)
            try:
                await handler(its_argument)
            except Exception as error:
                _after_an_error(handled, error)
            _settle(handled)

        return call_async

    @functools.wraps(handler)
    def call(argument: Any) -> None:
        handled, its_argument = received(argument)
        try:
            handler(its_argument)
        except Exception as error:
            _after_an_error(handled, error)
        _settle(handled)

    return call


def _after_an_error(handled: list[HandledMessage], error: Exception) -> None:
    """Raises the error of a handler, unless the handler had settled its messages before."""
    if not all(each.is_settled for each in handled):
        raise error
    _log.warning("the handler failed on %s after it had settled it", handled[0].message.id, exc_info=error)


def _settle(handled: list[HandledMessage]) -> None:
    """Raises what the handler said instead of raising it. The messages of a batch share one outcome."""
    for each in handled:
        if each.outcome is not None:
            raise each.outcome


def _wants_received(handler: Callable[..., Any]) -> bool:
    function = bare(handler)
    function = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (ValueError, TypeError):
        return False
    if not parameters:
        return False
    annotation: Any = parameters[0].annotation
    with contextlib.suppress(Exception):  # Some names exist only for type checkers.
        annotation = typing.get_type_hints(function).get(parameters[0].name, annotation)
    return bool(_WRITTEN.search(annotation if isinstance(annotation, str) else repr(annotation)))
