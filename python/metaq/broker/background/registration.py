"""Registers this broker and its topics with every name server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from metaq.broker.options import BrokerOptions
from metaq.broker.state.topics import Topics
from metaq.errors import MetaqError
from metaq.protocol.bodies import READ, WRITE, RegisterBrokerBody
from metaq.protocol.cluster import RegisterBroker, UnregisterBroker
from metaq.protocol.command import Command
from metaq.remoting import Connection

_log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0
FIRST_RETRY_S = 1.0
GATHER_S = 0.01
"""The pause between two registrations, so that many new topics make few registrations."""
WATCH_S = 1.0
"""How soon a lost name server is tried again. Its routes are gone until the broker registers again."""


class NameServerLink:
    """One name server and the connection to it. A closed connection also tells it that the broker is gone."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.due = asyncio.Event()
        self.tried = asyncio.Event()
        self.is_registered = False
        self.is_late = False
        """A new topic gave up waiting for this name server; no other topic waits for it before an attempt
        ends."""
        self.attempted_version = -1
        """The counter of the topics' version in the last attempt."""
        self._attempted = asyncio.Event()
        self._connection: Connection | None = None

    @property
    def is_cut(self) -> bool:
        return self._connection is not None and self._connection.closed

    def attempt_ended(self, version: int) -> None:
        """Notes that an attempt has succeeded or failed."""
        self.attempted_version = version
        self.is_late = False
        self._attempted.set()
        self._attempted = asyncio.Event()
        self.tried.set()

    def end_waits(self) -> None:
        """Ends all waits: this name server gets no more registrations."""
        self.is_registered = False
        self._attempted.set()

    async def wait_attempted(self, version: int) -> None:
        while self.attempted_version < version and self.is_registered:
            await self._attempted.wait()

    async def call(self, command: Command, body: bytes, timeout_s: float) -> None:
        """Raises MetaqError if the name server does not accept, ValueError for a bad address."""
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(self.address, timeout_s)
        (await self._connection.call(command, body, timeout_s)).check()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Registration:
    """One task for each name server. They share nothing, so one that is down or slow delays no other."""

    def __init__(
        self,
        options: BrokerOptions,
        broker_id: int,
        topics: Topics,
        address: str,
        permission: Callable[[], int],
    ) -> None:
        self._options = options
        self.announce_timeout_s = options.announce_timeout_s
        self._broker_id = broker_id
        self._topics = topics
        self._address = address
        self._permission = permission
        self._links = [NameServerLink(nameserver) for nameserver in dict.fromkeys(options.nameservers)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def registered(self) -> set[str]:
        """The name servers that accepted the last registration."""
        return {link.address for link in self._links if link.is_registered}

    async def start(self) -> None:
        """Returns once every name server has been tried, or after `register_wait_s` if one does not
        answer."""
        self._tasks = [asyncio.create_task(self._keep_registered(link)) for link in self._links]
        waiters = [asyncio.create_task(link.tried.wait()) for link in self._links]
        if waiters:
            await asyncio.wait(waiters, timeout=self._options.register_wait_s)
        for waiter in waiters:
            waiter.cancel()

    async def announce(self) -> None:
        """Returns once the name servers know the changed topics, so that the caller finds them in the routes.
        Changes that come together go together."""
        version = self._topics.data_version.counter
        behind = [link for link in self._links if link.attempted_version < version]
        for link in behind:
            link.due.set()
        waiters = {
            asyncio.create_task(link.wait_attempted(version)): link
            for link in behind
            if link.is_registered and not link.is_late
        }
        if waiters:
            _, late = await asyncio.wait(waiters, timeout=self.announce_timeout_s)
            for waiter in late:
                waiters[waiter].is_late = True
                waiter.cancel()

    async def stop(self) -> None:
        """Removes this broker from the routes of all name servers that can be reached."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._leave(link) for link in self._links))

    async def _keep_registered(self, link: NameServerLink) -> None:
        interval_s = self._options.register_interval_clamped_s
        retry_s = FIRST_RETRY_S
        while True:
            link.due.clear()
            if await self._register(link):
                retry_s = FIRST_RETRY_S
                await self._pause(link, interval_s)
            else:
                await self._pause(link, min(retry_s, interval_s))
                retry_s = min(retry_s * 2, interval_s)

    async def _pause(self, link: NameServerLink, pause_s: float) -> None:
        """Waits until the next registration is due: after a change, after `pause_s`, or after a lost
        connection."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + pause_s
        await asyncio.sleep(GATHER_S)
        while not link.due.is_set() and (left_s := ends_at - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, WATCH_S)):
                    await link.due.wait()
            except TimeoutError:
                if link.is_registered and link.is_cut:
                    return

    async def _register(self, link: NameServerLink) -> bool:
        broker = self._options.broker
        command = RegisterBroker(
            broker_name=broker.name,
            broker_addr=self._address,
            cluster_name=broker.cluster,
            broker_id=self._broker_id,
            ha_server_addr=self._address,  # Apache's name servers require one, with or without replicas.
        )
        was_registered, is_first = link.is_registered, not link.tried.is_set()
        version = self._topics.data_version.counter
        try:
            await link.call(command, self._body(), self._options.register_timeout_s)
            link.is_registered = True
        except (MetaqError, ValueError) as error:
            link.is_registered = False
            if was_registered or is_first:
                _log.warning("not registered with name server %s, will try again: %s", link.address, error)
        else:
            if not was_registered:
                _log.info("registered with name server %s", link.address)
        link.attempt_ended(version)
        return link.is_registered

    def _body(self) -> bytes:
        """All served topics. Each loses the rights that the broker as a whole does not have."""
        table = self._topics.served()
        permission = self._permission()
        if permission & (READ | WRITE) != READ | WRITE:
            table.topic_config_table = {
                name: msgspec.structs.replace(config, perm=config.perm & permission)
                for name, config in table.topic_config_table.items()
            }
        return RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()

    async def _leave(self, link: NameServerLink) -> None:
        broker = self._options.broker
        command = UnregisterBroker(
            broker_name=broker.name,
            broker_addr=self._address,
            cluster_name=broker.cluster,
            broker_id=self._broker_id,
        )
        try:
            if link.is_registered:
                await link.call(command, b"", UNREGISTER_TIMEOUT_S)
        except (MetaqError, ValueError) as error:
            _log.warning("not unregistered from name server %s: %s", link.address, error)
        link.end_waits()
        await link.close()
