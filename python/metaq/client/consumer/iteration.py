"""Consumption by iteration: the caller takes messages one by one and settles each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from metaq._core import Message
from metaq.client.consumer.group.broker_requests import BrokerRequests
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.handler import YIELD_EVERY
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.replying import task_reply
from metaq.client.consumer.settlement.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.lifecycle import CLOSE_TIMEOUT_S, CloseDeadline, SharedClose, SharedStart, closing_within
from metaq.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from metaq.client.session.session import Session

_IN_HAND_INTERVAL_S: Final = 0.01


class Unsettled:
    """A message in the user's hands. Only the first settlement counts."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.is_settled = False
        self.is_processed = False
        """Somebody called `process`, which will settle the message."""

    def processing(self) -> AbstractContextManager[object]:
        """Returns the telemetry that surrounds the user's processing."""
        raise NotImplementedError

    def ack(self) -> None:
        """Marks the message as done. Any thread may call it."""
        raise NotImplementedError

    async def retry(self, after: float | None = None, error: BaseException | None = None) -> None:
        """Lets the message come again, after some seconds if given."""
        raise NotImplementedError

    async def reject(self, error: BaseException) -> None:
        """Sends the message to the dead letters, with the reason."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Lets the message come again at once. Any thread may call it."""
        raise NotImplementedError

    def reply(self, message: Message, body: Buffer) -> Awaitable[None]:
        """Replies to the message, in a task that begins at once."""
        raise NotImplementedError

    async def send_reply(self, message: Message, body: Buffer) -> None:
        """Replies to the message."""
        await self.reply(message, body)

    async def end(self, error: BaseException | None) -> None:
        """Settles the message at the end of a `process` block."""
        if error is None:
            self.ack()
        elif isinstance(error, Reject):
            await self.reject(error)
        elif isinstance(error, Retry):
            await self.retry(error.after, error)
        elif isinstance(error, Exception):
            await self.retry(None, error)
        else:
            self.give_back()  # Cancelled or interrupted: that does not count as a failure.

    def _is_first(self) -> bool:
        is_first = not self.is_settled
        self.is_settled = True
        return is_first


class Delivery(Unsettled):
    """One message that was taken from its queue, until it is settled."""

    def __init__(
        self, member: GroupMember, settlement: Settlement, buffer: QueueBuffer, message: Message
    ) -> None:
        super().__init__(message)
        self._member = member
        self._settlement = settlement
        self._buffer = buffer

    def processing(self) -> AbstractContextManager[object]:
        return self._settlement.processing(self.message)

    def ack(self) -> None:
        if self._is_first():
            self._settlement.ack(self._buffer, (self.message,))

    async def retry(self, after: float | None = None, error: BaseException | None = None) -> None:
        if self._is_first():
            reason = error or Retry(after=after)
            await self._settle(self._settlement.retry(self._buffer, (self.message,), after, reason))

    async def reject(self, error: BaseException) -> None:
        if self._is_first():
            await self._settle(self._settlement.reject(self._buffer, (self.message,), error))

    def reply(self, message: Message, body: Buffer) -> Awaitable[None]:
        return task_reply(self._member.session, self._member.options.group)(message, body)

    def give_back(self) -> None:
        if self._is_first():
            self._member.prefetch.give_back(self._buffer, (self.message,))

    async def _settle(self, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            # The broker has not answered yet. A message that nobody holds would block its queue for ever.
            self._member.prefetch.give_back(self._buffer, (self.message,))
            raise


class Stream:
    """A group member whose messages are taken one by one."""

    def __init__(self, session: Session, options: ConsumerOptions, *, auto_ack: bool) -> None:
        """Raises UsageError for options that need a handler."""
        if options.on_failure == "local":
            raise UsageError(
                "on_failure='local' needs a handler that can be called again",
                hint="use a consumer instead of subscribe",
            )
        if options.batch is not None:
            raise UsageError("an iteration gives one message at a time", hint="leave batch out")
        self.member = GroupMember(session, options)
        self._settlement = Settlement(self.member)
        self._requests = BrokerRequests(self.member, None)
        self._auto_ack = auto_ack
        self._last: Delivery | None = None
        self._taken = 0
        self._starting = SharedStart(self._start, "start of a subscription")
        self.is_closed = False
        self._closing = SharedClose()

    async def start(self) -> None:
        """Joins the group. Safe to call twice."""
        if not self._starting.has_begun:
            if self.is_closed:
                return
            self.member.session.require_usable()
        await self._starting.run()

    async def _start(self) -> None:
        self._requests.begin()
        try:
            await self.member.start()
        except Exception:
            self.is_closed = True
            self._requests.end()
            await self.member.leave()
            raise

    async def take(self, timeout: float | None = None) -> Delivery | None:
        """Waits for the next message. Returns None once it is closed or when the timeout passes."""
        if not self.is_closed:
            self.member.session.require_usable()
        if not self.is_started:
            await self.start()
        self._end_last()
        self._taken += 1
        if self._taken % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        # Nothing may be awaited once a message is taken: a cancellation would lose it.
        taken = self.member.prefetch.take_now(1)
        if taken is None:
            try:
                async with asyncio.timeout(timeout):
                    taken = await self.member.prefetch.take(1)
            except TimeoutError:
                return None
        return None if taken is None else self._deliver(*taken)

    def take_waiting(self, timeout: float | None = None) -> Delivery | None:
        """Does the same as `take` for a thread; the stream must be started."""
        self._end_last()
        taken = self.member.prefetch.take_waiting(1, timeout)
        return None if taken is None else self._deliver(*taken)

    @property
    def is_started(self) -> bool:
        return self._starting.is_done

    def begin_again(self) -> None:
        """Starts a new loop. The message at which `break` or an exception left the last loop comes again."""
        last = self._last
        if last is not None and self._auto_ack and not last.is_processed:
            self._last = None
            last.give_back()

    def _end_last(self) -> None:
        last, self._last = self._last, None
        if last is not None and self._auto_ack and not last.is_processed:
            last.ack()

    def _deliver(self, buffer: QueueBuffer, messages: list[Message]) -> Delivery:
        self.member.session.telemetry.consumed(self.member.options.group, messages)
        self._last = Delivery(self.member, self._settlement, buffer, messages[0])
        return self._last

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Waits for messages that are being processed, commits and leaves the group.

        Returns False if some were not settled in time; they come again. A second close waits for the first.
        """
        if not self._closing.has_begun and (self.is_closed or not self._starting.has_begun):
            self.is_closed = self.member.prefetch.is_stopped = True
            return True
        self.is_closed = True
        with closing_within(timeout):
            return await self._closing.run(lambda: self._close(CloseDeadline(timeout)), timeout)

    async def _close(self, deadline: CloseDeadline) -> bool:
        await self._starting.end(deadline.for_handlers())
        self._requests.end()
        prefetch = self.member.prefetch
        await self.member.stop_taking()
        abandoned = 0
        if self._last is not None and not self._last.is_processed:
            # `break` or an exception left it unsettled, and nobody works on it.
            last, self._last = self._last, None
            abandoned = 0 if last.is_settled else 1
        while prefetch.in_hand > abandoned and deadline.for_handlers():
            await asyncio.sleep(_IN_HAND_INTERVAL_S)
        is_clean = prefetch.in_hand <= abandoned
        try:
            async with asyncio.timeout(deadline.for_leaving()):
                await self.member.leave()
        except TimeoutError:
            return False
        return is_clean
