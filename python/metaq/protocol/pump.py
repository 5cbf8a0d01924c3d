"""Connects the data plane's threads to the event loop: requests up, answers and our own requests down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from metaq._core import Answer, Closed, ConnectionGone, Listener, Request
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Handlers
from metaq.protocol.errors import Unreachable
from metaq.protocol.peer_log import peer_log
from metaq.protocol.reply import Reply

_log = logging.getLogger(__name__)

BATCH_MAX: Final = 256
"""The most events of one turn, so that timers and other sockets get their turn."""


class Pump:
    """Drains one listener on the running loop and passes each event to its handler.

    Synchronous handlers run in order of arrival, inside the drain. Asynchronous ones become tasks; while
    `tasks_max` of them are under way nothing more is drained, so the listener's bounded queue fills and it
    answers "busy" by itself.
    """

    def __init__(
        self,
        listener: Listener,
        handlers: Handlers,
        on_closed: Callable[[Closed], None] | None = None,
        tasks_max: int = 1024,
    ) -> None:
        self._listener = listener
        self._handlers = handlers
        self._on_closed = on_closed
        self._tasks_max = tasks_max
        self._tasks: set[asyncio.Future[None]] = set()
        self._waiting: dict[int, dict[int, asyncio.Future[Reply]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = False
        self._held = False

    def start(self) -> None:
        """Begins to drain; safe to call again. The listener's owner starts and stops the listener."""
        self._loop = asyncio.get_running_loop()
        self._resume()

    async def hand_over(self, handlers: Handlers, timeout: float = 5.0) -> None:
        """Gives every request from now on to other handlers. Returns once those that the former handlers had
        begun are answered: what takes longer than `timeout` is cancelled and refused."""
        self._handlers = handlers
        begun = self._tasks - {asyncio.current_task()}
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
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout)
            for task in late:
                task.cancel()
        for connection in list(self._waiting):
            self._abandon(connection, "this server is stopping")

    async def invoke(
        self, connection: int, command: Command, body: bytes = b"", timeout: float = 3.0
    ) -> Reply:
        """Asks a connected client. Raises Unreachable if it has left or does not answer."""
        loop = asyncio.get_running_loop()
        try:
            opaque = self._listener.invoke(connection, command.code, fields=command.to_fields(), body=body)
        except ConnectionGone as error:
            raise Unreachable(f"{type(command).__name__}: {error}") from None
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.setdefault(connection, {})[opaque] = future
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise Unreachable(f"{type(command).__name__}: no answer within {timeout:g} s") from None
        finally:
            self._forget(connection, opaque)

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
        if self._loop is not None and not self._reading and not self._held:
            self._loop.add_reader(self._listener.fileno(), self._drain)
            self._reading = True

    def _pause(self) -> None:
        if self._loop is not None and self._reading:
            self._loop.remove_reader(self._listener.fileno())
            self._reading = False

    def _drain(self) -> None:
        room = min(BATCH_MAX, self._tasks_max - len(self._tasks))
        if room <= 0:
            self._pause()
            return
        for event in self._listener.drain(room):
            try:
                self._take(event)
            except Exception:
                _log.exception("an event of the data plane was not handled")

    def _take(self, event: Request | Answer | Closed) -> None:
        if isinstance(event, Request):
            rest = self._handlers.begin(event)
            if rest is not None:
                self._finish_later(rest)
        elif isinstance(event, Answer):
            future = self._waiting.get(event.connection, {}).get(event.opaque)
            if future is not None and not future.done():
                future.set_result(Reply(event.code, event.remark, event.fields, event.body))
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
            if self._on_closed is not None:
                self._on_closed(event)

    def _finish_later(self, rest: Awaitable[None]) -> None:
        task = asyncio.ensure_future(rest)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request was not answered", exc_info=error)
        self._resume()

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
