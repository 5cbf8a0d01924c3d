"""The administration client for plain code: the same names and signatures, and calls that wait.

Its other parts are in the files `sync.py` of `groups/`, `messages/`, `waiting/` and `pipelines/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Literal, Self

from metaq.admin import aio, offsets, topics
from metaq.admin.brokers import servers
from metaq.admin.groups.sync import ConsumerGroups
from metaq.admin.health import checks
from metaq.admin.health.results import Health
from metaq.admin.limits import Rate
from metaq.admin.messages.sync import DeadLetters, Messages
from metaq.admin.pipelines.sync import Pipelines
from metaq.admin.positions import Position
from metaq.admin.purge_results import Purge, Retention
from metaq.admin.results import (
    Bounds,
    BrokerConfiguration,
    BrokerFigures,
    BrokerOption,
    ClientKind,
    Cluster,
    ConnectedClients,
    Limits,
    QueuePart,
    Switched,
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
from metaq.admin.waiting.sync import Delayed, Transactions
from metaq.client.portal import Portal
from metaq.client.session.routes import Queue
from metaq.credentials import Credentials
from metaq.protocol.bodies import READ, WRITE
from metaq.protocol.commands.replication import GroupStatus
from metaq.protocol.names import TRACE_TOPIC


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
        one_by_one: bool = True,
    ) -> TopicOverview:
        """Returns what the chosen topics hold and how much they are used.

        A MetaQ broker answers for 1,000 topics at once. Others are asked for each chosen topic, and do not
        report everything: `missing` says so. Without `one_by_one`, those return only names and queues, with
        a bounded number of requests. `advance` is called with the number of topics that were read since the
        last call.
        """
        return self._portal.run(
            self._work.figures, chosen, cluster=cluster, advance=advance, one_by_one=one_by_one
        )

    def figures_by_name(self, brokers_of: Mapping[str, Collection[str]]) -> TopicOverview:
        """Returns the figures of single topics, each on the brokers that have it. The other topics of those
        brokers cost nothing. A topic that is gone is left out."""
        return self._portal.run(self._work.figures_by_name, brokers_of)

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

    def purge(self, topic: str, to: Position, *, dry_run: bool = False) -> Purge:
        """Takes away the messages before a position: nobody gets or counts them any more. Consumers that are
        behind go on there.

        Their disk space returns when the retention of the log deletes its files. A purge cannot be undone.
        With `dry_run` nothing is changed. Raises NoRoute, UsageError for an offset that a queue does not
        hold, and NotSupported for a broker that is not one of MetaQ's.
        """
        return self._portal.run(self._work.purge, topic, to, dry_run=dry_run)

    def apply_purge(self, plan: Purge) -> Purge:
        """Makes the changes of a plan. Raises the errors of `purge`."""
        return self._portal.run(self._work.apply_purge, plan)

    def retentions(self, topic: str) -> tuple[Retention, ...]:
        """Returns the topic's own retention on each broker. Raises NoRoute."""
        return self._portal.run(self._work.retentions, topic)

    def retain(
        self, topic: str, *, age_ms: int | Literal["none"] | None = None, size: Rate = None
    ) -> tuple[Retention, ...]:
        """Keeps the messages of a topic for a time, and up to a size on each broker; both within the
        retention of the log. `"none"` removes a limit. What is beyond them is no longer delivered or counted.
        Raises NoRoute, and NotSupported for a broker that is not one of MetaQ's."""
        return self._portal.run(self._work.retain, topic, age_ms=age_ms, size=size)

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

    def ordered_since(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Returns since when the messages of queues are in the order of their store times, in milliseconds.

        Queues of other brokers than MetaQ's are left out: if their clock was set back, so were the times.
        """
        return self._portal.run(self._work.ordered_since, queues)

    def measure(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueuePart]:
        """Returns how far each part of a queue, from one offset up to another, reaches within its bytes.

        MetaQ's brokers look at a million messages at most. Others are asked for the lines of their queues: a
        thousand if no bytes are given, and they do not tell how long messages wait.
        """
        return self._portal.run(self._work.measure, parts, bytes_max)


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

    def clients(self, broker: str | None = None, *, kind: ClientKind | None = None) -> ConnectedClients:
        """Lists the producers and consumers that are connected to a broker, or to all; or those of one kind.
        Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.clients, broker, kind=kind)

    def configuration(self, broker: str) -> BrokerConfiguration:
        """Returns the settings that a broker, or the name server at this address, runs with. Raises NoRoute
        for a name that is not known."""
        return self._portal.run(self._work.configuration, broker)

    def is_nameserver(self, address: str) -> bool:
        """Returns whether this is the address of a name server that was given to this client."""
        return self._work.is_nameserver(address)

    def options(self, broker: str) -> tuple[BrokerOption, ...] | None:
        """Returns all options of a broker with their sources; None if the broker is not one of MetaQ's, or
        too old to say. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.options, broker)

    def changeable_settings(self, broker: str) -> frozenset[str] | None:
        """Returns the settings that `configure` can change, under our names and RocketMQ's; None if the
        broker does not say. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.changeable_settings, broker)

    def configure(
        self, broker: str, values: Mapping[str, str], *, persist: bool = False
    ) -> BrokerConfiguration:
        """Changes settings of a running broker, all or none, and returns all of them. Raises Refused, naming
        the settings that can be changed. A MetaQ broker forgets the changes when it stops, unless they
        `persist`; an Apache broker writes them into its configuration file. The address of a name server
        works as well; it forgets them."""
        return self._portal.run(self._work.configure, broker, values, persist=persist)

    def unset(self, broker: str, names: Iterable[str]) -> tuple[BrokerOption, ...]:
        """Forgets values that were changed at run time, kept ones too, and returns what counts now: what the
        broker's start would set. Raises Refused for options that cannot change at run time."""
        return self._portal.run(self._work.unset, broker, names)

    def figures(self, broker: str) -> BrokerFigures:
        """Returns what a broker measures of itself. Raises NoRoute for a name that is not known."""
        return self._portal.run(self._work.figures, broker)

    def group(self, name: str) -> GroupStatus:
        """Returns the state of a broker group: who is master, and who is in sync. Raises CommandError if
        there is none; Apache's brokers are in none."""
        return self._portal.run(self._work.group, name)

    def switch(self, name: str, to: int) -> Switched:
        """Makes another node of a broker group master, without losses. Raises CommandError or Refused if that
        is not possible; then the master stays."""
        return self._portal.run(self._work.switch, name, to)

    def drain(self, broker: str, *, wait_s: int | None = None) -> GroupStatus | None:
        """Takes a broker out of service: `name/id`, an address, or the name of a lone broker. Returns its
        group as it sees it afterwards. A lone broker refuses messages, and stops when its clients have left,
        or after `wait_s`. Raises CommandError or Refused if it cannot be drained; then it serves on."""
        return self._portal.run(self._work.drain, broker, wait_s=wait_s)


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
        self.delayed = Delayed(self._portal, self._admin.delayed)
        self.transactions = Transactions(self._portal, self._admin.transactions)
        self.traces = Traces(self._portal, self._admin.traces)
        self.brokers = Brokers(self._portal, self._admin.brokers)
        self.health = HealthChecks(self._portal, self._admin.health)
        self.pipelines = Pipelines(self._portal, self._admin.pipelines)

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
