"""Consumer groups, on asyncio: settings, members, progress and resets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.group_figures import of_names, overview
from metaq.admin.groups.group_settings import config_pages, find_config, settings_of
from metaq.admin.groups.running_members import ask_members, conflicts_of
from metaq.admin.kinds import group_kind
from metaq.admin.limits import GROUP, Rate, changed, limit_changes, signed_changes
from metaq.admin.offsets import Offsets
from metaq.admin.positions import Position
from metaq.admin.results import (
    BrokerFailure,
    Group,
    GroupName,
    GroupOverview,
    Groups,
    GroupSettings,
    Limits,
    Member,
    Members,
    Progress,
    QueueProgress,
    QueueReset,
    Reset,
    RunningMembers,
    Subscription,
)
from metaq.admin.topic_figures import Advance
from metaq.admin.topics import require_metaq
from metaq.admin.versions import described_version, is_before, version_text
from metaq.client.session.routes import Queue
from metaq.errors import AlreadyExists, NoSuchGroup, NotSupported, UsageError
from metaq.protocol import names
from metaq.protocol.bodies import (
    BROADCASTING,
    ConsumerConnection,
    ConsumeStats,
    ConsumeTimeSpans,
    KVTable,
    SubscriptionGroupConfig,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo
from metaq.protocol.commands.clients import GetConsumerConnectionList
from metaq.protocol.commands.groups import DeleteSubscriptionGroup, UpdateAndCreateSubscriptionGroup
from metaq.protocol.commands.offsets import GetConsumeStats, QueryConsumeTimeSpan, ResetConsumerOffset

SERVER_SIDE_RESET_MAJOR: Final = 5
"""Brokers from 5.0 on reset single queues, and groups that do not run."""


class ConsumerGroups:
    """Creates, changes, lists, shows, resets and deletes consumer groups."""

    def __init__(self, calls: Calls, offsets: Offsets) -> None:
        self._calls = calls
        self._offsets = offsets

    # Settings

    async def create(
        self,
        group: str,
        *,
        retries_max: int = 16,
        retry_queues: int = 1,
        enabled: bool = True,
        broadcast_allowed: bool = True,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> tuple[GroupSettings, ...]:
        """Creates a group on every broker of a cluster, or of all. Nothing happens on brokers that have it
        already. Raises AlreadyExists if a broker has it with other settings."""
        _check_name(group)
        wanted = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=retries_max,
            retry_queue_nums=retry_queues,
            consume_enable=enabled,
            consume_broadcast_enable=broadcast_allowed,
            consume_message_orderly=ordered,
        )
        brokers = await self._calls.masters(cluster)
        found = await self._calls.on_each(brokers, lambda broker: find_config(self._calls, broker, group))
        for broker, config in found.items():
            _require_same(broker, wanted, attributes or {}, config)

        async def put(broker: str) -> GroupSettings:
            return await self._put(broker, found[broker], wanted, attributes or {})

        settings = await self._calls.on_each(found, put)
        return tuple(settings[broker] for broker in sorted(settings))

    async def change(
        self,
        group: str,
        *,
        retries_max: int | None = None,
        retry_queues: int | None = None,
        enabled: bool | None = None,
        broadcast_allowed: bool | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> tuple[GroupSettings, ...]:
        """Changes these settings on every broker that has the group; None removes an attribute. Raises
        NoSuchGroup."""
        fields = {
            "retry_max_times": retries_max,
            "retry_queue_nums": retry_queues,
            "consume_enable": enabled,
            "consume_broadcast_enable": broadcast_allowed,
            "consume_message_orderly": ordered,
        }
        wanted = {name: value for name, value in fields.items() if value is not None}
        found, _ = await self._configs(group, partial=False)

        async def put(broker: str) -> GroupSettings:
            current = found[broker]
            after = msgspec.structs.replace(current, **wanted)
            return await self._put(broker, current, after, attributes or {})

        settings = await self._calls.on_each(found, put)
        return tuple(settings[broker] for broker in sorted(settings))

    async def list(self, *, cluster: str | None = None) -> Groups:
        """Lists all groups, of one cluster or of all; `kind` separates users' groups from the system's."""

        async def one(broker: str) -> set[str]:
            return {name async for page in config_pages(self._calls, broker) for name in page}

        found, failures = await self._calls.from_each(await self._calls.masters(cluster), one)
        groups = sorted({name for of_broker in found.values() for name in of_broker})
        return Groups(
            tuple(
                GroupName(
                    name, group_kind(name), tuple(broker for broker in sorted(found) if name in found[broker])
                )
                for name in groups
            ),
            failures,
        )

    async def figures(
        self,
        chosen: Callable[[GroupName], bool] | None = None,
        *,
        cluster: str | None = None,
        advance: Advance | None = None,
        one_by_one: bool = True,
    ) -> GroupOverview:
        """Returns how far the chosen groups are behind, and how many clients they have.

        A MetaQ broker answers for 1,000 groups at once. Others need some requests for each chosen group.
        Without `one_by_one`, those return only names and lags in messages: `missing` says so. `advance` is
        called with the number of groups that were read since the last call.
        """
        return await overview(
            self._calls, await self._calls.masters(cluster), chosen, advance, one_by_one=one_by_one
        )

    async def figures_by_name(self, brokers_of: Mapping[str, Collection[str]]) -> GroupOverview:
        """Returns the figures of single groups, each on the brokers that have it. The other groups of those
        brokers cost nothing. A group that is gone is left out."""
        return await of_names(self._calls, brokers_of)

    async def show(self, group: str) -> Group:
        """Returns the settings, members and progress of a group. Raises NoSuchGroup."""
        found, failures = await self._configs(group)
        settings = tuple(settings_of(broker, found[broker]) for broker in sorted(found))
        return Group(group, settings, await self.members(group), await self.progress(group), failures)

    async def settings(self, group: str) -> tuple[GroupSettings, ...]:
        """Returns the settings of a group on each broker that has it and answers. Raises NoSuchGroup."""
        found, _ = await self._configs(group)
        return tuple(settings_of(broker, found[broker]) for broker in sorted(found))

    async def delete(self, group: str, *, keep_offsets: bool = False) -> tuple[str, ...]:
        """Deletes a group, with its offsets unless they are to be kept. Returns the brokers that had it.
        Raises NoSuchGroup."""
        found, _ = await self._configs(group, partial=False)
        removes = not keep_offsets
        command = DeleteSubscriptionGroup(group_name=group, clean_offset=removes, remove_offset=removes)

        async def delete_one(broker: str) -> None:
            await self._calls.change(broker, command)

        await self._calls.on_each(found, delete_one)
        return tuple(sorted(found))

    async def limits(self, group: str) -> tuple[Limits, ...]:
        """Returns how much each broker gives to all consumers of a group together. Raises NoSuchGroup."""
        found, _ = await self._configs(group)
        return tuple(settings_of(broker, found[broker]).limits for broker in sorted(found))

    async def limit(
        self, group: str, *, messages_per_second: Rate = None, bytes_per_second: Rate = None
    ) -> tuple[Limits, ...]:
        """Limits how much each broker gives to all consumers of a group together; `"none"` removes a limit.
        Raises NoSuchGroup, and NotSupported for a broker that is not one of MetaQ's."""
        changes = limit_changes(GROUP, messages_per_second, bytes_per_second)
        if changes:
            await require_metaq(self._calls, await self._calls.masters(), "limit groups")
        return tuple(settings.limits for settings in await self.change(group, attributes=changes))

    # Members

    async def members(self, group: str) -> Members:
        """Returns the clients of a group that are connected now; none is not an error."""
        offline = ResponseCode.CONSUMER_NOT_ONLINE

        async def one(broker: str) -> ConsumerConnection:
            command = GetConsumerConnectionList(consumer_group=group)
            reply = await self._calls.ask(broker, command, accept=(offline,))
            return ConsumerConnection() if reply.code == offline else ConsumerConnection.decode(reply.body)

        found, failures = await self._calls.from_each(await self._calls.masters(), one)
        brokers: dict[str, list[str]] = {}
        clients: dict[str, Member] = {}
        subscriptions: dict[str, Subscription] = {}
        for broker in sorted(found):
            for client in found[broker].connection_set:
                brokers.setdefault(client.client_id, []).append(broker)
                clients[client.client_id] = Member(
                    client.client_id,
                    client.client_addr,
                    client.language,
                    client.client_version or version_text(client.version),
                    tuple(brokers[client.client_id]),
                )
            for topic, wanted in found[broker].subscription_table.items():
                subscriptions[topic] = Subscription(topic, wanted.sub_string, wanted.expression_type)
        return Members(
            group,
            tuple(clients[client_id] for client_id in sorted(clients)),
            tuple(subscriptions[topic] for topic in sorted(subscriptions)),
            any(connection.message_model == BROADCASTING for connection in found.values()),
            failures,
        )

    async def running(
        self, group: str, *, stacks: bool = False, client_ids: Collection[str] | None = None
    ) -> RunningMembers:
        """Asks the clients of a group which queues they consume and what they subscribe to; with `stacks`
        also what their threads do. With `client_ids` only these are asked, if they are connected. A client
        that does not answer has an `error`."""
        members = (await self.members(group)).members
        if client_ids is not None:
            members = tuple(member for member in members if member.client_id in client_ids)
        found = await ask_members(self._calls, group, members, stacks=stacks)
        return RunningMembers(group, found, conflicts_of(found))

    # Progress

    async def progress(
        self, group: str, topic: str | None = None, *, times_of: Collection[str] | None = None
    ) -> Progress:
        """Returns how far a group is in each queue, of one topic or of all, in messages and in time. A group
        that has not committed anything has no queues. Each topic costs a request per broker for the times;
        with `times_of` only the times of these topics are asked for."""

        async def one(broker: str) -> list[QueueProgress]:
            reply = await self._calls.ask(broker, GetConsumeStats(consumer_group=group, topic=topic))
            table = ConsumeStats.decode(reply.body).offset_table
            topics = sorted({queue.topic for queue in table if times_of is None or queue.topic in times_of})
            delays = await in_parallel(topics, lambda name: self._delays(broker, group, name), at_once=4)
            return [
                QueueProgress(
                    Queue(queue.topic, broker, queue.queue_id),
                    found.consumer_offset,
                    found.broker_offset,
                    delays.get(queue.topic, {}).get(queue.queue_id),
                )
                for queue, found in table.items()
            ]

        found, failures = await self._calls.from_each(await self._calls.masters(), one)
        queues = (queue for of_broker in found.values() for queue in of_broker)
        return Progress(group, tuple(sorted(queues, key=lambda progress: progress.queue)), failures)

    async def _delays(self, broker: str, group: str, topic: str) -> dict[int, int]:
        """Milliseconds by queue id."""
        codes = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        reply = await self._calls.ask(broker, QueryConsumeTimeSpan(topic=topic, group=group), accept=codes)
        if reply.code in codes:
            return {}
        spans = ConsumeTimeSpans.decode(reply.body).consume_time_span_set
        return {span.message_queue.queue_id: max(span.delay_time, 0) for span in spans}

    # Resets

    async def reset(
        self,
        group: str,
        topic: str,
        to: Position,
        *,
        queues: Iterable[Queue] | None = None,
        dry_run: bool = False,
    ) -> Reset:
        """Moves a group to a position in a topic: in all its queues, or in those that are given.

        It works for groups that run and for groups that do not. With `dry_run` nothing is changed. Raises
        NoRoute, NoSuchGroup, UsageError for an offset that a queue does not hold, and NotSupported for
        brokers before 5.0.
        """
        readable = (await self._calls.route(topic)).readable
        wanted = readable if queues is None else sorted(set(queues))
        unknown = [queue for queue in wanted if queue not in readable]
        if unknown:
            raise UsageError(f"topic {topic} has no queue {unknown[0].id} on {unknown[0].broker}")
        await self._configs(group, partial=False)
        targets = await self._offsets.at(wanted, to)
        committed = await self._offsets.committed(group, wanted)
        changes = tuple(QueueReset(queue, committed[queue], targets[queue]) for queue in wanted)
        plan = Reset(group, topic, changes, is_dry_run=True)
        return plan if dry_run else await self.apply(plan)

    async def clone(self, source: str, target: str, topic: str, *, dry_run: bool = False) -> Reset:
        """Moves a group to where another one is in a topic. If the target does not exist, it is created with
        the settings of the source.

        Queues in which the source has committed nothing stay as they are. A place that the queue no longer
        holds becomes the first one that it holds. With `dry_run` nothing is changed. Raises NoRoute and
        NoSuchGroup.
        """
        readable = (await self._calls.route(topic)).readable
        await self._configs(source, partial=False)
        places = await self._offsets.committed(source, readable)
        wanted = [queue for queue in readable if places[queue] is not None]
        bounds = await self._offsets.bounds(wanted)
        before = await self._offsets.committed(target, wanted)
        changes = tuple(
            QueueReset(queue, before[queue], min(max(places[queue] or 0, held.first), held.end))
            for queue, held in bounds.items()
        )
        plan = Reset(target, topic, changes, is_dry_run=True)
        if dry_run:
            return plan
        await self.create_like(source, target)
        return await self.apply(plan)

    async def create_like(self, source: str, group: str) -> None:
        """Creates a group with the settings of another one, on the brokers that have that one. Nothing
        happens on brokers that have the group already. Raises NoSuchGroup."""
        _check_name(group)
        settings, _ = await self._configs(source, partial=False)

        async def create(broker: str) -> None:
            if await find_config(self._calls, broker, group) is None:
                wanted = msgspec.structs.replace(settings[broker], group_name=group, attributes={})
                await self._put(broker, None, wanted, settings[broker].attributes)

        await self._calls.on_each(settings, create)

    async def apply(self, plan: Reset) -> Reset:
        """Moves a group exactly as a dry run has planned it. Raises Refused if a queue no longer holds the
        planned offset."""
        by_broker: dict[str, list[QueueReset]] = {}
        for change in plan.queues:
            by_broker.setdefault(change.queue.broker, []).append(change)
        await self._calls.on_each(by_broker, self._require_resets)

        async def reset_one(broker: str) -> None:
            # One after the other: Apache's broker may lose one of two first offsets that come together.
            for change in by_broker[broker]:
                command = ResetConsumerOffset(
                    topic=plan.topic,
                    group=plan.group,
                    timestamp=-1,
                    is_force=True,
                    queue_id=change.queue.id,
                    queue_offset=change.queue_offset,
                )
                await self._calls.change(broker, command)

        await self._calls.on_each(by_broker, reset_one)
        return replace(plan, is_dry_run=False)

    async def _require_resets(self, broker: str) -> None:
        """Older brokers do not know the fields that name a queue, and would reset all queues to the end."""
        figures = KVTable.decode((await self._calls.ask(broker, GetBrokerRuntimeInfo())).body).table
        version = described_version(figures.get("brokerVersionDesc", ""))
        if version is None or is_before(version, SERVER_SIDE_RESET_MAJOR):
            raise NotSupported(
                f"broker {broker} has version {version or 'unknown'} and cannot reset single queues",
                hint="brokers from 5.0 on can",
            )

    # Inside

    async def _configs(
        self, group: str, *, partial: bool = True
    ) -> tuple[dict[str, SubscriptionGroupConfig], tuple[BrokerFailure, ...]]:
        """Settings by broker. Raises NoSuchGroup if no broker has the group."""
        brokers = await self._calls.masters()
        failures: tuple[BrokerFailure, ...] = ()
        if partial:
            found, failures = await self._calls.from_each(
                brokers, lambda broker: find_config(self._calls, broker, group)
            )
        else:
            found = await self._calls.on_each(brokers, lambda broker: find_config(self._calls, broker, group))
        configs = {broker: config for broker, config in found.items() if config is not None}
        if not configs:
            raise NoSuchGroup(f"group {group} does not exist", hint="start its consumers, or create it")
        return configs, failures

    async def _put(
        self,
        broker: str,
        current: SubscriptionGroupConfig | None,
        wanted: SubscriptionGroupConfig,
        attributes: Mapping[str, str | None],
    ) -> GroupSettings:
        before = {} if current is None else current.attributes
        after = msgspec.structs.replace(wanted, attributes=changed(before, attributes))
        if after != current:
            body = msgspec.structs.replace(wanted, attributes=signed_changes(before, attributes)).encode()
            await self._calls.change(broker, UpdateAndCreateSubscriptionGroup(), body)
        return settings_of(broker, after)


def _check_name(group: str) -> None:
    fault = names.group_fault(group)
    if fault is not None:
        raise UsageError(fault)


def _require_same(
    broker: str,
    wanted: SubscriptionGroupConfig,
    attributes: Mapping[str, str],
    found: SubscriptionGroupConfig | None,
) -> None:
    if found is None:
        return
    pairs = (
        ("retries_max", wanted.retry_max_times, found.retry_max_times),
        ("retry_queues", wanted.retry_queue_nums, found.retry_queue_nums),
        ("enabled", wanted.consume_enable, found.consume_enable),
        ("broadcast_allowed", wanted.consume_broadcast_enable, found.consume_broadcast_enable),
        ("ordered", wanted.consume_message_orderly, found.consume_message_orderly),
        ("attributes", dict(attributes), {name: found.attributes.get(name) for name in attributes}),
    )
    for what, one, other in pairs:
        if one != other:
            raise AlreadyExists(
                f"group {wanted.group_name} exists on {broker} with {what} {other}, not {one}",
                hint="change it, or delete it first",
            )
