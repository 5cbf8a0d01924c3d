"""Connects the data plane's threads to the event loop: requests up, answers and our own requests down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from metaq._core import Answer, Closed, ConnectionGone, FrameError, Listener, Request
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Handlers, Unfinished
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.handling.askers import Asker, asker_of
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.handling.slots import QUESTION_BYTES, Kind, QuestionLimits, Questions, Slots
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.protocol.reply import Reply

_log = logging.getLogger(__name__)

BATCH_MAX: Final = 256
"""The most events of one turn, so that timers and other sockets get their turn."""
DRAIN_MAX: Final = 16
"""The most events that are taken at once."""
TURN_S: Final = 0.005
"""After this time a turn ends, even if there is more. What is taken by then is handled in the next turn."""
TASKS_MAX: Final = 1024
TASKS_PER_CONNECTION_MAX: Final = 128


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    """A request that has a slot or waits for one."""

    rest: Unfinished
    request: Request
    began_s: float
    asker: Asker
    kind: Kind


class Pump:
    """Drains one listener on the running loop and passes each event to its handler.

    Connections take turns. Synchronous handlers run inside the drain, those of one connection in their order.
    Asynchronous ones become tasks, and each task holds a slot. A connection that has its share of the slots
    is paused: its other requests wait in the listener, whose bounded queue fills, and which answers "busy" by
    itself. If there is no slot for a request, it waits here; a connection has few such requests, because it
    is paused meanwhile.

    When a connection closes, those of its requests that only ask are cancelled, whether they wait or run.

    A request that waits for another client holds no slot meanwhile (`waiting_for_client`): that client may
    never answer.
    """

    def __init__(
        self,
        listener: Listener,
        handlers: Handlers,
        on_closed: Callable[[Closed], None] | None = None,
        tasks_max: int = TASKS_MAX,
        tasks_per_connection_max: int = TASKS_PER_CONNECTION_MAX,
        questions: QuestionLimits | None = None,
        slow_requests: SlowRequests | None = None,
    ) -> None:
        self._listener = listener
        self._handlers = handlers
        self._on_closed = on_closed
        self._slots: Slots[_Queued] = Slots(tasks_max, tasks_per_connection_max, listener.pause)
        self._question_limits = questions or QuestionLimits()
        self._questions = Questions(self._question_limits)
        self._slow_requests = slow_requests or SlowRequests(listener, limit_ms=0)
        self._tasks: dict[asyncio.Future[Any], _Queued] = {}
        """The requests under way."""
        self._asking: dict[int, set[asyncio.Future[Any]]] = {}
        """Connection → its requests under way that only ask."""
        self._set_aside: dict[int, set[asyncio.Future[Any]]] = {}
        """Connection → its requests that wait for another client."""
        self._clients_s: dict[asyncio.Future[Any], float] = {}
        """Request under way → the time that it waited for other clients."""
        self._waiting: dict[int, dict[int, asyncio.Future[Reply]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        self._held = False
        self._taken: deque[Request | Answer | Closed] = deque()
        """Events that the last turn had no time for. Until they are handled, no others are taken."""
        self._next_turn: asyncio.Handle | None = None
        """The turn that handles them."""

    def start(self) -> None:
        """Begins to drain; safe to call again. The listener's owner starts and stops the listener."""
        self._loop = asyncio.get_running_loop()
        self._resume()

    async def hand_over(self, handlers: Handlers, timeout: float = 5.0) -> None:
        """Gives every request from now on to other handlers. Returns once those that the former handlers had
        begun are answered: what takes longer than `timeout` is cancelled and refused."""
        self._handlers = handlers
        self._start_queued(anyhow=True)
        begun = self._tasks.keys() - {asyncio.current_task()}
        if begun:
            _, late = await asyncio.wait(begun, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def stop(self, timeout: float = 5.0) -> None:
        """Drains what has arrived, lets handlers finish and gives up on answers still awaited."""
        if self._loop is None:
            return
        self._drain()
        self._pause()
        self._loop = None
        while self._taken:
            self._handle(self._taken.popleft())
        self._start_queued(anyhow=True)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout)
            for task in late:
                task.cancel()
        for connection in list(self._waiting):
            self._abandon(connection, "this server is stopping")

    async def invoke(
        self, connection: int, command: Command, body: bytes = b"", timeout: float = 3.0
    ) -> Reply:
        """Asks a connected client. Raises Unreachable if it has left or does not answer, and Refused if too
        many requests wait for clients already, or if the question or its answer is too long."""
        with self.waiting_for_client(len(body)):
            return await self._invoke(connection, command, body, timeout)

    async def _invoke(self, connection: int, command: Command, body: bytes, timeout: float) -> Reply:
        loop = asyncio.get_running_loop()
        self._question_limits.check_client(len(self._waiting.get(connection, ())))
        try:
            opaque = self._listener.invoke(connection, command.code, fields=command.to_fields(), body=body)
        except ConnectionGone as error:
            raise Unreachable(f"{type(command).__name__}: {error}") from None
        except FrameError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{type(command).__name__}: {error}") from None
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.setdefault(connection, {})[opaque] = future
        try:
            async with asyncio.timeout(timeout):
                reply = await future
        except TimeoutError:
            raise Unreachable(f"{type(command).__name__}: no answer within {timeout:g} s") from None
        finally:
            self._forget(connection, opaque)
        if len(reply.body) > command.answer_bytes_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{type(command).__name__}: the client answers with {len(reply.body)} bytes, the limit is "
                f"{command.answer_bytes_max}",
            )
        return reply

    @contextmanager
    def waiting_for_client(self, size_bytes: int = 0, questions: int = 1) -> Iterator[None]:
        """Frees the slot of the request that the current task handles, while it waits for other clients. If
        its own client leaves meanwhile, the request is cancelled: nobody needs its answer. Does nothing in a
        task that handles no request, or that waits already. Raises Refused past the limits."""
        task = asyncio.current_task()
        request = None if task is None else self._tasks.get(task)
        if task is None or request is None or task in self._set_aside.get(request.asker.connection, ()):
            yield
            return
        address, connection = request.asker
        size_bytes += questions * QUESTION_BYTES
        self._questions.add(connection, address, size_bytes)
        self._set_aside.setdefault(connection, set()).add(task)
        self._slots.give_back(request)
        self._start_queued()
        began_s = time.monotonic()
        try:
            yield
        finally:
            waited_s = time.monotonic() - began_s
            self._clients_s[task] = self._clients_s.get(task, 0.0) + waited_s
            self._slots.take(request)
            aside = self._set_aside[connection]
            aside.discard(task)
            if not aside:
                del self._set_aside[connection]
            self._questions.remove(connection, address, size_bytes)

    def send_oneway(self, connection: int, command: Command, body: bytes = b"") -> bool:
        """Sends a connected client a command that it does not answer; False if it has left."""
        try:
            self._listener.invoke(
                connection, command.code, fields=command.to_fields(), body=body, oneway=True
            )
        except ConnectionGone:
            return False
        return True

    def hold(self) -> None:
        """Leaves requests in the listener's bounded queue until `release`. Others wait as well: answers of
        clients, and the ends of connections."""
        self._held = True
        self._pause()

    def release(self) -> None:
        """Drains again; safe to call without `hold`."""
        self._held = False
        self._resume()

    def _resume(self) -> None:
        if self._loop is None or self._held:
            return
        if self._taken:
            if self._next_turn is None:
                self._next_turn = self._loop.call_soon(self._go_on)
        elif not self._reading:
            self._loop.add_reader(self._listener.fileno(), self._drain)
            self._reading = True

    def _pause(self) -> None:
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._loop is not None and self._reading:
            self._loop.remove_reader(self._listener.fileno())
            self._reading = False

    def _go_on(self) -> None:
        self._next_turn = None
        self._drain()
        self._resume()

    def _drain(self) -> None:
        ends_at = time.monotonic() + TURN_S
        for _ in range(BATCH_MAX):
            if not self._taken:
                self._taken.extend(self._listener.drain(DRAIN_MAX))
                if not self._taken:
                    return
            self._handle(self._taken.popleft())
            if time.monotonic() >= ends_at:
                break
        if self._taken and self._loop is not None:
            # The listener may have nothing more to read, so it would not start the next turn.
            self._pause()
            self._resume()

    def _handle(self, event: Request | Answer | Closed) -> None:
        try:
            self._take(event)
        except Exception:
            _log.exception("an event of the data plane was not handled")

    def _take(self, event: Request | Answer | Closed) -> None:
        if isinstance(event, Request):
            began_s = time.monotonic()
            rest = self._handlers.begin(event)
            if rest is None:
                self._slow_requests.check(event, began_s)
            else:
                self._finish_later(rest, event, began_s)
        elif isinstance(event, Answer):
            future = self._waiting.get(event.connection, {}).get(event.opaque)
            if future is not None and not future.done():
                try:
                    future.set_result(Reply(event.code, event.remark, event.fields, event.body))
                except FrameError as error:
                    future.set_exception(Unreachable(f"its answer cannot be read: {error}"))
        else:
            if event.reason is not None:
                peer_log.write(
                    _log,
                    logging.INFO,
                    event.remote,
                    "closed the connection of %s: %s",
                    event.remote,
                    event.reason,
                )
            self._abandon(event.connection, f"{event.remote} has closed its connection")
            self._cancel(event.connection)
            if self._on_closed is not None:
                self._on_closed(event)

    def _finish_later(self, rest: Unfinished, request: Request, began_s: float) -> None:
        asker, command = asker_of(request), rest.command
        kind = self._slots.kind_of(
            asker.connection, is_vital=command.has_reserved_slots, only_asks=command.ends_with_connection
        )
        queued = _Queued(rest, request, began_s, asker, kind)
        if self._slots.has_room(asker.source, kind):
            self._slots.take(queued)
            self._start(queued)
        else:
            self._slots.wait(queued)

    def _start(self, queued: _Queued) -> None:
        task = asyncio.ensure_future(queued.rest)
        self._tasks[task] = queued
        if queued.rest.command.ends_with_connection:
            self._asking.setdefault(queued.asker.connection, set()).add(task)
        task.add_done_callback(self._finished)

    def _start_queued(self, *, anyhow: bool = False) -> None:
        """Starts the requests that wait: as far as there are slots, or all of them."""
        while (queued := self._slots.begin_next(anyhow=anyhow)) is not None:
            self._start(queued)

    def _finished(self, task: asyncio.Future[None]) -> None:
        queued = self._tasks.pop(task)
        connection = queued.asker.connection
        asking = self._asking.get(connection)
        if asking is not None:
            asking.discard(task)
            if not asking:
                del self._asking[connection]
        self._slots.give_back(queued)
        self._slow_requests.check(queued.request, queued.began_s, self._clients_s.pop(task, 0.0))
        if task.cancelled():
            queued.rest.drop()  # It may not have begun.
        elif (error := task.exception()) is not None:
            _log.error("a request was not answered", exc_info=error)
        self._start_queued()

    def _cancel(self, connection: int) -> None:
        """Gives up the requests of a connection that has closed, apart from changes that have begun."""
        for task in (*self._set_aside.get(connection, ()), *self._asking.get(connection, ())):
            task.cancel()
        for queued in self._slots.waiting(connection):
            if queued.rest.command.ends_with_connection:
                self._slots.drop(queued)
                queued.rest.drop()

    def _abandon(self, connection: int, reason: str) -> None:
        for future in self._waiting.pop(connection, {}).values():
            if not future.done():
                future.set_exception(Unreachable(reason))

    def _forget(self, connection: int, opaque: int) -> None:
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.pop(opaque, None)
            if not waiting:
                del self._waiting[connection]
