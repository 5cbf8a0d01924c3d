"""The second form of consumption: messages are iterated over, and each says itself what became of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from metaq.client.broker_requests import BrokerRequests
from metaq.client.buffers import QueueBuffer
from metaq.client.consumer_core import GroupConsumer
from metaq.client.consumer_options import ConsumerOptions
from metaq.client.handling import CLOSE_TIMEOUT_S, LEAVE_TIMEOUT_S
from metaq.client.message import Message
from metaq.client.settlement import Settlement
from metaq.client.subscription import Reject, Retry
from metaq.errors import UsageError

if TYPE_CHECKING:
    from metaq.client.session import Session

_SETTLE_LOOK_S: Final = 0.01


class Delivery:
    """One message that was taken, until it is settled; settling twice is harmless, the first counts."""

    def __init__(self, settlement: Settlement, buffer: QueueBuffer, message: Message) -> None:
        self._settlement = settlement
        self._buffer = buffer
        self.message = message
        self.is_settled = False
        self.is_processed = False
        """Somebody called `process`: it will be settled by that."""

    def _settle(self) -> bool:
        first = not self.is_settled
        self.is_settled = True
        return first

    async def ack(self) -> None:
        if self._settle():
            self._settlement.acknowledge(self._buffer, (self.message,))

    async def retry(self, after: float | None = None, error: BaseException | None = None) -> None:
        if self._settle():
            reason = error or Retry(after=after)
            await self._settlement.retry(self._buffer, (self.message,), after, reason)

    async def reject(self) -> None:
        if self._settle():
            await self._settlement.reject(self._buffer, (self.message,))

    async def end(self, error: BaseException | None) -> None:
        """What the end of a `process` block means."""
        if error is None:
            await self.ack()
        elif isinstance(error, Reject):
            await self.reject()
        elif isinstance(error, Retry):
            await self.retry(error.after, error)
        elif isinstance(error, Exception):
            await self.retry(None, error)
        # Cancelled or interrupted: it is nobody's fault and comes again by itself.


class Stream:
    """A member of a group whose messages are taken one by one."""

    def __init__(self, session: Session, options: ConsumerOptions, *, auto_ack: bool) -> None:
        if options.on_failure == "local":
            raise UsageError(
                "on_failure='local' needs a handler that can be called again",
                hint="use a consumer, not subscribe",
            )
        if options.batch is not None:
            raise UsageError("an iteration gives one message at a time", hint="leave batch out")
        self.core = GroupConsumer(session, options)
        self._settlement = Settlement(self.core)
        self._requests = BrokerRequests(self.core, None)
        self._auto_ack = auto_ack
        self._last: Delivery | None = None
        self._is_started = False
        self.is_closed = False

    async def start(self) -> None:
        if not self._is_started:
            self.core.session.require_usable()
            self._is_started = True
            self._requests.begin()
            await self.core.start()

    async def take(self, timeout: float | None = None) -> Delivery | None:
        """The next; None once it is closed, or where nothing came in time."""
        if not self.is_closed:
            self.core.session.require_usable()
        await self.start()
        last, self._last = self._last, None
        if last is not None and self._auto_ack and not last.is_processed:
            await last.ack()
        try:
            async with asyncio.timeout(timeout):
                taken = await self.core.take(1)
        except TimeoutError:
            return None
        if taken is None:
            return None
        buffer, (message,) = taken
        self._last = Delivery(self._settlement, buffer, message)
        return self._last

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for messages that are being processed, commits and leaves the group.

        False where some were not settled in time: they come again. Safe to call twice.
        """
        if self.is_closed or not self._is_started:
            self.is_closed = True
            return True
        self.is_closed = True
        deadline = time.monotonic() + timeout
        self._requests.end()
        await self.core.stop_taking()
        if self._last is not None and not self._last.is_processed:
            # Left by `break` or an exception before it was settled: nobody is at work on it.
            last, self._last = self._last, None
            unsettled = 0 if last.is_settled else 1
        else:
            unsettled = 0
        while self.core.in_hand > unsettled and time.monotonic() < deadline:
            await asyncio.sleep(_SETTLE_LOOK_S)
        is_clean = self.core.in_hand <= unsettled
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), LEAVE_TIMEOUT_S)):
                await self.core.leave()
        except TimeoutError:
            return False
        return is_clean
