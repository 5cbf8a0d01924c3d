"""Topics, on asyncio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec

from metaq.admin.calls import Calls
from metaq.admin.kinds import topic_kind, topics_of_brokers
from metaq.admin.limits import TOPIC, Rate, changed, limit_changes, limits_of, signed_changes
from metaq.admin.offsets import Offsets
from metaq.admin.positions import Position
from metaq.admin.purge_results import Purge, QueuePurge, Retention
from metaq.admin.results import (
    Limits,
    QueueState,
    RouteBroker,
    Topic,
    TopicFigures,
    TopicName,
    TopicOverview,
    TopicRoute,
    TopicSettings,
)
from metaq.admin.topic_figures import Advance, figures_of, of_names, overview
from metaq.client.session.routes import Queue
from metaq.digits import LONG_MAX, number_in
from metaq.errors import AlreadyExists, NoRoute, NotSupported, UsageError
from metaq.protocol import names
from metaq.protocol.attributes import RETENTION_BYTES, RETENTION_MS
from metaq.protocol.bodies import READ, WRITE, GroupList, TopicConfig, TopicList, TopicStatsTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.groups import QueryTopicConsumeByWho
from metaq.protocol.commands.purge import PurgeTopic, QueuePlaces
from metaq.protocol.commands.routes import (
    DeleteTopicInNameServer,
    GetAllTopicListFromNameServer,
    GetTopicsByCluster,
)
from metaq.protocol.commands.topics import (
    DeleteTopicInBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from metaq.retry import Retry, steady

VISIBLE_WITHIN_S: Final = 10.0
"""Each broker reports a new topic to the name servers a moment later."""


class Topics:
    """Creates, changes, lists, shows and deletes topics."""

    def __init__(self, calls: Calls, offsets: Offsets) -> None:
        self._calls = calls
        self._offsets = offsets

    async def create(
        self,
        topic: str,
        *,
        queues: int = 8,
        permission: int = READ | WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        change_existing: bool = False,
    ) -> tuple[TopicSettings, ...]:
        """Creates a topic on every broker of a cluster, or of all, and returns when clients can find it.

        Nothing happens on brokers that have it already. Raises AlreadyExists if a broker has it with other
        settings, unless `change_existing` is set.
        """
        _check_name(topic)
        wanted = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=permission,
            order=ordered,
            attributes=dict(attributes or {}),
        )
        brokers = await self._calls.masters(cluster)
        found = await self._calls.on_each(brokers, lambda broker: self._config(broker, topic))
        if not change_existing:
            for broker, config in found.items():
                _require_same(broker, wanted, config)

        async def put(broker: str) -> TopicSettings:
            return await self._put(broker, found[broker], wanted, wanted.attributes)

        settings = await self._calls.on_each(found, put)
        await self._wait_until_visible(topic, settings)
        return tuple(settings[broker] for broker in sorted(settings))

    async def change(
        self,
        topic: str,
        *,
        queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> tuple[TopicSettings, ...]:
        """Changes these settings on every broker that has the topic; None removes an attribute.

        Consumers no longer get the messages of removed queues. With `write_queues`, producers use only that
        number of queues, and consumers still read all of them. Raises NoRoute.
        """

        async def change_one(broker: str) -> TopicSettings:
            current = await self._required_config(broker, topic)
            wanted = msgspec.structs.replace(
                current,
                read_queue_nums=current.read_queue_nums if queues is None else queues,
                write_queue_nums=_first_given(write_queues, queues, current.write_queue_nums),
                perm=current.perm if permission is None else permission,
                order=current.order if ordered is None else ordered,
            )
            return await self._put(broker, current, wanted, attributes or {})

        settings = await self._calls.on_each(await self._masters_of(topic), change_one)
        return tuple(settings[broker] for broker in sorted(settings))

    async def list(self, *, cluster: str | None = None) -> tuple[TopicName, ...]:
        """Lists all topics, of one cluster or of all; `kind` separates users' topics from the system's."""
        command = GetAllTopicListFromNameServer() if cluster is None else GetTopicsByCluster(cluster=cluster)
        found = TopicList.decode((await self._calls.ask_nameserver(command)).body).topic_list
        of_brokers = topics_of_brokers(await self._calls.brokers())
        return tuple(TopicName(name, topic_kind(name, of_brokers)) for name in sorted(set(found)))

    async def figures(
        self,
        chosen: Callable[[TopicName], bool] | None = None,
        *,
        cluster: str | None = None,
        advance: Advance | None = None,
        one_by_one: bool = True,
    ) -> TopicOverview:
        """Returns what the chosen topics hold and how much they are used.

        A MetaQ broker answers for 1,000 topics at once. Others are asked for each chosen topic, and do not
        report everything: `missing` says so. Without `one_by_one`, those return only names and queues, with
        a bounded number of requests. `advance` is called with the number of topics that were read since the
        last call.
        """
        return await overview(
            self._calls, await self._calls.masters(cluster), chosen, advance, one_by_one=one_by_one
        )

    async def figures_by_name(self, brokers_of: Mapping[str, Collection[str]]) -> TopicOverview:
        """Returns the figures of single topics, each on the brokers that have it. The other topics of those
        brokers cost nothing. A topic that is gone is left out."""
        return await of_names(self._calls, brokers_of)

    async def figures_of(self, topic: str) -> TopicFigures:
        """Returns what one topic holds and how much it is used. Raises NoRoute."""
        return await figures_of(self._calls, await self._masters_of(topic), topic)

    async def show(self, topic: str) -> Topic:
        """Returns the settings of a topic on each broker, and its queues. Raises NoRoute."""

        async def one(broker: str) -> tuple[TopicSettings, tuple[QueueState, ...]]:
            settings = _settings(broker, await self._required_config(broker, topic))
            return settings, await self._queues(broker, topic)

        found, failures = await self._calls.from_each(await self._masters_of(topic), one)
        return Topic(
            topic,
            tuple(found[broker][0] for broker in sorted(found)),
            tuple(queue for broker in sorted(found) for queue in found[broker][1]),
            failures,
        )

    async def delete(self, topic: str) -> tuple[str, ...]:
        """Deletes a topic from every broker, with the offsets of its groups. Returns the brokers that had it.
        Raises NoRoute."""
        brokers = await self._masters_of(topic)

        async def delete_one(broker: str) -> None:
            await self._calls.change(broker, DeleteTopicInBroker(topic=topic))

        await self._calls.on_each(brokers, delete_one)
        await self._calls.tell_nameservers(DeleteTopicInNameServer(topic=topic))
        return tuple(brokers)

    async def route(self, topic: str) -> TopicRoute:
        """Returns the brokers and queues that clients use for a topic. Raises NoRoute."""
        route = await self._calls.route(topic)
        return TopicRoute(
            topic,
            tuple(
                RouteBroker(name, route.clusters.get(name, ""), dict(addresses))
                for name, addresses in sorted(route.brokers.items())
            ),
            tuple(route.readable),
            tuple(route.writable),
        )

    async def groups(self, topic: str) -> tuple[str, ...]:
        """Lists the groups that consume a topic or have committed offsets of it. Raises NoRoute."""

        async def one(broker: str) -> list[str]:
            reply = await self._calls.ask(broker, QueryTopicConsumeByWho(topic=topic))
            return GroupList.decode(reply.body).group_list

        found, _ = await self._calls.from_each(await self._masters_of(topic), one)
        return tuple(sorted({group for groups in found.values() for group in groups}))

    async def limits(self, topic: str) -> tuple[Limits, ...]:
        """Returns how much each broker lets producers send to a topic. Raises NoRoute."""
        return tuple(settings.limits for settings in (await self.show(topic)).settings)

    async def limit(
        self, topic: str, *, messages_per_second: Rate = None, bytes_per_second: Rate = None
    ) -> tuple[Limits, ...]:
        """Limits how much each broker lets producers send to a topic; `"none"` removes a limit. Raises
        NoRoute, and NotSupported for a broker that is not one of MetaQ's."""
        changes = limit_changes(TOPIC, messages_per_second, bytes_per_second)
        brokers = await self._masters_of(topic)
        if changes:
            await require_metaq(self._calls, brokers, "limit topics")
        return tuple(settings.limits for settings in await self.change(topic, attributes=changes))

    async def purge(self, topic: str, to: Position, *, dry_run: bool = False) -> Purge:
        """Takes away the messages before a position: nobody gets or counts them any more. Consumers that are
        behind go on there.

        Their disk space returns when the retention of the log deletes its files. A purge cannot be undone.
        With `dry_run` nothing is changed. Raises NoRoute, UsageError for an offset that a queue does not
        hold, and NotSupported for a broker that is not one of MetaQ's.
        """
        queues = (await self.show(topic)).queues
        targets = await self._offsets.at([state.queue for state in queues], to)
        plan = Purge(
            topic,
            tuple(
                QueuePurge(state.queue, state.first_offset, max(targets[state.queue], state.first_offset))
                for state in queues
            ),
            is_dry_run=True,
        )
        return plan if dry_run else await self.apply_purge(plan)

    async def apply_purge(self, plan: Purge) -> Purge:
        """Makes the changes of a plan. Raises the errors of `purge`."""
        by_broker: dict[str, dict[int, int]] = {}
        for queue in plan.queues:
            if queue.messages:
                by_broker.setdefault(queue.queue.broker, {})[queue.queue.id] = queue.start_offset
        await require_metaq(self._calls, sorted(by_broker), "purge topics")

        async def purge_one(broker: str) -> None:
            body = QueuePlaces(by_broker[broker]).encode()
            await self._calls.change(broker, PurgeTopic(topic=plan.topic), body)

        await self._calls.on_each(sorted(by_broker), purge_one)
        return replace(plan, is_dry_run=False)

    async def retentions(self, topic: str) -> tuple[Retention, ...]:
        """Returns the topic's own retention on each broker. Raises NoRoute."""
        return tuple(_retention(settings) for settings in (await self.show(topic)).settings)

    async def retain(
        self, topic: str, *, age_ms: int | Literal["none"] | None = None, size: Rate = None
    ) -> tuple[Retention, ...]:
        """Keeps the messages of a topic for a time, and up to a size on each broker; both within the
        retention of the log. `"none"` removes a limit. What is beyond them is no longer delivered or counted.
        Raises NoRoute, and NotSupported for a broker that is not one of MetaQ's."""
        changes: dict[str, str | None] = {}
        for attribute, value in ((RETENTION_MS, age_ms), (RETENTION_BYTES, size)):
            if value is not None:
                changes[attribute] = None if value == "none" else str(value)
        brokers = await self._masters_of(topic)
        if changes:
            await require_metaq(self._calls, brokers, "keep topics for a time of their own")
        return tuple(map(_retention, await self.change(topic, attributes=changes)))

    # Inside

    async def _masters_of(self, topic: str) -> Sequence[str]:
        route = await self._calls.route(topic)
        masters = sorted(name for name, addresses in route.brokers.items() if names.MASTER_ID in addresses)
        if not masters:
            raise NoRoute(f"no broker of topic {topic} has a master", hint="start its broker again")
        return masters

    async def _config(self, broker: str, topic: str) -> TopicConfig | None:
        missing = ResponseCode.TOPIC_NOT_EXIST
        reply = await self._calls.ask(broker, GetTopicConfig(topic=topic), accept=(missing,))
        return None if reply.code == missing else TopicConfig.decode(reply.body)

    async def _required_config(self, broker: str, topic: str) -> TopicConfig:
        config = await self._config(broker, topic)
        if config is None:
            raise NoRoute(f"topic {topic} does not exist on {broker}")
        return config

    async def _put(
        self,
        broker: str,
        current: TopicConfig | None,
        wanted: TopicConfig,
        attributes: Mapping[str, str | None],
    ) -> TopicSettings:
        before = {} if current is None else current.attributes
        signed = signed_changes(before, attributes)
        after = msgspec.structs.replace(wanted, attributes=changed(before, attributes))
        if after != current:
            command = UpdateAndCreateTopic(
                topic=wanted.topic_name,
                default_topic=names.TEMPLATE_TOPIC,
                read_queue_nums=wanted.read_queue_nums,
                write_queue_nums=wanted.write_queue_nums,
                perm=wanted.perm,
                topic_filter_type=wanted.topic_filter_type,
                topic_sys_flag=wanted.topic_sys_flag,
                order=wanted.order,
                attributes=",".join(f"{key}={value}" if value else key for key, value in signed.items()),
            )
            await self._calls.change(broker, command)
        return _settings(broker, after)

    async def _wait_until_visible(self, topic: str, brokers: Mapping[str, object]) -> None:
        tries = Retry(VISIBLE_WITHIN_S, steady(0.05))
        while True:
            try:
                missing = brokers.keys() - (await self._calls.route(topic)).brokers.keys()
            except NoRoute:
                missing = set(brokers)
            if not missing:
                return
            if not await tries.pause():
                raise NoRoute(
                    f"topic {topic} was created, but the name server does not list {', '.join(missing)} yet",
                    hint="do these brokers know this name server?",
                )

    async def _queues(self, broker: str, topic: str) -> tuple[QueueState, ...]:
        reply = await self._calls.ask(broker, GetTopicStatsInfo(topic=topic))
        table = TopicStatsTable.decode(reply.body).offset_table
        return tuple(
            QueueState(
                Queue(topic, broker, queue.queue_id),
                offsets.min_offset,
                offsets.max_offset,
                offsets.last_update_timestamp if offsets.last_update_timestamp > 0 else None,
            )
            for queue, offsets in sorted(table.items(), key=lambda item: item[0].queue_id)
        )


def _retention(settings: TopicSettings) -> Retention:
    def limit(attribute: str) -> int | None:
        return number_in(settings.attributes.get(attribute, ""), LONG_MAX) or None

    return Retention(settings.broker, limit(RETENTION_MS), limit(RETENTION_BYTES))


async def require_metaq(calls: Calls, brokers: Sequence[str], what: str) -> None:
    """Raises NotSupported, naming the first broker that is not one of MetaQ's."""
    found = await calls.on_each(brokers, calls.is_metaq)
    for broker, is_metaq in found.items():
        if not is_metaq:
            raise NotSupported(f"broker {broker} cannot {what}: it is not a MetaQ broker")


def _first_given(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _check_name(topic: str) -> None:
    fault = names.topic_fault(topic)
    if fault is not None:
        raise UsageError(fault)


def _settings(broker: str, config: TopicConfig) -> TopicSettings:
    return TopicSettings(
        broker,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.order,
        dict(config.attributes),
        limits_of(broker, TOPIC, config.attributes),
    )


def _require_same(broker: str, wanted: TopicConfig, found: TopicConfig | None) -> None:
    if found is None:
        return
    pairs = (
        ("queues", wanted.write_queue_nums, found.write_queue_nums),
        ("read queues", wanted.read_queue_nums, found.read_queue_nums),
        ("permission", wanted.perm, found.perm),
        ("ordered", wanted.order, found.order),
        ("attributes", wanted.attributes, {name: found.attributes.get(name) for name in wanted.attributes}),
    )
    for what, one, other in pairs:
        if one != other:
            raise AlreadyExists(
                f"topic {wanted.topic_name} exists on {broker} with {what} {other}, not {one}",
                hint="change it, or delete it first",
            )
