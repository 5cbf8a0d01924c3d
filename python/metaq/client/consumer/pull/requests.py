"""One pull of one queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq._core import FrameError, Message, decode_messages
from metaq.client.compression import INFLATED_BYTES_MAX
from metaq.client.consumer.pull.read_nodes import ReadFrom, ReadNode, ReadNodes
from metaq.client.consumer.subscription import Subscription
from metaq.client.session.routes import Queue
from metaq.errors import UnreadableBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import PULL_HAS_SUBSCRIPTION, PULL_SUSPENDS, Pulled, PullMessage
from metaq.protocol.errors import ProtocolError, Refused, Unreachable
from metaq.protocol.names import MASTER_ID
from metaq.protocol.reply import Reply

if TYPE_CHECKING:
    from metaq.client.session.session import Session

HOLD_MS: Final = 15_000
"""How long the broker holds a pull that finds nothing."""
ANSWER_TIMEOUT_S: Final = 15.0
"""How long we wait for the answer after the time that the broker may hold the pull."""

BYTES_MAX: Final = 1024 * 1024
"""The bytes that one pull asks for; a broker may be configured to return less."""
IDLE_PAUSE_S: Final = 0.1
"""The pause after a node answered at once and with nothing, although it was asked to hold the pull: Apache's
slaves do so while they have a master."""
INFLATED_TOGETHER_BYTES: Final = INFLATED_BYTES_MAX
"""The bytes that one pull may inflate to. The rest waits for the next pull: small bodies may become huge."""

OFFSET_RESET: Final = "OFFSET_RESET"
"""The remark of an answer that moves a consumer because somebody has reset its group."""

_NOTHING_FOUND: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

Unreadable = tuple[Message, UnreadableBody]
"""A message whose body cannot be decompressed, and the reason."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages that one pull returned, and where the next pull starts."""

    messages: list[Message]
    next_offset: int
    is_moved: bool
    """The queue does not contain the offset that we asked for: continue at `next_offset`, even backwards."""
    unreadable: list[Unreadable]
    is_reset: bool = False
    """The group was reset: continue at `next_offset`, and forget everything that was pulled before."""
    has_more: bool = False
    """The broker returned more messages, for which there is no room yet."""


class PullRequests:
    """Pulls for one group, and remembers which replica the broker suggested for each queue."""

    def __init__(
        self, session: Session, group: str, *, carries_subscription: bool, read_from: ReadFrom = "master"
    ) -> None:
        self._session = session
        self._group = group
        self._carries_subscription = carries_subscription
        self._nodes = ReadNodes(session.routes, read_from)
        self._suggested_ids: dict[Queue, int] = {}

    async def pull(
        self,
        queue: Queue,
        queue_offset: int,
        subscription: Subscription,
        count_max: int,
        hold_ms: int = HOLD_MS,
        bytes_max: int = INFLATED_TOGETHER_BYTES,
        may_inflate: Callable[[], bool] = lambda: True,
    ) -> PullResult:
        """Pulls messages from an offset on. The first message may be larger than `bytes_max`. If the consumer
        may inflate nothing when the answer arrives, the first compressed message waits for another pull.

        If a node cannot be reached or has no role now, or if a replica refuses, another node of the group is
        asked at once. Raises Refused, Unreachable or NoRoute.
        """
        flags = PULL_SUSPENDS if hold_ms else 0
        command = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.id,
            queue_offset=queue_offset,
            max_msg_nums=count_max,
            sys_flag=flags,
            suspend_timeout_millis=hold_ms,
            sub_version=subscription.version,
            max_msg_bytes=min(bytes_max, BYTES_MAX),
        )
        if self._carries_subscription:
            command.sys_flag |= PULL_HAS_SUBSCRIPTION
            command.subscription = subscription.expression
            command.expression_type = subscription.kind
        begun = time.monotonic()
        node, reply = await self._call(queue, command, hold_ms / 1000 + ANSWER_TIMEOUT_S)
        found = reply.code == ResponseCode.SUCCESS
        header = reply.header(Pulled)
        try:
            messages, compressed = (
                decode_messages(reply.body, queue, tags=subscription.tags) if found else ([], [])
            )
        except FrameError as error:
            # To continue would silently skip the malformed message.
            raise ProtocolError(f"{queue}: the broker sent a malformed message: {error}") from None
        self._suggested_ids[queue] = header.suggest_which_broker_id
        next_offset = header.next_begin_offset
        room = min(bytes_max, INFLATED_TOGETHER_BYTES) if compressed and may_inflate() else 0
        unreadable, left = _inflate(compressed, room)
        if left is not None:
            next_offset = left.queue_offset
            messages = [message for message in messages if message.queue_offset < next_offset]
        if unreadable:
            lost = {message.queue_offset for message, _ in unreadable}
            messages = [message for message in messages if message.queue_offset not in lost]
        is_moved = reply.code == ResponseCode.PULL_OFFSET_MOVED
        if is_moved and not node.is_master:
            # A replica may lack messages that its master has, so only a master moves us.
            is_moved, next_offset = False, queue_offset
        is_reset = is_moved and reply.remark == OFFSET_RESET
        if hold_ms and not found and next_offset == queue_offset:
            await asyncio.sleep(max(IDLE_PAUSE_S - (time.monotonic() - begun), 0))
        return PullResult(messages, next_offset, is_moved, unreadable, is_reset, left is not None)

    async def _call(self, queue: Queue, command: PullMessage, timeout_s: float) -> tuple[ReadNode, Reply]:
        """Returns the first usable answer, and the node that gave it."""
        tried: set[str] = set()
        node = self._nodes.select(queue, self._suggested_ids.pop(queue, MASTER_ID))
        while True:
            tried.add(node.address)
            try:
                reply = await self._session.call(node.address, command, timeout=timeout_s)
                if reply.code not in (ResponseCode.SUCCESS, *_NOTHING_FOUND):
                    reply.check()
                self._nodes.worked(node)
                other = self._nodes.master(queue)
                is_usable = node.is_master or reply.code != ResponseCode.PULL_OFFSET_MOVED
                if is_usable or other is None or other.address in tried:
                    return node, reply
            except (Unreachable, Refused) as error:
                has_role = isinstance(error, Refused) and error.code != ResponseCode.SERVICE_NOT_AVAILABLE
                if has_role and node.is_master:
                    raise
                self._nodes.failed(node)
                if not has_role:
                    await self._session.routes.get(queue.topic, refresh=True)
                other = self._nodes.select(queue)
                if other.address in tried:
                    raise
            node = other


def _inflate(compressed: Iterable[Message], bytes_max: int) -> tuple[list[Unreadable], Message | None]:
    """Inflates bodies until they exceed the limit; returns the unreadable ones and the first that is left."""
    unreadable: list[Unreadable] = []
    size_bytes = 0
    for message in compressed:
        if size_bytes >= bytes_max:
            return unreadable, message
        failed = find_unreadable((message,))
        unreadable += failed
        # A body that is too large cost as much work as the largest allowed one.
        size_bytes += INFLATED_BYTES_MAX if failed else message.body_size
    return unreadable, None


def find_unreadable(compressed: Iterable[Message]) -> list[Unreadable]:
    """Inflates all bodies and returns the messages for which that failed."""
    unreadable: list[Unreadable] = []
    for message in compressed:
        try:
            _ = message.body
        except UnreadableBody as error:
            unreadable.append((message, error))
    return unreadable
