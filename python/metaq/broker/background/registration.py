"""Registers this broker and its topics with every name server.

At the start, at every interval and after every failure a name server gets all topics (103). In between it
gets only the topics that have changed, one by one (217). Name servers before 5.0 do not know that request;
they get the changed topics as a registration (103), as Apache's broker does it. Deleted topics are left out
of the next full registration.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import msgspec

from metaq.broker.options import BrokerOptions
from metaq.broker.state.topics import Topics
from metaq.errors import MetaqError
from metaq.protocol.bodies import (
    READ,
    WRITE,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.cluster import RegisterBroker, UnregisterBroker
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.routes import RegisterTopicInNameServer
from metaq.remoting import Connection

_log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0
FIRST_RETRY_S = 1.0
GATHER_S = 0.01
"""The pause between two registrations, so that many new topics make few registrations."""
PLAIN_BODY_BYTES_MAX = 12 * 1024 * 1024
"""A larger registration is compressed, because a frame has at most 16 MiB. The compressed form lacks the
flags of units, so it is used only then."""
TOPICS_AT_ONCE = 64
"""How many changed topics are under way to a name server together."""
UNKNOWN_REQUEST = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
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
        self.attempted = -1
        """The number of changes when the last attempt began."""
        self.changed: dict[str, None] = {}
        """The topics that have changed since the last attempt began."""
        self.is_all_due = False
        """Every topic has changed, because the rights of the broker have."""
        self.takes_topics = True
        """It has not refused the registration of a single topic as unknown."""
        self._attempted = asyncio.Event()
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    @property
    def is_cut(self) -> bool:
        return self._connection is not None and self._connection.closed

    def attempt_ended(self, changes: int) -> None:
        """Notes that an attempt has succeeded or failed."""
        self.attempted = changes
        self.is_late = False
        self._attempted.set()
        self._attempted = asyncio.Event()
        self.tried.set()

    def end_waits(self) -> None:
        """Ends all waits: this name server gets no more registrations."""
        self.is_registered = False
        self._attempted.set()

    async def wait_attempted(self, changes: int) -> None:
        while self.attempted < changes and self.is_registered:
            await self._attempted.wait()

    async def call(self, command: Command, body: bytes, timeout_s: float) -> None:
        """Raises MetaqError if the name server does not accept, ValueError for a bad address."""
        async with self._opening:
            if self._connection is None or self._connection.closed:
                self._connection = await Connection.open(self.address, timeout_s)
            connection = self._connection
        (await connection.call(command, body, timeout_s)).check()

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
        self._changes = 0
        """How many changes have been announced."""
        self._announced: dict[str, TopicConfig] = {}
        self._announced_permission = options.permission

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

    async def announce(self, topics: Collection[str]) -> None:
        """Returns once the name servers know the changed topics, so that the caller finds them in the routes.
        Changes that come together go together."""
        self._note_changes(topics)
        changes = self._changes
        behind = [link for link in self._links if link.attempted < changes]
        waiters = {
            asyncio.create_task(link.wait_attempted(changes)): link
            for link in behind
            if link.is_registered and not link.is_late
        }
        if waiters:
            _, late = await asyncio.wait(waiters, timeout=self.announce_timeout_s)
            for waiter in late:
                waiters[waiter].is_late = True
                waiter.cancel()

    def _note_changes(self, topics: Collection[str]) -> None:
        """A topic that was announced as it is counts only once. Some callers, such as each message that
        goes to the dead letters, announce their topic every time."""
        changed: dict[str, None] = {}
        for name in topics:
            config = self._topics.served_topic(name)
            if config is None:
                self._announced.pop(name, None)
            elif self._announced.get(name) is not config:
                self._announced[name] = config
                changed[name] = None
        permission = self._permission()
        is_all_due = permission != self._announced_permission
        self._announced_permission = permission
        if changed or is_all_due:
            self._changes += 1
            for link in self._links:
                link.changed.update(changed)
                link.is_all_due = link.is_all_due or is_all_due
                link.due.set()

    async def stop(self) -> None:
        """Removes this broker from the routes of all name servers that can be reached."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._leave(link) for link in self._links))

    async def _keep_registered(self, link: NameServerLink) -> None:
        interval_s = self._options.register_interval_clamped_s
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        all_due_at = loop.time()
        while True:
            link.due.clear()
            if link.is_registered and not link.is_cut and loop.time() < all_due_at and self._are_few(link):
                await self._attempt(link, self._register_changed(link))
            else:
                await self._attempt(link, self._register_all(link))
                all_due_at = loop.time() + interval_s
            if link.is_registered:
                retry_s = FIRST_RETRY_S
                await self._pause(link, all_due_at - loop.time())
            else:
                await self._pause(link, min(retry_s, interval_s))
                retry_s = min(retry_s * 2, interval_s)

    def _are_few(self, link: NameServerLink) -> bool:
        """Whether the changed topics cost less one by one than all of them together."""
        return not link.is_all_due and len(link.changed) <= max(TOPICS_AT_ONCE, len(self._topics) // 8)

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

    async def _attempt(self, link: NameServerLink, registration: Awaitable[None]) -> None:
        was_registered, is_first = link.is_registered, not link.tried.is_set()
        changes = self._changes
        try:
            await registration
            link.is_registered = True
        except (MetaqError, ValueError) as error:
            link.is_registered = False
            if was_registered or is_first:
                _log.warning("not registered with name server %s, will try again: %s", link.address, error)
        else:
            if not was_registered:
                _log.info("registered with name server %s", link.address)
        link.attempt_ended(changes)

    async def _register_all(self, link: NameServerLink) -> None:
        link.changed.clear()
        link.is_all_due = False
        link.takes_topics = True
        table = self._visible(self._topics.served())
        # In a thread, because it takes long with many topics.
        body, is_compressed = await asyncio.to_thread(_encode_all, table)
        await link.call(self._command(is_compressed), body, self._options.register_timeout_s)

    async def _register_changed(self, link: NameServerLink) -> None:
        served = (self._topics.served_topic(name) for name in link.changed)
        table = self._visible(
            TopicConfigTable(
                data_version=self._topics.data_version,
                topic_config_table={config.topic_name: config for config in served if config is not None},
            )
        )
        link.changed.clear()
        if link.takes_topics and not await self._register_each(link, [*table.topic_config_table.values()]):
            _log.info("name server %s does not know the registration of single topics", link.address)
            link.takes_topics = False
        if not link.takes_topics and table.topic_config_table:
            # A version of its own: a name server ignores topics that come with a version that it has.
            self._topics.version_changed()
            table.data_version = self._topics.data_version
            body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
            await link.call(self._command(), body, self._options.register_timeout_s)

    async def _register_each(self, link: NameServerLink, topics: Sequence[TopicConfig]) -> bool:
        """False if the name server does not know this request."""
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            calls = [
                link.call(
                    RegisterTopicInNameServer(topic=config.topic_name),
                    self._queues(config),
                    self._options.register_timeout_s,
                )
                for config in topics[start : start + TOPICS_AT_ONCE]
            ]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, MetaqError) and outcome.code == UNKNOWN_REQUEST:
                    return False
                if outcome is not None:
                    raise outcome
        return True

    def _queues(self, config: TopicConfig) -> bytes:
        queues = QueueData(
            broker_name=self._options.broker.name,
            perm=config.perm,
            read_queue_nums=config.read_queue_nums,
            topic_sys_flag=config.topic_sys_flag,
            write_queue_nums=config.write_queue_nums,
        )
        return TopicRouteData(queue_datas=[queues]).encode()

    def _command(self, is_compressed: bool = False) -> RegisterBroker:
        broker = self._options.broker
        return RegisterBroker(
            broker_name=broker.name,
            broker_addr=self._address,
            cluster_name=broker.cluster,
            broker_id=self._broker_id,
            ha_server_addr=self._address,  # Apache's name servers require one, with or without replicas.
            compressed=is_compressed,
        )

    def _visible(self, table: TopicConfigTable) -> TopicConfigTable:
        """The topics without the rights that the broker as a whole does not have."""
        permission = self._permission()
        if permission & (READ | WRITE) != READ | WRITE:
            table.topic_config_table = {
                name: msgspec.structs.replace(config, perm=config.perm & permission)
                for name, config in table.topic_config_table.items()
            }
        return table

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


def _encode_all(table: TopicConfigTable) -> tuple[bytes, bool]:
    """The body of a registration, and whether it is compressed."""
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
    if len(body) <= PLAIN_BODY_BYTES_MAX:
        return body, False
    return zlib.compress(b"".join(_compressed_parts(table)), level=1), True


def _compressed_parts(table: TopicConfigTable) -> Iterable[bytes]:
    """Apache's compact form: parts with their lengths before them. Name servers do not look at the
    attributes, which those before 5.0 could not even read."""
    yield _part(table.data_version.encode())
    yield len(table.topic_config_table).to_bytes(4)
    for config in table.topic_config_table.values():
        words = (
            config.topic_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_filter_type,
        )
        yield _part(" ".join(map(str, words)).encode())
    yield _part(b"[]")  # filter servers
    yield (0).to_bytes(4)  # topics that are spread over several brokers


def _part(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content
