"""The state of one role. A master keeps and writes it; a replica follows the entries of its master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from metaq._core import BrokerPlane
from metaq.broker.node import Node
from metaq.broker.requests.spaced_work import in_turns
from metaq.broker.state import groups, locks, offsets, topics
from metaq.broker.state.delay_progress import DelayProgress
from metaq.broker.state.filters import Filters
from metaq.broker.state.groups import Groups
from metaq.broker.state.locks import QueueLocks
from metaq.broker.state.offsets import Offsets
from metaq.broker.state.policy import PolicyFeed, checked, compile_group, compile_topic
from metaq.broker.state.queue_starts import QueueStarts
from metaq.broker.state.stats import Statistics
from metaq.broker.state.topics import Topics
from metaq.broker.state.versions import VERSIONS
from metaq.journal.journal import UNREADABLE, Entry
from metaq.protocol.bodies import SubscriptionGroupConfig
from metaq.settings import GroupPolicy

_log = logging.getLogger(__name__)


class BrokerState:
    """Topics, groups, offsets and progress, and the policy that the data plane makes of them."""

    def __init__(
        self, node: Node, plane: BrokerPlane, announce: Callable[[Collection[str]], Awaitable[None]]
    ) -> None:
        """`announce` returns once the name servers know of changed topics."""
        options, clock, store, journal = node.options, node.clock, node.store, node.journal
        self._announce = announce
        self._node = node
        self.topics = Topics(
            options, clock, journal, self._topics_changed, lambda config: checked(compile_topic(config))
        )
        self.starts = QueueStarts(self.topics, store, node.wait_replicated)
        self.groups = Groups(
            *(options, clock, journal, self._groups_changed, self._convert_group, node.pools),
            replicated=node.wait_replicated,
        )
        self.locks = QueueLocks(
            clock,
            self.topics,
            journal,
            node.leases,
            int(options.queue_lease_s * 1000),
            node.wait_replicated,
            node.clients,
            options.locks,
            node.pools,
        )
        self.filters = Filters(
            options.enable_property_filter,
            node.functions.known,
            tags_max=options.broker.subscription_tags_max,
            pool=node.pools.compilation,
        )
        self.policy = PolicyFeed(
            plane,
            self.topics,
            self.groups,
            node.clients,
            self.filters,
            send_default=options.send_default,
            consume_default=options.consume_default,
        )
        self.statistics = Statistics(node.listener, store, clock, options.broker.cluster)
        self.offsets = Offsets(
            plane,
            store,
            clock,
            journal,
            self.groups,
            node.pools,
            watch=self.statistics.count_committed,
            protect_from_percent=lambda: node.options.store.disk_clean_percent,
        )
        self.delays = DelayProgress(plane, clock, journal, node.pools)

    def _convert_group(self, config: SubscriptionGroupConfig) -> GroupPolicy:
        return checked(compile_group(config, None))

    def load(self) -> None:
        """Reads the journal into this state and a plane that has not started. Raises MetadataDamaged."""
        self.topics.load()
        self.starts.load()
        self.groups.load()
        self.offsets.load()
        self.delays.load()
        self.locks.load()

    def follow(self, entries: Sequence[Entry]) -> None:
        """Takes over changes that a replica's master has made, and passes them on to the data plane.

        The progress of delays is not needed before this node becomes master; it is loaded then.
        """
        touched_topics: list[str] = []
        touched_groups: list[str] = []
        for entry in entries:
            try:
                self._follow(entry)
            except UNREADABLE as error:
                # The entries behind it count all the same.
                self._node.journal.leave_out(entry, error)
                continue
            if entry.table == topics.TABLE:
                touched_topics.append(entry.key)
            elif entry.table in (groups.TABLE, groups.FORBIDDEN):
                touched_groups.append(entry.key)
        self.policy.send_topics(touched_topics)
        self.policy.send_groups(touched_groups)

    def _follow(self, entry: Entry) -> None:
        if entry.table == topics.TABLE:
            self.topics.follow(entry.key, entry.value)
        elif entry.table == topics.STARTS:
            self.topics.follow_starts(entry.key, entry.value)
            self.starts.follow(entry.key)
        elif entry.table in (groups.TABLE, groups.FORBIDDEN):
            self.groups.follow(entry.table, entry.key, entry.value)
        elif entry.table == offsets.OFFSETS:
            self.offsets.follow(entry.key, entry.value)
        elif entry.table == locks.TABLE:
            self.locks.follow(entry.key, entry.value)
        elif entry.table == VERSIONS:
            self.topics.follow_version()

    async def publish(self) -> None:
        """Gives the plane its policy, writes what the load changed and tells the store what to keep."""
        await self._node.journal.drop_left_out()
        await asyncio.to_thread(self.starts.clamp)
        self.policy.send_all()
        await self.topics.publish(())
        await self.groups.publish(())
        await self.offsets.protect()
        # Messages count from now on, also those before the first regular sample.
        await asyncio.to_thread(self.sample)

    def sample(self) -> None:
        """Takes one sample for the statistics. Call it in a thread."""
        self.offsets.collect()
        self.statistics.sample()

    async def persist(self) -> None:
        """Writes everything, when the plane has stopped and nothing changes any more."""
        results = await asyncio.gather(
            self.offsets.persist(),
            self.delays.persist(),
            self.topics.publish(()),
            self.groups.publish(()),
            self.locks.keep(),
            return_exceptions=True,
        )
        for error in results:
            if isinstance(error, BaseException):
                _log.error("not everything was written at the stop: %s", error)

    async def _topics_changed(self, touched: Collection[str]) -> None:
        if touched:
            await self._node.wait_replicated()
        async for part in in_turns(touched):
            self.policy.send_topics(part)
        await self._announce(touched)

    def _groups_changed(self, touched: Collection[str]) -> None:
        self.policy.send_groups(touched)
