"""The consumers that one client has made, so that it can start and close them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from metaq.client.consumer.aio_consumers import (
    AnyHandler,
    Consumer,
    Puller,
    ReceivedMessage,
    Subscribed,
)
from metaq.client.consumer.handler import HandlerConsumer
from metaq.client.consumer.handler_signature import check_handler
from metaq.client.consumer.handler_threads import HandlerCaller
from metaq.client.consumer.iteration import Stream
from metaq.client.consumer.options import PullerKeywords
from metaq.client.consumer.received_handler import Receive, receiving
from metaq.client.lifecycle import OpenMark
from metaq.client.producer.options import check_timeout
from metaq.errors import ClientClosed, UsageError
from metaq.suggestions import unknown_options

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)


class ConsumerRegistry:
    """Makes the consumers of a client. A group has at most one of them, because brokers know only one."""

    def __init__(self, session: Session, open_mark: OpenMark) -> None:
        self._session = session
        self._open_mark = open_mark
        self._consumers: list[Consumer] = []
        self._subscribed: list[Subscribed] = []
        self._pullers: list[Puller] = []
        self._is_started = False

    def add_handler(
        self, handler: AnyHandler, options: ConsumerOptions, receive: Receive = ReceivedMessage
    ) -> Consumer:
        """Makes a consumer, and starts it if the client is started. Raises UsageError or ClientClosed."""
        self._require_free(options.group)
        if self._is_started:
            self._session.require_usable()
        check_handler(handler, options.batch)
        caller = HandlerCaller(receiving(handler, options.batch, receive), options.group)
        consumer = Consumer(self._session, handler, HandlerConsumer(self._session, options, caller))
        consumer._open_mark = self._open_mark
        self._consumers.append(consumer)
        if self._is_started:
            consumer._start_soon()
        return consumer

    def add_subscribed(
        self, options: ConsumerOptions, *, auto_ack: bool, idle_timeout: float | None
    ) -> Subscribed:
        """Makes an iteration. Raises UsageError or ClientClosed."""
        self._require_free(options.group)
        if idle_timeout is not None:
            check_timeout(idle_timeout, "idle_timeout")
        subscribed = Subscribed(Stream(self._session, options, auto_ack=auto_ack), idle_timeout)
        subscribed._open_mark = self._open_mark
        self._subscribed.append(subscribed)
        return subscribed

    def add_puller(self, options: PullerKeywords) -> Puller:
        """Makes a puller. Raises UsageError or ClientClosed."""
        self._require_open()
        unknown = options.keys() - PullerKeywords.__annotations__.keys()
        if unknown:
            text, hint = unknown_options("a puller", unknown, PullerKeywords.__annotations__)
            raise UsageError(text, hint=hint)
        try:
            puller = Puller(self._session, **options)
        except (ValueError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(str(error)) from None
        puller._open_mark = self._open_mark
        self._pullers.append(puller)
        return puller

    async def start(self, wait: float | None = None) -> None:
        """Starts all consumers, and from now on also new ones.

        With `wait`, waits up to that many seconds for a name server and for all consumers. Raises MetaqError.
        """
        self._is_started = True
        deadline = None if wait is None else time.monotonic() + wait
        if wait is not None:
            await self._session.wait_for_nameserver(wait)
        consumers = [consumer for consumer in self._consumers if not consumer.is_closed]
        for consumer in consumers:
            await consumer.start()
        if deadline is not None:
            for consumer in consumers:
                await consumer.start(max(deadline - time.monotonic(), 0.001))

    async def close(self, timeout: float) -> None:
        """Closes everything at the same time. Failures are logged."""
        self._is_started = False
        members = [consumer.close(timeout) for consumer in self._consumers]
        members += [subscribed.close(timeout) for subscribed in self._subscribed]
        pullers = [puller.close() for puller in self._pullers]
        for outcome in await asyncio.gather(*members, *pullers, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.error("a consumer did not close", exc_info=outcome)
        self._consumers.clear()
        self._subscribed.clear()
        self._pullers.clear()

    def _require_free(self, group: str) -> None:
        self._require_open()
        self._consumers = [consumer for consumer in self._consumers if not consumer.is_closed]
        self._subscribed = [subscribed for subscribed in self._subscribed if not subscribed.is_closed]
        taken = {consumer.group for consumer in self._consumers}
        taken |= {subscribed.group for subscribed in self._subscribed}
        if group in taken:
            raise UsageError(
                f"this client has a consumer of group {group} already",
                hint="raise its concurrency, name several topics, or make another client",
            )

    def _require_open(self) -> None:
        if self._session.closed:
            raise ClientClosed("this client is closed", hint="make another one")
        self._session.require_process()
        self._pullers = [puller for puller in self._pullers if not puller.is_closed]
