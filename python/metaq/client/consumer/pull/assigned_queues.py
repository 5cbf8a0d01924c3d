"""The queues that a puller reads, each with its place in the native pull stream.

The stream pulls on its own. When it cannot decide how to continue a queue, because the broker suggested a
replica, moved the offset, refused the pull or could not be reached, it reports an event, and this module
decides. `read_nodes.py` selects the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from metaq._core import PullEvent, PullStream
from metaq.client.consumer.pull.read_nodes import ReadFrom, ReadNode, ReadNodes
from metaq.client.consumer.subscription import Subscription
from metaq.client.session.routes import Queue
from metaq.client.tasks import Tasks
from metaq.errors import MetaqError, NoRoute, UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.names import MASTER_ID
from metaq.retry import Retry, steady
from metaq.settings import PullSettings

if TYPE_CHECKING:
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

FAILURE_PAUSE_S: Final = 1.0
RETURN_AFTER_S: Final = 0.01
"""A little later than the time for which a node is avoided, so that it is not avoided any more."""


class AssignedQueues:
    """Starts, stops and continues queues in the native stream of one puller."""

    def __init__(
        self,
        session: Session,
        settings: PullSettings,
        subscription: Callable[[str], Subscription],
        *,
        read_from: ReadFrom = "master",
        on_progress: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._subscription = subscription
        self._on_progress = on_progress
        self._on_failure = on_failure
        self.stream: PullStream | None = None
        """Opened with the first queue."""
        self._numbers: dict[Queue, int] = {}
        self._queues: dict[int, Queue] = {}
        """Each queue by its number in the stream."""
        self._paused: set[Queue] = set()
        self._nodes = ReadNodes(session.routes, read_from)
        self._sources: dict[int, ReadNode] = {}
        """The node that each queue is pulled from, by its number in the stream."""
        self._tasks = Tasks(f"puller of {settings.group}")

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._numbers

    @property
    def queues(self) -> list[Queue]:
        return sorted(self._numbers)

    def require(self, queue: Queue) -> int:
        """Returns the number of a queue in the stream. Raises UsageError if it is not assigned."""
        try:
            return self._numbers[queue]
        except KeyError:
            raise UsageError(f"{queue} is not assigned", hint="call assign first") from None

    def position(self, queue: Queue) -> int:
        """Returns the offset of the message that comes next. Raises UsageError."""
        number = self.require(queue)
        position = None if self.stream is None else self.stream.position(number)
        if position is None:
            raise UsageError(f"{queue} is not assigned", hint="call assign first")
        return position

    def begin(self, queue: Queue, queue_offset: int) -> None:
        """Reads a queue from an offset on. If it was read already, it continues there."""
        if self.stream is None:
            self.stream = self._open()
        subscription = self._subscription(queue.topic)
        node = self._nodes.select(queue)
        before = self._numbers.get(queue)
        paused = queue in self._paused
        number = self.stream.begin(queue, subscription, node.address, queue_offset, paused=paused)
        # Another thread may poll at this moment, so the queue is never missing in between.
        self._numbers[queue] = number
        self._queues[number] = queue
        self._sources[number] = node
        if before is not None:
            self._end(self.stream, before)

    def drop(self, queue: Queue) -> None:
        """Stops reading a queue."""
        assert self.stream is not None, "an assigned queue has a stream"
        self._end(self.stream, self._numbers.pop(queue))

    def pause(self, queues: Iterable[Queue] | None) -> None:
        """Stops giving out messages of these queues, or of all."""
        self._set_paused(self._numbers if queues is None else queues, True)

    def resume(self, queues: Iterable[Queue] | None) -> None:
        """Continues with these queues, or with all."""
        self._set_paused(list(self._paused) if queues is None else list(queues), False)
        self._on_progress()

    def close(self) -> None:
        """Stops everything. Safe to call twice."""
        for queue in list(self._numbers):
            self.drop(queue)
        self._tasks.cancel()
        if self.stream is not None:
            self._session.routes.unwatch(self._route_changed)
            asyncio.get_running_loop().remove_reader(self.stream.fileno())
            self.stream.close()

    def _open(self) -> PullStream:
        stream = PullStream(self._session.network("pull"), self._settings)
        self._session.routes.watch(self._route_changed)
        asyncio.get_running_loop().add_reader(stream.fileno(), self._read_events)
        return stream

    def _end(self, stream: PullStream, number: int) -> None:
        del self._queues[number]
        del self._sources[number]
        stream.end(number)

    def _set_paused(self, queues: Iterable[Queue], paused: bool) -> None:
        for queue in queues:
            (self._paused.add if paused else self._paused.discard)(queue)
            number = self._numbers.get(queue)
            if number is not None and self.stream is not None:
                self.stream.pause(number, paused)

    def _route_changed(self, topic: str) -> None:
        for queue, number in self._numbers.items():
            if queue.topic == topic:
                self._relocate(queue, number)

    def _relocate(self, queue: Queue, number: int) -> None:
        """Sends the next pulls of a queue to the node that is best now."""
        if self.stream is None or number not in self._queues:
            return
        with contextlib.suppress(NoRoute):  # The pulls that fail then find the next node.
            node = self._nodes.select(queue)
            if node != self._sources[number]:
                self._sources[number] = node
                self.stream.relocate(number, node.address)

    # Events of the stream

    def _read_events(self) -> None:
        assert self.stream is not None, "its file descriptor is watched"
        for event in self.stream.events():
            queue = self._queues.get(event.number)
            if queue is not None:
                self._decide(queue, event)
        self._on_progress()

    def _decide(self, queue: Queue, event: PullEvent) -> None:
        source = self._sources[event.number]
        try:
            if event.kind == "suggested":
                self._continue(queue, event.number, suggested_id=event.value)
                return
            if event.kind == "moved" and not source.is_master:
                # A replica may lack messages that its master has, so only a master moves us.
                if (master := self._nodes.master(queue)) is not None:
                    self._resume(event.number, master)
                    self._return_later(queue, event.number, FAILURE_PAUSE_S)
                    return
            elif event.kind == "moved" and self._may_follow(event):
                self._continue(queue, event.number, queue_offset=event.value)
                return
        except NoRoute as error:
            _log.info("pull of %s: %s", queue, error)
        if _is_about_node(event, source):
            self._nodes.failed(source)
        elif event.kind == "refused":
            self._refused(Refused(event.value, event.text))
        if event.kind == "malformed":
            self._refused(ProtocolError(f"{queue}: {event.text}"))
        elif event.kind == "failed":
            _log.info("pull of %s failed: %s", queue, event.text)
        # A moved queue waits until its old messages are polled, or until its broker is known again.
        self._tasks.spawn(self._continue_later(queue, event), "next pull")

    def _may_follow(self, event: PullEvent) -> bool:
        """Returns whether no message from before the move is left, so the queue may continue elsewhere."""
        return (
            event.is_empty and self.stream is not None and self.stream.position(event.number) != event.value
        )

    def _refused(self, error: Refused) -> None:
        if not error.retriable:
            self._on_failure(error)

    async def _continue_later(self, queue: Queue, event: PullEvent) -> None:
        """Continues at once if a node failed and the group has another one, otherwise after a pause."""
        tries = Retry(None, steady(FAILURE_PAUSE_S))
        failed = self._sources[event.number]
        seeks_other = _is_about_node(event, failed)
        while event.number in self._queues:
            try:
                if seeks_other:
                    # The broker may have moved to another address.
                    await self._session.routes.get(queue.topic, refresh=True)
                if event.number not in self._queues:
                    return
                has_other = seeks_other and self._nodes.select(queue) != failed
                if tries.tries or has_other:
                    self._continue(queue, event.number)
                    if has_other:
                        self._return_later(queue, event.number, self._nodes.avoided_s(failed))
                    return
            except MetaqError as error:
                _log.info("pull of %s: %s", queue, error)
            await tries.pause()

    def _return_later(self, queue: Queue, number: int, pause_s: float) -> None:
        """Goes back to the best node once the one that failed is no longer avoided."""
        asyncio.get_running_loop().call_later(pause_s + RETURN_AFTER_S, self._relocate, queue, number)

    def _continue(
        self, queue: Queue, number: int, *, suggested_id: int = MASTER_ID, queue_offset: int | None = None
    ) -> None:
        """Raises NoRoute if no node of the broker is known any more."""
        node = self._nodes.select(queue, suggested_id)
        self._resume(number, node, suggested_id=suggested_id, queue_offset=queue_offset)

    def _resume(
        self, number: int, node: ReadNode, *, suggested_id: int = MASTER_ID, queue_offset: int | None = None
    ) -> None:
        assert self.stream is not None, "it reported the event"
        self._sources[number] = node
        # The stream reports the next suggestion that differs from this one.
        self.stream.resume(number, node.address, broker_id=suggested_id, queue_offset=queue_offset)


def _is_about_node(event: PullEvent, source: ReadNode) -> bool:
    """Returns whether another node of the group may give what this one did not."""
    if event.kind == "refused":
        return not source.is_master or event.value == ResponseCode.SERVICE_NOT_AVAILABLE
    return event.kind == "failed"
