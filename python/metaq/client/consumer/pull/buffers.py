"""The unsettled messages of one queue: how many may be held, and which queue has its turn."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metaq._core import Unsettled

if TYPE_CHECKING:
    from metaq._core import Message
    from metaq.client.session.routes import Queue

MIB: Final = 1024 * 1024
COUNT_MAX: Final = 1000
BYTES_MAX: Final = 100 * MIB
SPAN_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a consumer holds. It stops pulling above any of these limits."""

    count_max: int = COUNT_MAX
    """Messages of one queue."""
    bytes_max: int = BYTES_MAX
    """Bytes of all queues together; each queue has an equal share."""
    span_max: int = SPAN_MAX
    """The distance between the oldest and the newest unsettled offset of one queue, which is the number of
    messages that a crash may deliver again."""

    def __post_init__(self) -> None:
        for name in ("count_max", "bytes_max", "span_max"):
            check_whole(name, getattr(self, name))


def check_whole(name: str, value: object) -> None:
    """Raises ValueError unless the value is a whole number, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number, at least 1")


class QueueBuffer:
    """The messages of one queue between the pull and the settlement.

    It is not thread-safe; `Prefetch` guards it. Messages are settled in any order, and `committable` is the
    offset below which all are settled. A buffer that was dropped, because the queue went to another member
    or its offset was reset, is never committed again.
    """

    def __init__(self, queue: Queue, queue_offset: int, limits: Limits) -> None:
        self.queue = queue
        self.pull_offset = queue_offset
        """The offset at which the next pull starts."""
        self.limits = limits
        self.bytes_max = limits.bytes_max
        """The share of this queue; the consumer updates it when its number of queues changes."""
        self.dropped = False
        self.revoked = False
        """The queue is being given up: no more messages are taken, but those in hand may be settled."""
        self.locked_until = 0.0
        """The end of the queue lock on the monotonic clock; only ordered consumers use locks."""
        self.resting_until = 0.0
        """The end of the pause after a failure of an ordered consumer."""
        self.failures: dict[int, int] = {}
        """Queue offset → failed attempts, for messages that are retried without the broker."""
        self.in_hand = 0
        """Messages that were taken and not settled."""
        self.previous: QueueBuffer | None = None
        """The buffer that this one replaced when the group was reset. It may still have messages in hand."""
        self.is_pulling = False
        """A pull is under way, whose answer says if the group is reset."""
        self.room = asyncio.Event()
        """Set on the consumer's loop when `awaits_room` is set and there is room again."""
        self.awaits_room = False
        self.pulled_at = time.monotonic()
        self._waiting: deque[Message] = deque()
        self._unsettled = Unsettled()

    def __len__(self) -> int:
        """Returns the number of messages that wait to be taken."""
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    @property
    def in_hand_together(self) -> int:
        """Messages in hand of this buffer and of those that it replaced."""
        if self.previous is None:
            return self.in_hand
        before = self.previous.in_hand_together
        if not before:
            self.previous = None
        return self.in_hand + before

    @property
    def bytes_held(self) -> int:
        return self._unsettled.bytes

    @property
    def span(self) -> int:
        return self._unsettled.span

    @property
    def committable(self) -> int:
        """The offset below which every message is settled."""
        first = self._unsettled.first
        return self.pull_offset if first is None else first

    @property
    def is_full(self) -> bool:
        return (
            len(self._unsettled) >= self.limits.count_max
            or self._unsettled.bytes >= self.bytes_max
            or self.span >= self.limits.span_max
        )

    @property
    def has_room(self) -> bool:
        """Whether the buffer is at most half full, so that the next pull can return many messages."""
        return len(self._unsettled) <= self.limits.count_max // 2 and not self.is_full

    def put(self, messages: list[Message], next_offset: int) -> None:
        """Adds the result of a pull. Offsets that the filter skipped count as settled."""
        # A broker that answers with older offsets than we asked for must not make us commit backwards.
        self._waiting.extend(self._unsettled.put(messages, self.pull_offset))
        self.pull_offset = max(self.pull_offset, next_offset)
        self.pulled_at = time.monotonic()

    def move(self, next_offset: int) -> None:
        """Continues at another offset, because the broker's queue starts or ends elsewhere."""
        self.pull_offset = next_offset

    def take(self, count_max: int) -> list[Message]:
        """Returns the oldest messages that wait; they stay unsettled."""
        waiting = self._waiting
        if count_max == 1:
            taken = [waiting.popleft()] if waiting else []
        else:
            taken = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self.in_hand += len(taken)
        return taken

    def give_back(self, messages: Sequence[Message]) -> None:
        """Puts messages that were taken back to the front, in their order."""
        self._waiting.extendleft(reversed(messages))
        self.in_hand -= len(messages)

    def settle(self, messages: Iterable[Message]) -> None:
        """Marks messages as done, for whichever reason."""
        for message in messages:
            self._unsettled.settle(message)
            if self.failures:
                self.failures.pop(message.queue_offset, None)
            self.in_hand -= 1


class Turns:
    """Decides which queue with messages has its turn.

    Without priority the queues take turns. With priority the queue with the highest id comes first, but after
    `patience` messages that lower queues had to wait for, the lower queue that waited longest has its turn.
    So while every queue has messages, the highest gets `patience` of every `patience + 1` messages, the lower
    ones share the rest evenly, and none waits for ever.
    """

    def __init__(self, *, priority: bool = False, patience: int = 8) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}: it must be at least 1")
        self._priority = priority
        self._patience = patience
        self._passed = 0
        """Messages of higher queues since a lower queue had its turn."""
        self._served: dict[Queue, int] = {}
        self._turn = 0

    def next(self, ready: Sequence[QueueBuffer]) -> QueueBuffer | None:
        """Returns one of the buffers that have messages, or None if there are none."""
        if not ready:
            return None
        chosen = min(self._preferred(ready) if self._priority else ready, key=self._last_turn)
        self._turn += 1
        self._served[chosen.queue] = self._turn
        return chosen

    def forget(self, queue: Queue) -> None:
        self._served.pop(queue, None)

    def _last_turn(self, buffer: QueueBuffer) -> int:
        return self._served.get(buffer.queue, 0)

    def _preferred(self, ready: Sequence[QueueBuffer]) -> list[QueueBuffer]:
        highest_id = max(buffer.queue.id for buffer in ready)
        lower = [buffer for buffer in ready if buffer.queue.id < highest_id]
        if lower and self._passed >= self._patience:
            self._passed = 0
            return lower
        self._passed = self._passed + 1 if lower else 0
        return [buffer for buffer in ready if buffer.queue.id == highest_id]
