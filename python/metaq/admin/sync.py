"""The administration client for plain code: the same names and signatures, and calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from metaq.admin import aio, offsets, topics
from metaq.admin.brokers import servers
from metaq.admin.groups import consumer_groups
from metaq.admin.health import checks
from metaq.admin.limits import Rate
from metaq.admin.messages import dead_letters, stored_messages
from metaq.admin.messages.dead_letters import RATE
from metaq.admin.messages.queue_reading import OnWait
from metaq.admin.messages.stored_messages import LIMIT
from metaq.admin.positions import Position
from metaq.admin.results import (
    Bounds,
    BrokerConfiguration,
    BrokerFigures,
    Cluster,
    ConnectedClients,
    DeadLetter,
    DeadLetterCount,
    Group,
    GroupName,
    GroupOverview,
    Groups,
    GroupSettings,
    Health,
    Limits,
    Members,
    MessageCopy,
    Progress,
    QueuePart,
    ResendOutcome,
    Reset,
    RunningMembers,
    Topic,
    TopicFigures,
    TopicName,
    TopicOverview,
    TopicRoute,
    TopicSettings,
)
from metaq.admin.topic_figures import Advance
from metaq.admin.traces import message_traces
from metaq.admin.traces.timelines import Timeline
from metaq.client.message import Message
from metaq.client.portal import Portal
from metaq.client.session.routes import Queue
from metaq.credentials import Credentials
from metaq.protocol.bodies import READ, WRITE
from metaq.protocol.names import TRACE_TOPIC

_T = TypeVar("_T")
_END: Final = object()


class Topics:
    """Creates, changes, lists, shows and deletes topics."""

    def __init__(self, portal: Portal, work: topics.Topics) -> None:
        self._portal = portal
        self._work = work

    def create(
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
        return self._portal.run(
            self._work.create,
            topic,
            queues=queues,
            permission=permission,
            ordered=ordered,
            attributes=attributes,
            cluster=cluster,
            change_existing=change_existing,
        )

    def change(
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
        return self._portal.run(
            self._work.change,
            topic,
            queues=queues,
            write_queues=write_queues,
            permission=permission,
            ordered=ordered,
            attributes=attributes,
        )

    def list(self, *, cluster: str | None = None) -> tuple[TopicName, ...]:
        """Lists all topics, of one cluster or of all; `kind` separates users' topics from the system's."""
        return self._portal.run(self._work.list, cluster=cluster)

    def figures(
        self,
        chosen: Callable[[TopicName], bool] | None = None,
        *,
        cluster: str | None = None,
        advance: Advance | None = None,
    ) -> TopicOverview:
        """Returns what the chosen topics hold and how much they are used.

        A MetaQ broker answers for 1,000 topics at once. Others are asked for each chosen topic, and do not
        report everything: `missing` says so. `advance` is called with the number of topics that were read
        since the last call.
        """
        return self._portal.run(self._work.figures, chosen, cluster=cluster, advance=advance)

    def figures_of(self, topic: str) -> TopicFigures:
        """Returns what one topic holds and how much it is used. Raises NoRoute."""
        return self._portal.run(self._work.figures_of, topic)

    def show(self, topic: str) -> Topic:
        """Returns the settings of a topic on each broker, and its queues. Raises NoRoute."""
        return self._portal.run(self._work.show, topic)

    def delete(self, topic: str) -> tuple[str, ...]:
        """Deletes a topic from every broker, with the offsets of its groups. Returns the brokers that had it.
        Raises NoRoute."""
        return self._portal.run(self._work.delete, topic)

    def route(self, topic: str) -> TopicRoute:
        """Returns the brokers and queues that clients use for a topic. Raises NoRoute."""
        return self._portal.run(self._work.route, topic)

    def groups(self, topic: str) -> tuple[str, ...]:
        """Lists the groups that consume a topic or have committed offsets of it. Raises NoRoute."""
        return self._portal.run(self._work.groups, topic)

    def limits(self, topic: str) -> tuple[Limits, ...]:
        """Returns how much each broker lets producers send to a topic. Raises NoRoute."""
        return self._portal.run(self._work.limits, topic)

    def limit(
        self, topic: str, *, messages_per_second: Rate = None, bytes_per_second: Rate = None
    ) -> tuple[Limits, ...]:
        """Limits how much each broker lets producers send to a topic; `"none"` removes a limit. Raises
        NoRoute, and NotSupported for a broker that is not one of MetaQ's."""
        return self._portal.run(
            self._work.limit,
            topic,
            messages_per_second=messages_per_second,
            bytes_per_second=bytes_per_second,
        )


class ConsumerGroups:
    """Creates, changes, lists, shows, resets and deletes consumer groups."""

    def __init__(self, portal: Portal, work: consumer_groups.ConsumerGroups) -> None:
        self._portal = portal
        self._work = work

    def create(
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
        return self._portal.run(
            self._work.create,
            group,
            retries_max=retries_max,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast_allowed=broadcast_allowed,
            ordered=ordered,
            attributes=attributes,
            cluster=cluster,
        )

    def change(
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
        return self._portal.run(
            self._work.change,
            group,
            retries_max=retries_max,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast_allowed=broadcast_allowed,
            ordered=ordered,
            attributes=attributes,
        )

    def list(self, *, cluster: str | None = None) -> Groups:
        """Lists all groups, of one cluster or of all; `kind` separates users' groups from the system's."""
        return self._portal.run(self._work.list, cluster=cluster)

    def figures(
        self,
        chosen: Callable[[GroupName], bool] | None = None,
        *,
        cluster: str | None = None,
        advance: Advance | None = None,
    ) -> GroupOverview:
        """Returns how far the chosen groups are behind, and how many clients they have.

        A MetaQ broker answers for 1,000 groups at once. Others need some requests for each chosen group.
        `advance` is called with the number of groups that were read since the last call.
        """
        return self._portal.run(self._work.figures, chosen, cluster=cluster, advance=advance)

    def show(self, group: str) -> Group:
        """Returns the settings, members and progress of a group. Raises NoSuchGroup."""
        return self._portal.run(self._work.show, group)

    def delete(self, group: str, *, keep_offsets: bool = False) -> tuple[str, ...]:
        """Deletes a group, with its offsets unless they are to be kept. Returns the brokers that had it.
        Raises NoSuchGroup."""
        return self._portal.run(self._work.delete, group, keep_offsets=keep_offsets)

    def limits(self, group: str) -> tuple[Limits, ...]:
        """Returns how much each broker gives to all consumers of a group together. Raises NoSuchGroup."""
        return self._portal.run(self._work.limits, group)

    def limit(
        self, group: str, *, messages_per_second: Rate = None, bytes_per_second: Rate = None
    ) -> tuple[Limits, ...]:
        """Limits how much each broker gives to all consumers of a group together; `"none"` removes a limit.
        Raises NoSuchGroup, and NotSupported for a broker that is not one of MetaQ's."""
        return self._portal.run(
            self._work.limit,
            group,
            messages_per_second=messages_per_second,
            bytes_per_second=bytes_per_second,
        )

    def members(self, group: str) -> Members:
        """Returns the clients of a group that are connected now; none is not an error."""
        return self._portal.run(self._work.members, group)

    def running(self, group: str, *, stacks: bool = False) -> RunningMembers:
        """Asks the clients of a group which queues they consume and what they subscribe to; with `stacks`
        also what their threads do. A client that does not answer has an `error`."""
        return self._portal.run(self._work.running, group, stacks=stacks)

    def progress(self, group: str, topic: str | None = None) -> Progress:
        """Returns how far a group is in each queue, of one topic or of all, in messages and in time. A group
        that has not committed anything has no queues."""
        return self._portal.run(self._work.progress, group, topic)

    def reset(
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
        return self._portal.run(self._work.reset, group, topic, to, queues=queues, dry_run=dry_run)

    def clone(self, source: str, target: str, topic: str, *, dry_run: bool = False) -> Reset:
        """Moves a group to where another one is in a topic. If the target does not exist, it is created with
        the settings of the source.

        Queues in which the source has committed nothing stay as they are. A place that the queue no longer
        holds becomes the first one that it holds. With `dry_run` nothing is changed. Raises NoRoute and
        NoSuchGroup.
        """
        return self._portal.run(self._work.clone, source, target, topic, dry_run=dry_run)

    def apply(self, plan: Reset) -> Reset:
        """Moves a group exactly as a dry run has planned it. Raises Refused if a queue no longer holds the
        planned offset."""
        return self._portal.run(self._work.apply, plan)


class Offsets:
    """Reads and commits offsets. Results are by queue."""

    def __init__(self, portal: Portal, work: offsets.Offsets) -> None:
        self._portal = portal
        self._work = work

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        """Returns which messages queues hold."""
        return self._portal.run(self._work.bounds, queues)

    def ends(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns the offsets of the next messages to come."""
        return self._portal.run(self._work.ends, queues)

    def at(self, queues: Iterable[Queue], position: Position) -> dict[Queue, int]:
        """Returns the offsets of a position. Raises UsageError for an offset that a queue does not hold."""
        return self._portal.run(self._work.at, queues, position)

    def at_times(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Returns the offsets of the first messages that were stored at these times or later; the end of a
        queue if there is none."""
        return self._portal.run(self._work.at_times, times_ms)

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        """Returns the offsets that a group has committed; None if it has not committed any."""
        return self._portal.run(self._work.committed, group, queues)

    def resets(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns where a group was reset to, for each queue in which it has not moved yet. Only MetaQ's
        brokers tell that."""
        return self._portal.run(self._work.resets, group, queues)

    def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits offsets for a group, as its consumers do. Raises the first error after all were tried.

        A consumer that runs may commit others the next moment; `groups.reset` moves it too.
        """
        self._portal.run(self._work.commit, group, offsets)

    def replica_ends(self, queue: Queue) -> dict[int, int]:
        """Returns how far each replica of a queue that answers is, by broker id; the master is not asked."""
        return self._portal.run(self._work.replica_ends, queue)

    def measure(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueuePart]:
        """Returns how far each part of a queue, from one offset up to another, reaches within its bytes.

        MetaQ's brokers look at a million messages at most. Others are asked for the lines of their queues: a
        thousand if no bytes are given, and they do not tell how long messages wait.
        """
        return self._portal.run(self._work.measure, parts, bytes_max)


class Messages:
    """Finds messages by id, by key and by time, reads topics, and sends stored messages again. Nothing is
    consumed by it."""

    def __init__(self, portal: Portal, work: stored_messages.Messages) -> None:
        self._portal = portal
        self._work = work

    def by_id(self, topic: str, id: str) -> tuple[Message, ...]:
        """Finds a message by the id that its producer got. There are several if it was sent again or stored
        again for a retry. Raises NoSuchMessage and NoRoute."""
        return self._portal.run(self._work.by_id, topic, id)

    def by_offset_id(self, offset_id: str) -> Message:
        """Finds a message by its offset id, which names its broker and its place there. Raises UsageError
        and NoSuchMessage."""
        return self._portal.run(self._work.by_offset_id, offset_id)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = LIMIT,
    ) -> tuple[Message, ...]:
        """Finds the newest messages with a key, of all times or of those stored between two; the oldest
        first. Raises NoRoute."""
        return self._portal.run(self._work.by_key, topic, key, begin=begin, end=end, limit=limit)

    def by_time(
        self, topic: str, begin: datetime, end: datetime, *, limit: int = LIMIT
    ) -> tuple[Message, ...]:
        """Returns the first messages that were stored from one time on and before another. Raises NoRoute."""
        return self._portal.run(self._work.by_time, topic, begin, end, limit=limit)

    def read(
        self,
        topic: str,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        follow: bool = False,
        last: int | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        key: str | None = None,
        queues: Iterable[Queue] | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Message]:
        """Yields the messages of a topic between two positions in the order in which they were stored. With
        `follow` it goes on with those that arrive, and does not end.

        `last` yields only that many messages before the end. `tags`, `sql` and `key` select messages; tags
        and a SQL92 expression exclude each other. `queues` are the queues to read. While it follows, it waits
        for a broker that is away, and calls `on_wait` with its name and the error. Raises NoRoute and
        UsageError.
        """
        return _iterate(
            self._portal,
            lambda: self._work.read(
                topic,
                start,
                end,
                follow=follow,
                last=last,
                tags=tags,
                sql=sql,
                key=key,
                queues=queues,
                on_wait=on_wait,
            ),
        )

    def resend(self, message: Message, *, group: str | None = None) -> MessageCopy:
        """Sends a stored message again: to its topic, so that all groups get it, or to one group alone. The
        copy has the same id. Raises NoRoute, NoSuchGroup, NoSuchMessage and UsageError."""
        return self._portal.run(self._work.resend, message, group=group)


class DeadLetters:
    """Counts and lists the dead letters of groups, and gives them to their group again."""

    def __init__(self, portal: Portal, work: dead_letters.DeadLetters) -> None:
        self._portal = portal
        self._work = work

    def counts(self, groups: Iterable[str] | None = None) -> tuple[DeadLetterCount, ...]:
        """Counts the dead letters of these groups, or of every group that has some. Each group needs a few
        requests."""
        return self._portal.run(self._work.counts, groups)

    def list(self, group: str, *, resent: bool = False) -> Iterator[DeadLetter]:
        """Yields the dead letters of a group that were not sent again yet; with `resent` all of them. Raises
        NoSuchGroup."""
        return _iterate(self._portal, lambda: self._work.list(group, resent=resent))

    def find(self, group: str, id: str) -> DeadLetter:
        """Finds a dead letter by its id or its offset id. Raises NoSuchGroup and NoSuchMessage."""
        return self._portal.run(self._work.find, group, id)

    def resend(self, group: str, *, rate: float = RATE) -> Iterator[DeadLetter]:
        """Gives a group its dead letters again, `rate` a second, and yields each one after it was sent.

        No other group gets them, and their tries are counted anew. If it is interrupted, the next call
        continues from there. Raises NoSuchGroup.
        """
        return _iterate(self._portal, lambda: self._work.resend(group, rate=rate))

    def resend_each(
        self, group: str, ids: Iterable[str] | None = None, *, rate: float = RATE
    ) -> Iterator[ResendOutcome]:
        """Gives a group its dead letters again, or those with these ids, and yields what became of each one.

        A letter that a broker refuses does not keep the others back, and the next call tries it again. If a
        broker does not answer, the rest of its queue waits for the next call. Raises NoSuchGroup.
        """
        return _iterate(self._portal, lambda: self._work.resend_each(group, ids, rate=rate))

    def resend_one(self, group: str, id: str) -> DeadLetter:
        """Gives a group one of its dead letters again, by its id or its offset id. Raises NoSuchGroup and
        NoSuchMessage."""
        return self._portal.run(self._work.resend_one, group, id)


class Traces:
    """Tells what happened to one message. Nothing is consumed by it."""

    def __init__(self, portal: Portal, work: message_traces.Traces) -> None:
        self._portal = portal
        self._work = work

    def timeline(self, id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC) -> Timeline:
        """Joins the traces of a message and the copies that brokers store into a timeline.

        `id` is the id that its producer got. Without `topic`, the trace of its producer must name the topic.
        `notes` say what is not known. Raises NoSuchMessage and NoRoute.
        """
        return self._portal.run(self._work.timeline, id, topic, trace_topic=trace_topic)


class Brokers:
    """Describes and configures brokers. A broker is named by its name, which means its master, or by its
    address."""

    def __init__(self, portal: Portal, work: servers.Brokers) -> None:
        self._portal = portal
        self._work = work

    def cluster(self) -> Cluster:
        """Returns all name servers and brokers. One that does not answer has an `error`."""
        return self._portal.run(self._work.cluster)

    def clients(self, broker: str | None = None) -> ConnectedClients:
        """Lists the producers and consumers that are connected to a broker, or to all. Raises NoRoute for a
        name that is not known."""
        return self._portal.run(self._work.clients, broker)

    def configuration(self, broker: str) -> BrokerConfiguration:
        """Returns the settings that a broker runs with. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.configuration, broker)

    def changeable_settings(self, broker: str) -> frozenset[str] | None:
        """Returns the settings that `configure` can change; None if the broker is not one of MetaQ's, because
        no other broker says. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.changeable_settings, broker)

    def configure(self, broker: str, values: Mapping[str, str]) -> BrokerConfiguration:
        """Changes settings of a running broker and returns all of them. Raises Refused, naming the settings
        that can be changed. A MetaQ broker forgets the changes when it stops."""
        return self._portal.run(self._work.configure, broker, values)

    def figures(self, broker: str) -> BrokerFigures:
        """Returns what a broker measures of itself. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.figures, broker)


class HealthChecks:
    """Judges the health of a cluster."""

    def __init__(self, portal: Portal, work: checks.HealthChecks) -> None:
        self._portal = portal
        self._work = work

    def check(
        self, *, cluster: str | None = None, register: str | None = None, ask_name_servers: bool = True
    ) -> Health:
        """Returns the health of one cluster or of all. A server that does not answer is a finding, never an
        error.

        With the address of a register, such as `etcd://host:2379`, the records of its broker groups count,
        and name servers need not be asked. Raises RegisterUnavailable, and ConfigError for a bad address.
        """
        return self._portal.run(
            self._work.check, cluster=cluster, register=register, ask_name_servers=ask_name_servers
        )


class Admin:
    """Administers a cluster, named by its name servers: `host:port`, several separated by semicolons.

    Any thread may call it:

        with metaq.admin.Admin("127.0.0.1:9876") as admin: …

    Each request may take `timeout` seconds. Questions that fail for a reason that may pass are asked again
    for `retry` seconds; changes are sent once. With `partial` a broker that does not answer is listed in the
    `failures` of a result instead of raising an error. With `credentials`, requests are signed, as a cluster
    with access control demands.
    """

    def __init__(
        self,
        nameservers: str = "127.0.0.1:9876",
        *,
        timeout: float = 5.0,
        retry: float = 0.0,
        partial: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._admin = aio.Admin(
            nameservers, timeout=timeout, retry=retry, partial=partial, credentials=credentials
        )
        self._portal = Portal()
        self._portal.start()
        self.topics = Topics(self._portal, self._admin.topics)
        self.offsets = Offsets(self._portal, self._admin.offsets)
        self.groups = ConsumerGroups(self._portal, self._admin.groups)
        self.messages = Messages(self._portal, self._admin.messages)
        self.dead_letters = DeadLetters(self._portal, self._admin.dead_letters)
        self.traces = Traces(self._portal, self._admin.traces)
        self.brokers = Brokers(self._portal, self._admin.brokers)
        self.health = HealthChecks(self._portal, self._admin.health)

    def close(self) -> None:
        """Closes the connections. Safe to call twice."""
        try:
            if self._portal.usable:
                self._portal.run(self._admin.close)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _iterate(portal: Portal, start: Callable[[], AsyncGenerator[_T, None]]) -> Iterator[_T]:
    """Takes each item from a generator that runs on the portal's loop."""
    generator = start()
    taking: set[asyncio.Task[object]] = set()

    async def take() -> object:
        task = asyncio.current_task()
        assert task is not None
        taking.add(task)
        task.add_done_callback(taking.discard)
        return await anext(generator, _END)

    async def end() -> None:
        # After Ctrl-C the last item may still be awaited.
        for task in list(taking):
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        await generator.aclose()

    try:
        while (item := portal.run(take)) is not _END:
            yield cast(_T, item)
    finally:
        if portal.usable:
            portal.run(end)
