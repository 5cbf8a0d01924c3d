"""Requests that brokers send to a consumer: rebalance, reset offsets, report state, try one message."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

from metaq._core import Frame, FrameError, Message, decode_messages
from metaq.client.clock import now_ms
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.session.answers import read_body
from metaq.client.session.routes import Queue
from metaq.client.session.session import NOT_MINE
from metaq.errors import MetaqError
from metaq.protocol import java_json
from metaq.protocol.bodies import (
    CONSUME_PASSIVELY,
    ConsumeMessageDirectlyResult,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetList,
)
from metaq.protocol.commands.clients import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
)
from metaq.protocol.dispatch import Response
from metaq.protocol.errors import ProtocolError
from metaq.protocol.java_json import MessageQueue

if TYPE_CHECKING:
    from metaq.client.consumer.group.group_member import GroupMember

REMARK_CHARACTERS_MAX: Final = 1000
FRAMES_MAX: Final = 200
"""Frames of a task that a report of stacks has."""

Invoke = Callable[[Sequence[Message]], Awaitable[object]]


class BrokerRequests:
    """Answers for one consumer, and passes on requests that are for other groups."""

    def __init__(self, member: GroupMember, invoke: Invoke | None) -> None:
        self._member = member
        self._invoke = invoke
        self._handlers = {
            NotifyConsumerIdsChanged.code: self._rebalance,
            ResetConsumerClientOffset.code: self._reset,
            GetConsumerStatusFromClient.code: self._status,
            GetConsumerRunningInfo.code: self._running_info,
            ConsumeMessageDirectly.code: self._consume_directly,
        }

    def begin(self) -> None:
        for code, handler in self._handlers.items():
            self._member.session.on_request(code, handler)

    def end(self) -> None:
        for code, handler in self._handlers.items():
            self._member.session.remove_handler(code, handler)

    def _is_mine(self, group: str) -> bool:
        return group == self._member.options.group

    async def _rebalance(self, _: str, frame: Frame) -> Response | None:
        if not self._is_mine(NotifyConsumerIdsChanged.parse(frame.fields).consumer_group):
            return NOT_MINE
        self._member.assignment.rebalance_soon()
        return None

    async def _reset(self, _: str, frame: Frame) -> Response | None:
        command = ResetConsumerClientOffset.parse(frame.fields)
        if not self._is_mine(command.group):
            return NOT_MINE
        await self._member.assignment.reset(
            {
                queue: queue_offset
                for queue, queue_offset in (await _reset_offsets(frame.body)).items()
                if queue.topic == command.topic
            }
        )
        return None

    async def _status(self, _: str, frame: Frame) -> Response | None:
        command = GetConsumerStatusFromClient.parse(frame.fields)
        if not self._is_mine(command.group):
            return NOT_MINE
        table = {
            _wire(queue): buffer.committable
            for queue, buffer in self._member.prefetch.buffers.items()
            if queue.topic == command.topic
        }
        return Response(body=GetConsumerStatusBody(message_queue_table=table).encode())

    async def _running_info(self, _: str, frame: Frame) -> Response | None:
        command = GetConsumerRunningInfo.parse(frame.fields)
        if not self._is_mine(command.consumer_group):
            return NOT_MINE
        return Response(body=java_json.encode(_running_info(self._member, stacks=command.jstack_enable)))

    async def _consume_directly(self, _: str, frame: Frame) -> Response | None:
        command = ConsumeMessageDirectly.parse(frame.fields)
        if not self._is_mine(command.consumer_group):
            return NOT_MINE
        result = ConsumeMessageDirectlyResult(order=self._member.options.ordered)
        if self._invoke is None:
            result.consume_result = "CR_RETURN_NULL"
            result.remark = "this consumer iterates over messages and has no handler to call"
            return Response(body=result.encode())
        message = _one_message(frame.body, command.broker_name or "")
        began = time.monotonic()
        try:
            await self._invoke((message,))
        except (Retry, Reject) as error:
            result.consume_result = "CR_LATER"
            result.remark = str(error)[:REMARK_CHARACTERS_MAX] or type(error).__name__
        except Exception as error:
            result.consume_result = "CR_THROW_EXCEPTION"
            result.remark = "".join(traceback.format_exception_only(error)).strip()[:REMARK_CHARACTERS_MAX]
        else:
            result.consume_result = "CR_SUCCESS"
        result.spent_time_mills = int((time.monotonic() - began) * 1000)
        return Response(body=result.encode())


def _one_message(body: bytes, broker: str) -> Message:
    try:
        (message,), _ = decode_messages(body, Queue("", broker, 0))
    except (FrameError, ValueError) as error:
        raise ProtocolError(f"the body is not one message: {error}") from None
    _ = message.body  # Raises here, and not in the handler, if the body cannot be decompressed.
    return message


async def _reset_offsets(body: bytes) -> dict[Queue, int]:
    try:
        table = (await read_body(ResetOffsetBody, body)).offset_table
        return {Queue(key.topic, key.broker_name, key.queue_id): value for key, value in table.items()}
    except MetaqError:
        listed = (await read_body(ResetOffsetList, body)).offset_table
        return {Queue(item.topic, item.broker_name, item.queue_id): item.offset for item in listed}


def _wire(queue: Queue) -> MessageQueue:
    return MessageQueue(broker_name=queue.broker, queue_id=queue.id, topic=queue.topic)


def _running_info(member: GroupMember, *, stacks: bool) -> dict[str, object]:
    """Returns the state of a consumer as Apache's ConsumerRunningInfo."""
    options = member.options
    current_ms = now_ms()
    queues = {
        _wire(queue): {
            "commitOffset": buffer.committable,
            "cachedMsgMinOffset": buffer.committable if buffer.unsettled else 0,
            "cachedMsgMaxOffset": buffer.committable + buffer.span if buffer.unsettled else 0,
            "cachedMsgCount": buffer.unsettled,
            "cachedMsgSizeInMiB": buffer.bytes_held // (1024 * 1024),
            "transactionMsgMinOffset": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgCount": 0,
            "locked": options.ordered and buffer.locked_until > time.monotonic(),
            "tryUnlockTimes": 0,
            "lastLockTimestamp": current_ms,
            "droped": buffer.dropped,
            "lastPullTimestamp": current_ms - int((time.monotonic() - buffer.pulled_at) * 1000),
            "lastConsumeTimestamp": current_ms,
        }
        for queue, buffer in member.prefetch.buffers.items()
    }
    info: dict[str, object] = {
        "properties": {
            "PROP_CONSUME_ORDERLY": "true" if options.ordered else "false",
            "PROP_CONSUME_TYPE": CONSUME_PASSIVELY,
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(member.started_ms),
            "PROP_CLIENT_VERSION": f"metaq Python {sys.version_info.major}.{sys.version_info.minor}",
        },
        "subscriptionSet": member.describe().subscription_data_set,
        "mqTable": queues,
        "mqPopTable": {},
        "statusTable": {},
        "userConsumerInfo": {},
    }
    if stacks:
        info["jstack"] = _stacks()
    return info


def _stacks() -> str:
    """Returns the stacks of all threads and tasks of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for identity, stack in sys._current_frames().items():
        parts.append(f"thread {names.get(identity, identity)}\n{''.join(traceback.format_stack(stack))}")
    for task in asyncio.all_tasks():
        lines = [
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            for frame in _frames_of(task)
        ]
        parts.append("\n".join((f"task {task.get_name()}", *lines)))
    return "\n\n".join(parts)


def _frames_of(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Yields the frames of a task, the innermost last. `Task.get_stack` has only the outermost one of a task
    that waits, which says nothing about its handler."""
    waits: object = task.get_coro()
    for _ in range(FRAMES_MAX):
        frame = next(
            (
                found
                for name in ("cr_frame", "gi_frame", "ag_frame")
                if (found := getattr(waits, name, None)) is not None
            ),
            None,
        )
        if frame is None:
            return
        yield frame
        waits = next(
            (
                found
                for name in ("cr_await", "gi_yieldfrom", "ag_await")
                if (found := getattr(waits, name, None)) is not None
            ),
            None,
        )
