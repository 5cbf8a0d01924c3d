"""Telling every name server that this broker is here and which topics it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from metaq.broker.options import READ, WRITE, BrokerOptions
from metaq.broker.state.topics import Topics
from metaq.errors import MetaqError
from metaq.protocol.bodies import RegisterBrokerBody
from metaq.protocol.cluster import RegisterBroker, UnregisterBroker
from metaq.protocol.command import Command
from metaq.remoting import Connection

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 1.0
FIRST_RETRY_S = 1.0
GATHER_S = 0.01
"""Between two registrations, so that many new topics make few of them."""
ANNOUNCE_TIMEOUT_S = 1.0
"""How long a new topic waits for name servers that were well so far; a hanging one delays the first by no
more, and those after it not at all."""
WATCH_S = 1.0
"""How soon a name server that went away is tried again: its routes are gone until it knows us anew."""


class NameServerLink:
    """One name server and the connection to it. A closed connection also tells it that the broker is gone."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.due = asyncio.Event()
        self.tried = asyncio.Event()
        self.is_registered = False
        self.is_late = False
        """A new topic was not waited for to the end; the next one is not before an attempt has ended."""
        self.told_version = -1
        """Counter of the topics' version that the last attempt was about."""
        self._told = asyncio.Event()
        self._connection: Connection | None = None

    @property
    def is_cut(self) -> bool:
        return self._connection is not None and self._connection.closed

    def told(self, version: int) -> None:
        """An attempt has ended, well or badly."""
        self.told_version = version
        self.is_late = False
        self._told.set()
        self._told = asyncio.Event()
        self.tried.set()

    def left(self) -> None:
        """Nobody will be told any more, so nobody waits for that."""
        self.is_registered = False
        self._told.set()

    async def wait_told(self, version: int) -> None:
        while self.told_version < version and self.is_registered:
            await self._told.wait()

    async def call(self, command: Command, body: bytes, timeout_s: float) -> None:
        """Raises MetaqError or ValueError (an address that is none) where the answer is not a yes."""
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(self.address, timeout_s)
        (await self._connection.call(command, body, timeout_s)).check()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Registration:
    """One task per name server: they share nothing, so one that is down or slow delays no other."""

    def __init__(
        self,
        options: BrokerOptions,
        broker_id: int,
        topics: Topics,
        address: str,
        permission: Callable[[], int],
    ) -> None:
        self._options = options
        self._broker_id = broker_id
        self._topics = topics
        self._address = address
        self._permission = permission
        self._links = [NameServerLink(nameserver) for nameserver in dict.fromkeys(options.nameservers)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def registered(self) -> set[str]:
        """Name servers whose last answer was a yes."""
        return {link.address for link in self._links if link.is_registered}

    async def start(self, wait_s: float) -> None:
        """Returns once every name server has been tried, or after `wait_s` where one does not answer."""
        self._tasks = [asyncio.create_task(self._keep_registered(link)) for link in self._links]
        waiters = [asyncio.create_task(link.tried.wait()) for link in self._links]
        if waiters:
            await asyncio.wait(waiters, timeout=wait_s)
        for waiter in waiters:
            waiter.cancel()

    async def announce(self) -> None:
        """The topics have changed: returns once the name servers know, so that whoever made the change finds
        it in the routes. Changes that come together go together."""
        version = self._topics.data_version.counter
        behind = [link for link in self._links if link.told_version < version]
        for link in behind:
            link.due.set()
        waiters = {
            asyncio.create_task(link.wait_told(version)): link
            for link in behind
            if link.is_registered and not link.is_late
        }
        if waiters:
            _, late = await asyncio.wait(waiters, timeout=ANNOUNCE_TIMEOUT_S)
            for waiter in late:
                waiters[waiter].is_late = True
                waiter.cancel()

    async def stop(self) -> None:
        """Takes this broker out of every route, as far as the name servers can be reached."""
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
        """Until the next registration is due: for a change, for the time that has passed, for a lost line."""
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
            ha_server_addr=self._address,  # Upstream's name servers insist on one, replicas or not.
        )
        was_registered, is_first = link.is_registered, not link.tried.is_set()
        version = self._topics.data_version.counter
        try:
            await link.call(command, self._body(), ANSWER_TIMEOUT_S)
            link.is_registered = True
        except (MetaqError, ValueError) as error:
            link.is_registered = False
            if was_registered or is_first:
                _log.warning("not registered with name server %s, will try again: %s", link.address, error)
        else:
            if not was_registered:
                _log.info("registered with name server %s", link.address)
        link.told(version)
        return link.is_registered

    def _body(self) -> bytes:
        """All topics that are served, with what the broker as a whole does not allow taken from each."""
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
        link.left()
        await link.close()
