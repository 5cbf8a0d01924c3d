"""One pull of one queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq._core import FrameError, Record, decode_records
from metaq.client.message import Message
from metaq.client.properties import TAGS
from metaq.client.routes import MASTER_ID, Queue
from metaq.client.subscription import Subscription
from metaq.errors import UnreadableBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import ProtocolError
from metaq.protocol.messages import Pulled, PullMessage

if TYPE_CHECKING:
    from metaq.client.session import Session

HOLD_MS: Final = 15_000
ANSWER_TIMEOUT_S: Final = 15.0
"""Beyond the time that the broker was asked to hold the pull."""

RETRY_TOPIC: Final = "RETRY_TOPIC"
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4


@dataclass(frozen=True, slots=True)
class Pull:
    """What came of it."""

    messages: list[Message]
    next_offset: int
    is_moved: bool
    """The queue does not reach to where we asked: go on from `next_offset`, even backwards."""
    unreadable: list[tuple[Message, UnreadableBody]]
    """Messages whose bodies cannot be decompressed, and why; their bodies are empty."""


class Puller:
    """Pulls for one group; remembers for each queue which replica its broker sent us to."""

    def __init__(self, session: Session, group: str, *, carries_subscription: bool) -> None:
        self._session = session
        self._group = group
        self._carries_subscription = carries_subscription
        self._broker_ids: dict[Queue, int] = {}

    async def pull(
        self,
        queue: Queue,
        queue_offset: int,
        subscription: Subscription,
        count_max: int,
        hold_ms: int = HOLD_MS,
    ) -> Pull:
        """Raises Refused, Unreachable or NoRoute."""
        flags = _SUSPEND if hold_ms else 0
        command = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.id,
            queue_offset=queue_offset,
            max_msg_nums=count_max,
            sys_flag=flags,
            suspend_timeout_millis=hold_ms,
            sub_version=subscription.version,
        )
        if self._carries_subscription:
            command.sys_flag |= _SUBSCRIPTION
            command.subscription = subscription.expression
            command.expression_type = subscription.kind
        broker_id = self._broker_ids.pop(queue, MASTER_ID)
        if self._session.routes.address(queue.broker, broker_id) is None:
            broker_id = MASTER_ID
        timeout = hold_ms / 1000 + ANSWER_TIMEOUT_S
        reply = await self._session.call(queue.broker, command, timeout=timeout, broker_id=broker_id)
        found = reply.code == ResponseCode.SUCCESS
        if not found and reply.code not in _NOTHING:
            reply.check()
        header = reply.header(Pulled)
        try:
            records = decode_records(reply.body) if found else []
        except FrameError as error:
            # Going on would skip what cannot be read, silently.
            raise ProtocolError(f"{queue}: the broker sent a malformed message: {error}") from None
        self._broker_ids[queue] = header.suggest_which_broker_id
        pull = Pull([], header.next_begin_offset, reply.code == ResponseCode.PULL_OFFSET_MOVED, [])
        for record in records:
            _add(pull, record, queue, subscription)
        return pull


def shown(message: Message) -> Message:
    """As its sender named it: what comes through a retry topic has its first topic again."""
    return message.with_topic(message.system_properties.get(RETRY_TOPIC, message.topic))


def _add(pull: Pull, record: Record, queue: Queue, subscription: Subscription) -> None:
    tag = record.properties.get(TAGS)
    if not subscription.wants(tag):
        return
    try:
        pull.messages.append(shown(Message.from_record(record, queue.broker)))
    except UnreadableBody as error:
        message = Message(
            topic=record.topic,
            body=b"",
            tag=tag,
            id=record.message_id,
            offset_id=record.message_id,
            queue=queue,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            stored_at=record.store_timestamp_ms,
        )
        pull.unreadable.append((message, error))


_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
