"""The second form of consumption: messages are iterated over, and each says itself what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from metaq._core import Message
from metaq.client.consumer.broker_requests import BrokerRequests
from metaq.client.consumer.buffers import QueueBuffer
from metaq.client.consumer.group_member import GroupConsumer
from metaq.client.consumer.handler import CLOSE_TIMEOUT_S, YIELD_EVERY, Ending, end_start
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Retry
from metaq.errors import UsageError

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_SETTLE_LOOK_S: Final = 0.01


class Delivery:
    """One message that was taken, until it is settled; settling twice is harmless, the first counts."""

    def __init__(
        self, core: GroupConsumer, settlement: Settlement, buffer: QueueBuffer, message: Message
    ) -> None:
        self._core = core
        self._settlement = settlement
        self._buffer = buffer
        self.message = message
        self.is_settled = False
        self.is_processed = False
        """Somebody called `process`: it will be settled by that."""

    def processing(self) -> AbstractContextManager[object]:
        """Around what the user does with it."""
        return self._settlement.processing(self.message)

    def _settle(self) -> bool:
        first = not self.is_settled
        self.is_settled = True
        return first

    def ack(self) -> None:
        """Any thread may call it."""
        if self._settle():
            self._settlement.acknowledge(self._buffer, (self.message,))

    async def retry(self, after: float | None = None, error: BaseException | None = None) -> None:
        if self._settle():
            reason = error or Retry(after=after)
            await self._settling(self._settlement.retry(self._buffer, (self.message,), after, reason))

    async def reject(self) -> None:
        if self._settle():
            await self._settling(self._settlement.reject(self._buffer, (self.message,)))

    def give_back(self) -> None:
        """It comes again at once; any thread may call it."""
        if self._settle():
            self._core.give_back(self._buffer, (self.message,))

    async def _settling(self, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            # Before the broker's answer: in nobody's hand it would hold up its queue for ever.
            self._core.give_back(self._buffer, (self.message,))
            raise

    async def end(self, error: BaseException | None) -> None:
        """What the end of a `process` block means."""
        if error is None:
            self.ack()
        elif isinstance(error, Reject):
            await self.reject()
        elif isinstance(error, Retry):
            await self.retry(error.after, error)
        elif isinstance(error, Exception):
            await self.retry(None, error)
        else:
            self.give_back()  # Cancelled or interrupted: it is nobody's fault.


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
        self._taken = 0
        self._starting: asyncio.Task[None] | None = None
        self.is_closed = False
        self._ended: asyncio.Future[bool] | None = None
        """How the close that is under way, or was, ends."""

    async def start(self) -> None:
        """Safe to call twice; who gives up waiting does not end it, closing does."""
        if self._starting is None:
            if self.is_closed:
                return
            self.core.session.require_usable()
            self._starting = asyncio.create_task(self._start(), name="metaq start of a subscription")
        await asyncio.wait((self._starting,))
        if not self._starting.cancelled():
            self._starting.result()

    async def _start(self) -> None:
        self._requests.begin()
        try:
            await self.core.start()
        except Exception:
            self.is_closed = True
            self._requests.end()
            await self.core.leave()
            raise

    async def take(self, timeout: float | None = None) -> Delivery | None:
        """The next; None once it is closed, or where nothing came in time."""
        if not self.is_closed:
            self.core.session.require_usable()
        if not self.is_started:
            await self.start()
        self._end_last()
        if self._yields():
            await asyncio.sleep(0)
        # Once it is taken nothing is awaited: it would stay in nobody's hand.
        taken = self.core.take_now(1)
        if taken is None:
            try:
                async with asyncio.timeout(timeout):
                    taken = await self.core.take(1)
            except TimeoutError:
                return None
        return None if taken is None else self._deliver(*taken)

    def take_waiting(self, timeout: float | None = None) -> Delivery | None:
        """The same for a thread, once it was started."""
        self._end_last()
        taken = self.core.take_waiting(1, timeout)
        return None if taken is None else self._deliver(*taken)

    @property
    def is_started(self) -> bool:
        return self._starting is not None and self._starting.done()

    def begin_again(self) -> None:
        """A new loop: what the one before was left at by `break` or an exception comes again."""
        last = self._last
        if last is not None and self._auto_ack and not last.is_processed:
            self._last = None
            last.give_back()

    def _end_last(self) -> None:
        last, self._last = self._last, None
        if last is not None and self._auto_ack and not last.is_processed:
            last.ack()

    def _deliver(self, buffer: QueueBuffer, messages: list[Message]) -> Delivery:
        self.core.session.telemetry.consumed(self.core.options.group, messages)
        self._last = Delivery(self.core, self._settlement, buffer, messages[0])
        return self._last

    def _yields(self) -> bool:
        """Every so often: an iteration that awaits nothing else would keep the loop from its heartbeats."""
        self._taken += 1
        return self._taken % YIELD_EVERY == 0

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for messages that are being processed, commits and leaves the group.

        False where some were not settled in time: they come again. Safe to call twice: the second one waits
        for the first.
        """
        if self._ended is not None:
            done, _ = await asyncio.wait((self._ended,), timeout=max(0.0, timeout))
            return bool(done) and self._ended.result()
        if self.is_closed or self._starting is None:
            self.is_closed = self.core.is_closing = True
            return True
        self.is_closed = True
        self._ended = asyncio.get_running_loop().create_future()
        is_clean = False
        try:
            is_clean = await self._close(self._starting, Ending(timeout))
        finally:
            self._ended.set_result(is_clean)
        return is_clean

    async def _close(self, starting: asyncio.Task[None], ending: Ending) -> bool:
        await end_start(starting, ending.for_handlers())
        self._requests.end()
        await self.core.stop_taking()
        if self._last is not None and not self._last.is_processed:
            # Left by `break` or an exception before it was settled: nobody is at work on it.
            last, self._last = self._last, None
            unsettled = 0 if last.is_settled else 1
        else:
            unsettled = 0
        while self.core.in_hand > unsettled and ending.for_handlers():
            await asyncio.sleep(_SETTLE_LOOK_S)
        is_clean = self.core.in_hand <= unsettled
        try:
            async with asyncio.timeout(ending.for_leaving()):
                await self.core.leave()
        except TimeoutError:
            return False
        return is_clean
