"""What was pulled of a queue and is not settled yet; how much may be, and which message comes next."""

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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a consumer holds; above any of these it stops pulling."""

    count_max: int = 1000
    """Of one queue."""
    bytes_max: int = 100 * MIB
    """Of all queues together: each has an equal share of it."""
    span_max: int = 2000
    """Of one queue, between the oldest and the newest message that is not settled: what a crash would deliver
    again."""

    def __post_init__(self) -> None:
        for name in ("count_max", "bytes_max", "span_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class QueueBuffer:
    """The messages of one queue between the pull and their acknowledgement.

    It is not safe for threads by itself: its consumer guards it. Messages are settled in any order;
    `committable` is the offset below which all are. A buffer that was `dropped` (the queue went to another
    member, or its offset was reset) takes no more settlements.
    """

    def __init__(self, queue: Queue, queue_offset: int, limits: Limits) -> None:
        self.queue = queue
        self.pull_offset = queue_offset
        """Where the next pull begins."""
        self.limits = limits
        self.bytes_max = limits.bytes_max
        """The share of this queue; set anew by its consumer when it has more or fewer."""
        self.paused = False
        self.dropped = False
        self.revoked = False
        """The queue is being given up: nothing more is taken, what is in hand may still be settled."""
        self.locked_until = 0.0
        """On the monotonic clock; only consumers in order take locks."""
        self.resting_until = 0.0
        """After a failure in order nothing is taken before."""
        self.failures: dict[int, int] = {}
        """Queue offset → how often it failed here, for messages that are tried again without the broker."""
        self.in_hand = 0
        self.room = asyncio.Event()
        """Set, on the loop of its consumer, when there is room again for who `awaits_room`."""
        self.awaits_room = False
        self.pulled_at = time.monotonic()
        self._waiting: deque[Message] = deque()
        self._unsettled = Unsettled()

    def __len__(self) -> int:
        """Messages that wait to be taken."""
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    @property
    def bytes_held(self) -> int:
        return self._unsettled.bytes

    @property
    def span(self) -> int:
        return self._unsettled.span

    @property
    def committable(self) -> int:
        """Everything below is settled."""
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
        """For a pull that is worth it."""
        return len(self._unsettled) <= self.limits.count_max // 2 and not self.is_full

    def put(self, messages: list[Message], next_offset: int) -> None:
        """The outcome of a pull; what the filter left out is settled by the way."""
        # A broker that answers with less than asked for would make us commit backwards.
        self._waiting.extend(self._unsettled.put(messages, self.pull_offset))
        self.pull_offset = max(self.pull_offset, next_offset)
        self.pulled_at = time.monotonic()

    def move(self, next_offset: int) -> None:
        """The broker says that the queue begins or ends elsewhere."""
        self.pull_offset = next_offset

    def take(self, count_max: int) -> list[Message]:
        """The oldest messages that wait; they stay unsettled."""
        waiting = self._waiting
        if count_max == 1:
            taken = [waiting.popleft()] if waiting else []
        else:
            taken = [waiting.popleft() for _ in range(min(count_max, len(waiting)))]
        self.in_hand += len(taken)
        return taken

    def give_back(self, messages: Sequence[Message]) -> None:
        """What was taken comes again, first and in its order."""
        self._waiting.extendleft(reversed(messages))
        self.in_hand -= len(messages)

    def settle(self, messages: Iterable[Message]) -> None:
        """They are done with, one way or another."""
        for message in messages:
            self._unsettled.settle(message)
            if self.failures:
                self.failures.pop(message.queue_offset, None)
            self.in_hand -= 1


class Turns:
    """Whose turn it is among the queues that have something.

    Plainly one after the other; by priority the highest queue id first, except that after `patience` messages
    which lower queues had to let pass, the lower queue that waited longest has its turn. So while there is
    enough of everything, the highest gets `patience` of every `patience + 1` messages and the lower ones
    share the rest evenly: none waits for ever.
    """

    def __init__(self, *, priority: bool = False, patience: int = 8) -> None:
        if patience < 1:
            raise ValueError(f"a patience of {patience} would not prefer the higher queues: at least 1")
        self._priority = priority
        self._patience = patience
        self._passed = 0
        """Messages that lower queues let pass since one of them had its turn."""
        self._served: dict[Queue, int] = {}
        self._turn = 0

    def next(self, ready: Sequence[QueueBuffer]) -> QueueBuffer | None:
        """Of the buffers that have something."""
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
