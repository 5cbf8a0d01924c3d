"""Registers this broker and its topics with every name server.

At the start, at every interval and after every failure a name server gets all topics (103). In between it
gets only the topics that have changed, one by one (217). Name servers before 5.0 do not know that request;
they get the changed topics as a registration (103), as Apache's broker does it. A deleted topic is announced
without queues, for which our name servers forget it, and left out of the next full registration.

A node of a replicated group asks every second whether the name server still knows it (322), so that a node
that hangs or is cut off leaves the routes after ten seconds. Name servers take the topics of a group from its
master, so replicas announce no changes. A node that changes its role hands its connections over: the new role
is registered under the same address, and the group is never missing in the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from metaq.broker.background.name_server_link import NameServerLink
from metaq.broker.background.registration_body import encode_all
from metaq.broker.background.registration_key import registration_key
from metaq.broker.options import BrokerOptions
from metaq.broker.state.topics import Topics
from metaq.errors import MetaqError
from metaq.protocol.bodies import (
    READ,
    WRITE,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.cluster import QueryDataVersion, RegisterBroker, UnregisterBroker
from metaq.protocol.commands.routes import RegisterTopicInNameServer
from metaq.protocol.names import MASTER_ID

_log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 1.0
FIRST_RETRY_S = 1.0
GATHER_S = 0.01
"""The pause between two registrations, so that many new topics make few registrations."""
TOPICS_AT_ONCE = 64
"""How many changed topics are under way to a name server together."""
UNKNOWN_REQUEST = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
WATCH_S = 1.0
"""How soon a name server that cannot be reached is tried again, because its routes are gone until the broker
registers again; and how often a node of a replicated group asks whether it is still known."""
HAND_OVER_S = 0.5
"""How long a change of the role waits for a registration under way: a name server that handles it after the
next one would show the former role."""
SILENCE_MS_MAX = 10_000
"""After this silence, name servers remove a node of a replicated group."""


class Registration:
    """The registration of one role. It has one task for each name server. They share nothing, so one that is
    down or slow delays no other."""

    def __init__(
        self,
        options: BrokerOptions,
        broker_id: int,
        topics: Topics,
        address: str,
        permission: Callable[[], int],
        *,
        state_version: Callable[[], int] | None = None,
        replication_address: str | None = None,
        acts_as_master: bool = False,
        links: Sequence[NameServerLink] | None = None,
    ) -> None:
        """`broker_id` is 0 for a master and the node id for a replica.

        `state_version` returns the epoch: a name server refuses a master with a lower one than it knows. A
        node of a replicated group gives its `replication_address`. `acts_as_master` lets name servers show
        the replica with the lowest id as a master that cannot be written to while the group has no master.
        `links` are what the former role of this node returned from `hand_over`.
        """
        self._options = options
        self.announce_timeout_s = options.announce_timeout_s
        self._broker_id = broker_id
        self._topics = topics
        self._address = address
        self._permission = permission
        self._state_version = state_version
        self._replication_address = replication_address
        self._acts_as_master = acts_as_master
        given = {link.address: link for link in links or ()}
        self._links = [
            given.get(nameserver) or NameServerLink(nameserver)
            for nameserver in dict.fromkeys(options.nameservers)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._key: str | None = None
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
        if self._links:
            self._key = await asyncio.to_thread(registration_key, self._options)
        self._tasks = [asyncio.create_task(self._keep_registered(link)) for link in self._links]
        waiters = [asyncio.create_task(link.tried.wait()) for link in self._links]
        if waiters:
            await asyncio.wait(waiters, timeout=self._options.register_wait_s)
        for waiter in waiters:
            waiter.cancel()

    async def announce(self, topics: Collection[str]) -> None:
        """Returns once the name servers know the changed topics, so that the caller finds them in the routes.
        Changes that come together go together. A replica announces nothing."""
        if self._broker_id != MASTER_ID:
            return
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
                changed[name] = None
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
        """Removes this broker from the routes of all name servers that can be reached. Does nothing after
        `hand_over`."""
        await self._end_tasks()
        await asyncio.gather(*(self._leave(link) for link in self._links))

    async def hand_over(self) -> list[NameServerLink]:
        """Ends this registration without leaving the routes, and returns the `links` for the next role."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                for link in self._links:
                    await link.attempting.acquire()
        await self._end_tasks()
        links, self._links = self._links, []
        successors = [link.successor() for link in links]
        for link in links:
            link.end_waits()
        return successors

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_registered(self, link: NameServerLink) -> None:
        interval_s = self._options.register_interval_clamped_s
        loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        all_due_at = loop.time()
        while True:
            link.due.clear()
            has_all = link.is_registered and not link.is_cut and loop.time() < all_due_at
            async with link.attempting:
                if has_all and self._are_few(link):
                    await self._attempt(link, self._register_changed(link))
                else:
                    await self._attempt(link, self._register_all(link))
                    all_due_at = loop.time() + interval_s
            if link.is_registered:
                retry_s = FIRST_RETRY_S
                await self._pause(link, all_due_at - loop.time())
            elif link.is_away:
                # Strangers must not be first when it is back, and one attempt to connect costs nothing.
                retry_s = FIRST_RETRY_S
                await self._pause(link, WATCH_S)
            else:
                await self._pause(link, min(retry_s, interval_s))
                retry_s = min(retry_s * 2, interval_s)

    def _are_few(self, link: NameServerLink) -> bool:
        """Whether the changed topics cost less one by one than all of them together."""
        return not link.is_all_due and len(link.changed) <= max(TOPICS_AT_ONCE, len(self._topics) // 8)

    async def _pause(self, link: NameServerLink, pause_s: float) -> None:
        """Waits until the next registration is due: after a change, after `pause_s`, after a lost connection,
        or once the name server has forgotten this node."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + pause_s
        await asyncio.sleep(GATHER_S)
        while not link.due.is_set() and (left_s := ends_at - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, WATCH_S)):
                    await link.due.wait()
            except TimeoutError:
                if link.is_registered and (link.is_cut or not await self._is_known(link)):
                    return

    async def _is_known(self, link: NameServerLink) -> bool:
        """Asks whether the name server still has this node; only nodes of a replicated group ask."""
        if self._replication_address is None or not link.takes_beats:
            return True
        broker = self._options.broker
        command = QueryDataVersion(
            broker_name=broker.name,
            broker_addr=self._address,
            cluster_name=broker.cluster,
            broker_id=self._broker_id,
        )
        try:
            version = self._versioned(self._topics.data_version).encode()
            reply = await link.call(command, version, self._options.register_timeout_s)
        except (MetaqError, ValueError) as error:
            link.takes_beats = getattr(error, "code", None) != UNKNOWN_REQUEST
            return True  # If the connection is lost, the next look finds that.
        link.is_all_due = link.is_all_due or not reply.body
        return bool(reply.body)

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
        await link.open(self._options.register_timeout_s)
        gone = self._gone(link)
        link.changed.clear()
        link.is_all_due = False
        link.takes_topics = True
        table = self._visible(self._topics.served())
        table.data_version = self._versioned(table.data_version)
        # In a thread, because it takes long with many topics.
        body, is_compressed = await asyncio.to_thread(encode_all, table)
        try:
            await link.call(self._command(is_compressed), body, self._options.register_timeout_s)
            if gone and self._broker_id == MASTER_ID:
                link.takes_topics = await self._register_each(link, gone)
        except MetaqError:
            link.changed.update((config.topic_name, None) for config in gone)
            raise

    async def _register_changed(self, link: NameServerLink) -> None:
        served = (self._topics.served_topic(name) for name in link.changed)
        table = self._visible(
            TopicConfigTable(
                data_version=self._topics.data_version,
                topic_config_table={config.topic_name: config for config in served if config is not None},
            )
        )
        each = [*table.topic_config_table.values(), *self._gone(link)]
        link.changed.clear()
        if link.takes_topics and not await self._register_each(link, each):
            _log.info("name server %s does not know the registration of single topics", link.address)
            link.takes_topics = False
        if not link.takes_topics and table.topic_config_table:
            # A version of its own: a name server ignores topics that come with a version that it has.
            self._topics.version_changed()
            table.data_version = self._versioned(self._topics.data_version)
            body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
            await link.call(self._command(), body, self._options.register_timeout_s)

    def _gone(self, link: NameServerLink) -> list[TopicConfig]:
        """The deleted topics that a name server has to forget, as topics without queues and permissions."""
        return [
            TopicConfig(topic_name=name, perm=0, read_queue_nums=0, write_queue_nums=0)
            for name in link.changed
            if self._topics.served_topic(name) is None
        ]

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
                if isinstance(outcome, BaseException):
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
            # Apache's name servers require one, with or without replicas.
            ha_server_addr=self._replication_address or self._address,
            heartbeat_timeout_millis=None if self._replication_address is None else SILENCE_MS_MAX,
            enable_acting_master=self._acts_as_master,
            compressed=is_compressed,
            registration_key=self._key,
        )

    def _versioned(self, version: DataVersion) -> DataVersion:
        if self._state_version is None:
            return version
        return msgspec.structs.replace(version, state_version=self._state_version())

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
