"""MetaQ in a thread beside a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from metaq.testing.clock import LocalClock
from metaq.testing.servers import Servers
from metaq.testing.stored import StoredMessage

Result = TypeVar("Result")


class LocalMetaq:
    """The real name server and broker in this process, on free ports, for the length of a `with` block.

    `directory` holds the store; without it the store is empty and deleted at the end. `settings` are broker
    settings with the names of docs/configuration.md. The clock runs on its own; if it is `frozen`, only
    `clock.advance` moves it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        frozen: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._servers = Servers(directory, settings or {}, frozen=frozen)
        self._loop = LoopThread()
        self.clock = LocalClock(
            self._servers.clock,
            lambda by_ms, silent: self._loop.run(self._servers.advance(by_ms, silent=silent)),
        )

    def __enter__(self) -> Self:
        self._loop.start()
        try:
            self._loop.run(self._servers.start())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._loop.run(self._servers.stop())
        finally:
            self._loop.stop()

    @property
    def nameserver(self) -> str:
        """The address of the name server, `127.0.0.1:port`."""
        return self._servers.nameserver.address

    @property
    def broker(self) -> str:
        """The address of the broker, `127.0.0.1:port`."""
        return self._servers.broker.address

    def create_topic(self, name: str, *, queues: int = 4, ordered: bool = False) -> None:
        """Creates or changes a topic. Clients find it at once."""
        self._loop.run(self._servers.create_topic(name, queues, ordered=ordered))

    def messages(self, topic: str) -> list[StoredMessage]:
        """Returns all messages of the topic, in the order in which they were stored."""
        return self._loop.run(self._servers.messages(topic))

    def dead_letters(self, group: str) -> list[StoredMessage]:
        """Returns the dead letters of the group."""
        return self._loop.run(self._servers.dead_letters(group))

    def restart(self) -> None:
        """Stops the servers cleanly and starts them again, at the same addresses and with the same store."""
        self._loop.run(self._servers.restart())


class LoopThread:
    """An event loop in a thread, which runs coroutines for other threads."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("MetaQ is already running")
        started: Future[None] = Future()
        # A daemon, so that a failed teardown does not keep the interpreter alive.
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="metaq", daemon=True
        )
        self._thread.start()
        started.result()

    def stop(self) -> None:
        """Ends the thread. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._end is None:
            return
        self._loop.call_soon_threadsafe(self._end.set)
        thread.join()
        self._loop = self._end = None

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Runs a coroutine and returns or raises its outcome."""
        if self._loop is None:
            work.close()
            raise RuntimeError("MetaQ is not running: use it inside its `with` block")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        started.set_result(None)
        await self._end.wait()
