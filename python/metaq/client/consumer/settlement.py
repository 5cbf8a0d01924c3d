"""What becomes of a message after its handler: settled, tried again here or by the broker, or given up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from metaq.client.consumer.buffers import QueueBuffer
from metaq.client.consumer.subscription import DEAD_LETTER_LEVEL, delay_level
from metaq.client.properties import encode_properties
from metaq.errors import MetaqError
from metaq.protocol.errors import Refused
from metaq.protocol.messages import ConsumerSendMsgBack, SendMessageV2

if TYPE_CHECKING:
    from metaq.client.consumer.group_member import GroupConsumer
    from metaq.client.consumer.local_retry import Parking
    from metaq.client.message import Message

_log = logging.getLogger(__name__)

SEND_BACK_PAUSE_S: Final = 5.0
"""After which a message is tried again here because its broker could not take it back."""
LOCAL_PAUSE_S: Final = 0.1
"""Before the second of the tries that come before a message is parked; it doubles from one to the next."""
LOCAL_PAUSE_MAX_S: Final = 5.0


class Settlement:
    """Settles messages of one consumer."""

    def __init__(self, core: GroupConsumer, parking: Parking | None = None) -> None:
        self._core = core
        self._parking = parking

    def processing(self, message: Message) -> AbstractContextManager[object]:
        """Around what the user does with a message that is settled by that."""
        return self._core.session.telemetry.processing(self._core.options, (message,))

    def acknowledge(self, buffer: QueueBuffer, messages: Sequence[Message]) -> None:
        """They are done with; told to the broker with the next commit. Any thread may call it."""
        self._core.settle(buffer, messages)

    async def retry(
        self, buffer: QueueBuffer, messages: Sequence[Message], after: float | None, error: BaseException
    ) -> None:
        """They come again: from here in order or with a local store, else through the broker."""
        options = self._core.options
        if self._parking is not None:
            await self._retry_or_park(self._parking, buffer, messages, after, error)
        elif options.ordered:
            await self._retry_in_order(buffer, messages, after)
        elif options.is_broadcast:
            # As with every RocketMQ client: there is no retry topic that only this consumer reads.
            _log.warning("group %s: %d messages that failed are dropped", options.group, len(messages))
            self.acknowledge(buffer, messages)
        else:
            await self._send_back(buffer, messages, delay_level(after))

    async def reject(self, buffer: QueueBuffer, messages: Sequence[Message]) -> None:
        """They go to the group's dead letters."""
        if self._core.options.is_broadcast:
            _log.warning(
                "group %s: %d rejected messages are dropped", self._core.options.group, len(messages)
            )
            self.acknowledge(buffer, messages)
        else:
            await self._send_back(buffer, messages, DEAD_LETTER_LEVEL)

    async def _send_back(self, buffer: QueueBuffer, messages: Sequence[Message], level: int) -> None:
        kept: list[Message] = []
        for message in messages:
            if buffer.dropped:
                return  # The queue is another member's, and with it the message.
            try:
                await send_back(self._core, message, level)
            except MetaqError as error:
                _log.warning(
                    "group %s: %s stays here for now: %s", self._core.options.group, message.id, error
                )
                kept.append(message)
            else:
                self.acknowledge(buffer, (message,))
        if kept:
            self._again(buffer, kept, SEND_BACK_PAUSE_S)

    async def _retry_in_order(
        self, buffer: QueueBuffer, messages: Sequence[Message], after: float | None
    ) -> None:
        options = self._core.options
        kept: list[Message] = []
        for message in messages:
            failures = _failed_again(buffer, message)
            if options.retries_max is not None and failures > options.retries_max:
                try:
                    await send_back(self._core, message, DEAD_LETTER_LEVEL)
                    self.acknowledge(buffer, (message,))
                    continue
                except MetaqError as error:
                    _log.warning("group %s: %s is tried on: %s", options.group, message.id, error)
            kept.append(message.__replace__(reconsume_times=message.reconsume_times + 1))
            self._core.session.telemetry.retried(options.group, message, "local")
        self._rest(buffer, kept, options.suspend if after is None else after)

    async def _retry_or_park(
        self,
        parking: Parking,
        buffer: QueueBuffer,
        messages: Sequence[Message],
        after: float | None,
        error: BaseException,
    ) -> None:
        kept: list[Message] = []
        pause = LOCAL_PAUSE_S
        for message in messages:
            failures = _failed_again(buffer, message)
            pause = max(pause, min(LOCAL_PAUSE_S * 2 ** (failures - 1), LOCAL_PAUSE_MAX_S))
            if failures >= self._core.options.local_after:
                try:
                    await parking.park(message, error)
                    self.acknowledge(buffer, (message,))
                    continue
                except Exception as problem:  # A full disk: the message must stay where it is safe.
                    _log.error(
                        "group %s: %s is not parked: %s", self._core.options.group, message.id, problem
                    )
                    pause = SEND_BACK_PAUSE_S
            kept.append(message)
            self._core.session.telemetry.retried(self._core.options.group, message, "local")
        self._again(buffer, kept, pause if after is None else after)

    def _again(self, buffer: QueueBuffer, messages: Sequence[Message], seconds: float) -> None:
        if self._core.options.ordered:
            self._rest(buffer, messages, seconds)
        else:
            asyncio.get_running_loop().call_later(seconds, self._core.give_back, buffer, messages)

    def _rest(self, buffer: QueueBuffer, messages: Sequence[Message], seconds: float) -> None:
        """The queue stands still, so that nothing overtakes what failed."""
        buffer.resting_until = time.monotonic() + seconds
        self._core.give_back(buffer, messages)
        self._core.wake_later(seconds + 0.001)


def _failed_again(buffer: QueueBuffer, message: Message) -> int:
    failures = buffer.failures.get(message.queue_offset, 0) + 1
    buffer.failures[message.queue_offset] = failures
    return failures


async def send_back(core: GroupConsumer, message: Message, level: int) -> None:
    """Asks the broker to give the message again later, or to make a dead letter of it; raises MetaqError."""
    queue = message.queue
    assert queue is not None, "a message that was consumed has its queue"
    options = core.options
    command = ConsumerSendMsgBack(
        physical_offset=message.physical_offset,
        group=options.group,
        delay_level=level,
        origin_msg_id=message.offset_id,
        origin_topic=message.topic,
        max_reconsume_times=options.retries_max,
    )
    (await core.session.call(queue.broker, command)).check()
    if level == DEAD_LETTER_LEVEL:
        core.session.telemetry.dead_lettered(options.group, message)
    else:
        core.session.telemetry.retried(options.group, message, "broker")


async def send_to_dead_letters(core: GroupConsumer, message: Message) -> None:
    """Also where the broker has deleted the message meanwhile; raises MetaqError."""
    queue = message.queue
    assert queue is not None, "a message that was consumed has its queue"
    try:
        await send_back(core, message, DEAD_LETTER_LEVEL)
        return
    except Refused as error:
        _log.info("group %s: %s is sent anew: %s", core.options.group, message.id, error)
    properties = {
        **message.properties,
        **message.system_properties,
        "RETRY_TOPIC": message.topic,
        "ORIGIN_MESSAGE_ID": message.offset_id,
    }
    # To the retry topic with no tries left: the broker makes a dead letter of it.
    command = SendMessageV2(
        producer_group="CLIENT_INNER_PRODUCER",
        topic=core.options.retry_topic,
        born_timestamp=message.born_at,
        flag=message.flag,
        properties=encode_properties(properties),
        reconsume_times=max(message.reconsume_times, 1),
        max_reconsume_times=0,
    )
    (await core.session.call(queue.broker, command, message.body)).check()
    core.session.telemetry.dead_lettered(core.options.group, message)
