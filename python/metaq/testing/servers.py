"""Name server and broker in one event loop, on one clock that can be moved."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from metaq._core import Clock
from metaq.broker import Broker
from metaq.broker.options import READ, WRITE
from metaq.config import Config, load
from metaq.config.derive import broker_options, nameserver_settings
from metaq.config.sources import resolve
from metaq.nameserver import NameServer
from metaq.protocol import names
from metaq.protocol.bodies import TopicConfig
from metaq.settings import MIB
from metaq.testing.stored import StoredMessage, read_topic

Server = TypeVar("Server", NameServer, Broker)

SETTINGS: Mapping[str, object] = {
    "namesrv_port": 0,
    "broker_port": 0,
    "flush": "async",
    # Small files are made quickly; the largest message fits all the same.
    "commit_log_file_bytes": 8 * MIB,
    "consume_queue_file_entries": 1_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "allocation_step_bytes": MIB,
    # Both servers run here: one that is slow to answer is not gone.
    "register_wait_s": 60.0,
    "announce_timeout_s": 60.0,
    # How full the disk of whoever runs the tests is says nothing about what they test.
    "disk_clean_percent": 95,
    "disk_force_clean_percent": 98,
    "disk_refuse_percent": 99,
}


class Servers:
    """Both servers; used in the event loop that they were started in."""

    def __init__(self, directory: Path | None, settings: Mapping[str, object], *, frozen: bool) -> None:
        self._directory = directory
        self._settings = {
            **SETTINGS,
            **{resolve(name, "settings"): value for name, value in settings.items()},
        }
        self._running = AsyncExitStack()
        self._home: Path | None = None
        self._nameserver: NameServer | None = None
        self._broker: Broker | None = None
        self.clock = Clock.manual(Clock().now_ms()) if frozen else Clock.ahead(0)
        self._config()  # What is misspelt is told here and not at the start.

    @property
    def nameserver(self) -> NameServer:
        return _started(self._nameserver)

    @property
    def broker(self) -> Broker:
        return _started(self._broker)

    async def start(self) -> None:
        """From an empty store where no directory was given; raises what the servers raise."""
        if self._broker is not None:
            raise RuntimeError("it runs already")
        self._home = None if self._directory else Path(tempfile.mkdtemp(prefix="metaq-"))
        try:
            await self._start()
        except BaseException:
            self._clear()
            raise

    async def stop(self) -> None:
        """Twice is no harm."""
        try:
            await self._stop()
        finally:
            self._clear()

    async def restart(self) -> None:
        """A clean stop, and a start at the same addresses with what is in the store."""
        ports = {
            "namesrv_port": int(self.nameserver.address.rpartition(":")[2]),
            "broker_port": self.broker.listener.port,
        }
        await self._stop()
        self._settings |= ports
        await self._start()

    async def advance(self, by_ms: int, *, silent: bool) -> None:
        """Moves the clock, and returns when what is due by then has happened."""
        broker, nameserver = self.broker, self.nameserver
        # In one step of the loop, so that no housekeeping sees one without the other.
        self.clock.advance_ms(by_ms)
        broker.skip_time(by_ms, silent=silent)
        nameserver.skip_time(by_ms)
        await broker.catch_up()

    async def create_topic(self, name: str, queues: int, *, ordered: bool) -> None:
        """Raises Refused for what the broker would not take from an administrator either."""
        topics = self.broker.master.state.topics
        wanted = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READ | WRITE,
            order=ordered,
        )
        topics.update(wanted, {})
        await topics.publish([name])

    async def messages(self, topic: str) -> list[StoredMessage]:
        return await asyncio.to_thread(read_topic, self.broker.store, topic)

    async def dead_letters(self, group: str) -> list[StoredMessage]:
        return await self.messages(names.dead_letter_topic(group))

    async def _start(self) -> None:
        config = self._config()
        async with AsyncExitStack() as started:
            nameserver = NameServer(nameserver_settings(config), self.clock)
            started.push_async_callback(nameserver.stop)
            await nameserver.start()
            broker = Broker(broker_options(config, (nameserver.address,)), self.clock)
            await broker.start()
            started.push_async_callback(broker.stop)
            self._nameserver, self._broker = nameserver, broker
            self._running = started.pop_all()

    async def _stop(self) -> None:
        self._nameserver = self._broker = None
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    def _clear(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _config(self) -> Config:
        """Settings of whoever runs the tests, by file or environment, are none of ours."""
        directory = self._home or self._directory
        return load({**self._settings, "data": str(directory) if directory else None}, environment={})


def _started(server: Server | None) -> Server:
    if server is None:
        raise RuntimeError("MetaQ does not run: use it within its `with` block")
    return server
