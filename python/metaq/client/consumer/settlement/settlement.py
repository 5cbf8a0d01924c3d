"""Settles messages: acknowledged, tried again here or by the broker, or rejected to the dead letters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.settlement.send_back import send_again, send_back
from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL, delay_level
from metaq.errors import MetaqError
from metaq.protocol.errors import Refused
from metaq.retry import Backoff

if TYPE_CHECKING:
    from metaq.client.consumer.group.group_member import GroupMember
    from metaq.client.consumer.settlement.local_retry import LocalRetries
    from metaq.client.message import Message

_log = logging.getLogger(__name__)

SEND_BACK_PAUSE_S: Final = 5.0
"""The pause before a message is tried again here because its broker could not take it back."""
LOCAL_BACKOFF: Final = Backoff(first_s=0.1, max_s=5.0, jitter=0.0)
"""The pauses between the attempts that precede local storage."""


class Settlement:
    """Settles the messages of one consumer."""

    def __init__(self, member: GroupMember, local_retries: LocalRetries | None = None) -> None:
        self._member = member
        self._options = member.options
        self._prefetch = member.prefetch
        self._telemetry = member.session.telemetry
        self._local_retries = local_retries

    def processing(self, message: Message) -> AbstractContextManager[object]:
        """Returns the telemetry that surrounds the user's processing of a message."""
        return self._telemetry.processing(self._options, (message,))

    def ack(self, buffer: QueueBuffer, messages: Sequence[Message]) -> None:
        """Marks messages as done; the next commit includes them. Any thread may call it."""
        self._prefetch.settle(buffer, messages)

    async def retry(
        self, buffer: QueueBuffer, messages: Sequence[Message], after: float | None, error: BaseException
    ) -> None:
        """Lets messages come again: from here if ordered or with local retry, otherwise from the broker."""
        if self._local_retries is not None:
            await self._retry_locally(self._local_retries, buffer, messages, after, error)
        elif self._options.ordered:
            await self._retry_in_order(buffer, messages, after, error)
        elif self._options.is_broadcast:
            # As in every RocketMQ client: no retry topic exists that only this consumer reads.
            _log.warning(
                "group %s: %d failed messages are dropped, because broadcast mode has no retries",
                self._options.group,
                len(messages),
            )
            self.ack(buffer, messages)
        else:
            await self._send_back(buffer, messages, after, error)

    async def reject(self, buffer: QueueBuffer, messages: Sequence[Message], error: BaseException) -> None:
        """Sends messages to the group's dead letters, with the reason."""
        if self._options.is_broadcast:
            _log.warning(
                "group %s: %d rejected messages are dropped, because broadcast mode has no dead letters: %s",
                self._options.group,
                len(messages),
                error,
            )
            self.ack(buffer, messages)
        else:
            await self._send_back(buffer, messages, None, error, is_dead=True)

    async def _send_back(
        self,
        buffer: QueueBuffer,
        messages: Sequence[Message],
        after: float | None,
        reason: BaseException,
        *,
        is_dead: bool = False,
    ) -> None:
        kept: list[Message] = []
        for message in messages:
            if buffer.dropped:
                return  # Another member has the queue now, and with it the message.
            try:
                if is_dead:
                    await send_back(self._member.session, self._options, message, DEAD_LETTER_LEVEL, reason)
                else:
                    await self._send_back_later(message, after, reason)
            except MetaqError as error:
                _log.warning(
                    "group %s: %s stays here for now, because the broker did not take it back: %s",
                    self._options.group,
                    message.id,
                    error,
                )
                kept.append(message)
            else:
                self.ack(buffer, (message,))
        if kept:
            self._give_back_later(buffer, kept, SEND_BACK_PAUSE_S)

    async def _send_back_later(self, message: Message, after: float | None, reason: BaseException) -> None:
        session, options = self._member.session, self._options
        policy = options.retry
        if policy is None:
            await send_back(session, options, message, delay_level(after), reason)
            return
        delay_s = policy.delay_s(message.reconsume_times + 1) if after is None else after
        is_last = options.retries_max is not None and message.reconsume_times >= options.retries_max
        if policy.exact and not is_last:
            try:
                await send_again(session, options, message, delay_s)
                return
            except Refused as refused:  # An old broker, or one whose timers allow less.
                _log.info(
                    "group %s: %s waits for a delay level, because its broker does not delay it exactly: %s",
                    options.group,
                    message.id,
                    refused,
                )
        await send_back(session, options, message, delay_level(delay_s), reason)

    async def _retry_in_order(
        self,
        buffer: QueueBuffer,
        messages: Sequence[Message],
        after: float | None,
        reason: BaseException,
    ) -> None:
        options = self._options
        kept: list[Message] = []
        failures_max = 0
        for message in messages:
            failures = _count_failure(buffer, message)
            failures_max = max(failures_max, failures)
            if options.retries_max is not None and failures > options.retries_max:
                try:
                    await send_back(self._member.session, options, message, DEAD_LETTER_LEVEL, reason)
                    self.ack(buffer, (message,))
                    continue
                except MetaqError as error:
                    _log.warning(
                        "group %s: %s is retried, because it could not become a dead letter: %s",
                        options.group,
                        message.id,
                        error,
                    )
            kept.append(message.__replace__(reconsume_times=message.reconsume_times + 1))
            self._telemetry.retried(options.group, message, "local")
        if after is None:
            after = options.suspend if options.retry is None else options.retry.delay_s(failures_max)
        self._rest(buffer, kept, after)

    async def _retry_locally(
        self,
        local_retries: LocalRetries,
        buffer: QueueBuffer,
        messages: Sequence[Message],
        after: float | None,
        error: BaseException,
    ) -> None:
        kept: list[Message] = []
        pause_s = LOCAL_BACKOFF.first_s
        for message in messages:
            failures = _count_failure(buffer, message)
            pause_s = max(pause_s, LOCAL_BACKOFF.pause_s(failures))
            if failures >= self._options.local_after:
                try:
                    await local_retries.add(message, error)
                    self.ack(buffer, (message,))
                    continue
                except Exception as problem:  # For example a full disk: the broker must keep the message.
                    _log.error(
                        "group %s: %s could not be stored for local retry: %s",
                        self._options.group,
                        message.id,
                        problem,
                    )
                    pause_s = SEND_BACK_PAUSE_S
            kept.append(message)
            self._telemetry.retried(self._options.group, message, "local")
        self._give_back_later(buffer, kept, pause_s if after is None else after)

    def _give_back_later(self, buffer: QueueBuffer, messages: Sequence[Message], seconds: float) -> None:
        if self._options.ordered:
            self._rest(buffer, messages, seconds)
        else:
            asyncio.get_running_loop().call_later(seconds, self._prefetch.give_back, buffer, messages)

    def _rest(self, buffer: QueueBuffer, messages: Sequence[Message], seconds: float) -> None:
        """Gives messages back and stops their queue for a while, so nothing overtakes them."""
        buffer.resting_until = time.monotonic() + seconds
        self._prefetch.give_back(buffer, messages)
        self._prefetch.wake_later(seconds + 0.001)


def _count_failure(buffer: QueueBuffer, message: Message) -> int:
    failures = buffer.failures.get(message.queue_offset, 0) + 1
    buffer.failures[message.queue_offset] = failures
    return failures
