"""Name server and broker in one event loop, with one movable clock."""

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
from metaq.config import Config, load
from metaq.config.derive import broker_options, nameserver_settings
from metaq.config.kept import with_kept
from metaq.config.sources import resolve
from metaq.nameserver import NameServer
from metaq.protocol import names
from metaq.protocol.bodies import READ, WRITE, TopicConfig
from metaq.settings import MIB
from metaq.testing.stored import StoredMessage, read_topic

Server = TypeVar("Server", NameServer, Broker)

SETTINGS: Mapping[str, object] = {
    "namesrv_port": 0,
    "broker_port": 0,
    "flush": "async",
    # Small files are created quickly, and the largest message still fits.
    "commit_log_file_bytes": 8 * MIB,
    "consume_queue_file_entries": 1_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "allocation_step_bytes": MIB,
    # Both servers run in this process: a slow answer does not mean that one is gone.
    "register_wait_s": 60.0,
    "announce_timeout_s": 60.0,
    # The tests must not depend on how full the disk is.
    "disk_clean_percent": 95,
    "disk_force_clean_percent": 98,
    "disk_refuse_percent": 99,
}


class Servers:
    """Both servers. Use them on the event loop that started them."""

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
        self._config()  # Raises now if a setting is misspelt.

    @property
    def nameserver(self) -> NameServer:
        return _started(self._nameserver)

    @property
    def broker(self) -> Broker:
        return _started(self._broker)

    async def start(self) -> None:
        """Starts both servers, with an empty store if no directory was given."""
        if self._broker is not None:
            raise RuntimeError("MetaQ is already running")
        self._home = None if self._directory else Path(tempfile.mkdtemp(prefix="metaq-"))
        try:
            await self._start()
        except BaseException:
            self._clear()
            raise

    async def stop(self) -> None:
        """Stops both servers. Safe to call twice."""
        try:
            await self._stop()
        finally:
            self._clear()

    async def restart(self) -> None:
        """Stops both servers and starts them at the same addresses, with the same store."""
        ports = {
            "namesrv_port": int(self.nameserver.address.rpartition(":")[2]),
            "broker_port": self.broker.listener.port,
        }
        await self._stop()
        self._settings |= ports
        await self._start()

    async def advance(self, by_ms: int, *, silent: bool) -> None:
        """Moves the clock, and returns when everything that is due has happened."""
        broker, nameserver = self.broker, self.nameserver
        # Without an await in between, so that housekeeping never sees only half of the move.
        self.clock.advance_ms(by_ms)
        broker.skip_time(by_ms, silent=silent)
        nameserver.skip_time(by_ms)
        await broker.catch_up()

    async def create_topic(self, name: str, queues: int, *, ordered: bool) -> None:
        """Creates or changes a topic. Raises Refused for what the broker refuses from administrators, too."""
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
        """Loads the settings, without those of the machine's environment."""
        directory = self._home or self._directory
        data = {"data": str(directory)} if directory else {}
        return with_kept(load({**self._settings, **data}, environment={}))


def _started(server: Server | None) -> Server:
    if server is None:
        raise RuntimeError("MetaQ is not running: use it inside its `with` block")
    return server
