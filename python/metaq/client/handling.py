"""The first form of consumption: a handler is called with each message, or with batches of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from metaq.client.broker_requests import BrokerRequests
from metaq.client.buffers import QueueBuffer
from metaq.client.consumer_core import GroupConsumer
from metaq.client.consumer_options import ConsumerOptions, client_directory
from metaq.client.local_retry import ParkedMessages, parked_file
from metaq.client.message import Message
from metaq.client.parking import Parking
from metaq.client.routes import Queue
from metaq.client.settlement import Settlement
from metaq.client.subscription import Reject, Retry

if TYPE_CHECKING:
    from metaq.client.session import Session

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 30.0
LEAVE_TIMEOUT_S: Final = 3.0
"""For the last commit and the farewell, even where the handlers took all the time."""


class Caller(Protocol):
    """Calls the user's handler in whichever way suits it."""

    async def call(self, argument: Any) -> None:
        """With a message or a list of them."""

    def close(self) -> None:
        """No more calls will come."""


class HandlerConsumer:
    """Runs a handler over a group's messages, so many calls at a time as asked."""

    def __init__(self, session: Session, options: ConsumerOptions, caller: Caller) -> None:
        self.core = GroupConsumer(session, options)
        self._options = options
        self._caller = caller
        self._parking: Parking | None = None
        self._settlement = Settlement(self.core)
        self._requests = BrokerRequests(self.core, self.invoke)
        self._workers: set[asyncio.Task[None]] = set()
        self._is_started = False
        self.is_closed = False

    async def start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        if self._options.on_failure == "local":
            path = parked_file(
                self._options.local_directory or client_directory() / "parked", self._options.group
            )
            self._parking = Parking(self.core, await asyncio.to_thread(ParkedMessages, path), self.invoke)
            self._settlement = Settlement(self.core, self._parking)
        self._requests.begin()
        await self.core.start()
        for number in range(self._options.concurrency):
            task = asyncio.create_task(self._work(), name=f"metaq {self._options.group} worker {number}")
            self._workers.add(task)
        if self._parking is not None:
            self.core.spawn(self._parking.work(), "parked messages")

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Stops pulling, lets what is in hand end, commits and leaves the group, within the time.

        False where handlers were still at work: their messages come again. Safe to call twice.
        """
        if self.is_closed or not self._is_started:
            self.is_closed = True
            return True
        self.is_closed = True
        deadline = time.monotonic() + timeout
        self._requests.end()
        await self.core.stop_taking()
        late: set[asyncio.Task[None]] = set()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=max(0.0, timeout))
        for task in late:
            task.cancel()
        if late:
            _log.warning("group %s: %d handlers did not end in time", self._options.group, len(late))
            await asyncio.wait(late, timeout=1.0)
        self._caller.close()
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), LEAVE_TIMEOUT_S)):
                await self.core.leave()
                if self._parking is not None:
                    await self._parking.close()
        except TimeoutError:
            _log.warning("group %s: the last commit took too long", self._options.group)
        return not late

    async def invoke(self, messages: Sequence[Message]) -> None:
        """Calls the handler as it wants to be called."""
        telemetry = self.core.session.telemetry
        telemetry.consumed(self._options.group, messages)
        with telemetry.processing(self._options, messages):
            await self._caller.call(messages[0] if self._options.batch is None else list(messages))

    async def _work(self) -> None:
        while (taken := await self.core.take(self._options.batch or 1)) is not None:
            buffer, messages = taken
            try:
                await self._handle(buffer, messages)
            except Exception:
                # Ours, not the handler's: the messages stay unsettled and come again after a restart.
                _log.exception("group %s: %d messages were not settled", self._options.group, len(messages))

    async def _handle(self, buffer: QueueBuffer, messages: list[Message]) -> None:
        try:
            await self.invoke(messages)
        except Reject:
            await self._settlement.reject(buffer, messages)
        except Retry as error:
            await self._settlement.retry(buffer, messages, error.after, error)
        except Exception as error:
            ids = ", ".join(message.id for message in messages)
            _log.warning("group %s: the handler failed on %s", self._options.group, ids, exc_info=error)
            await self._settlement.retry(buffer, messages, None, error)
        else:
            self._settlement.acknowledge(buffer, messages)

    # What both faces show

    @property
    def queues(self) -> frozenset[Queue]:
        """Our share now."""
        return frozenset(self.core.buffers)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        self.core.pause(queues)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        self.core.resume(queues)
