"""The results of the administration client. All of them are immutable.

Times are in milliseconds since 1970 and their names end in `_ms`. None means that a value is not known or not
set. A result that several brokers contribute to has `failures`: the brokers that did not answer. It is empty
unless the client was made with `partial=True`; otherwise such a broker is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.protocol.bodies import READ, WRITE
from metaq.protocol.commands.options import OptionSource

TopicKind = Literal["normal", "retry", "dead-letter", "system"]
GroupKind = Literal["normal", "system"]
BrokerKind = Literal["metaq", "rocketmq"]
ClientKind = Literal["producer", "consumer"]


@dataclass(frozen=True, slots=True)
class BrokerFailure:
    """A broker that did not answer, and why."""

    broker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates that one broker allows a topic or a group; None means no limit."""

    broker: str
    messages_per_second: int | None
    bytes_per_second: int | None


# Topics


@dataclass(frozen=True, slots=True)
class TopicName:
    """One line of a list of topics."""

    name: str
    kind: TopicKind


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic on one broker."""

    broker: str
    read_queues: int
    write_queues: int
    permission: int
    """READ, WRITE or both added."""
    ordered: bool
    attributes: Mapping[str, str]
    limits: Limits

    @property
    def readable(self) -> bool:
        return bool(self.permission & READ)

    @property
    def writable(self) -> bool:
        return bool(self.permission & WRITE)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The messages that one queue holds."""

    queue: Queue
    first_offset: int
    end_offset: int
    """The offset of the next message to come."""
    last_stored_ms: int | None

    @property
    def messages(self) -> int:
        return max(self.end_offset - self.first_offset, 0)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its settings on each broker and its queues."""

    name: str
    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueState, ...]
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """The messages and the traffic of a topic, on all its brokers together."""

    name: str
    kind: TopicKind
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    messages: int | None
    size_bytes: int | None
    """As stored, estimated from the ends of each queue; None if a broker does not tell."""
    first_stored_ms: int | None
    """When the oldest message was stored; None if there is none or a broker does not tell."""
    last_stored_ms: int | None
    messages_in_per_second: float | None
    """Over the last minute."""
    messages_out_per_second: float | None
    """Taken by all groups together."""
    waiting_letters: int | None = None
    """Dead letters that were not sent again; None for topics of other kinds, or if a broker does not tell."""
    waiting_since_ms: int | None = None
    """When the oldest of these was stored."""


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """The figures of many topics."""

    topics: tuple[TopicFigures, ...]
    failures: tuple[BrokerFailure, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each broker that does not report all figures."""
    brokers: tuple[str, ...] = ()
    """The brokers that answered."""


@dataclass(frozen=True, slots=True)
class RouteBroker:
    """A broker that has a topic."""

    name: str
    cluster: str
    addresses: Mapping[int, str]
    """By broker id; 0 is the master."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers that have a topic, and the queues that clients may use."""

    topic: str
    brokers: tuple[RouteBroker, ...]
    readable: tuple[Queue, ...]
    writable: tuple[Queue, ...]


# Groups


@dataclass(frozen=True, slots=True)
class GroupName:
    """One line of a list of groups."""

    name: str
    kind: GroupKind
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a cluster."""

    groups: tuple[GroupName, ...]
    failures: tuple[BrokerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """How far a group is behind, on all its brokers together."""

    name: str
    kind: GroupKind
    brokers: tuple[str, ...]
    members: int | None
    """Clients that are connected; the most that one broker sees."""
    lag: int | None
    """Messages that wait; None if it has committed nothing, or if no broker tells."""
    lag_ms: int | None
    """How long the oldest of them has been waiting; None if none waits or a broker does not tell."""
    messages_out_per_second: float | None
    """Over the last minute."""
    enabled: bool | None = None
    """Whether all its brokers give messages to its consumers; None if a broker does not tell."""
    unreported: tuple[str, ...] = ()
    """Brokers that have the group and did not say how much waits: `lag` lacks theirs."""


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """The figures of many groups."""

    groups: tuple[GroupFigures, ...]
    failures: tuple[BrokerFailure, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each broker that does not report all figures."""
    brokers: tuple[str, ...] = ()
    """The brokers that answered."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a group on one broker."""

    broker: str
    enabled: bool
    """Consumers of the group get messages."""
    broadcast_allowed: bool
    ordered: bool
    retries_max: int
    retry_queues: int
    attributes: Mapping[str, str]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Member:
    """A client that consumes for a group."""

    client_id: str
    address: str
    language: str
    version: str
    """The client's own version if it tells it, as MetaQ's clients do; else the one of RocketMQ's protocol."""
    brokers: tuple[str, ...]
    """The brokers that it is connected to."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic that a group consumes, and the filter it gave."""

    topic: str
    expression: str
    expression_type: str


@dataclass(frozen=True, slots=True)
class Members:
    """The clients of a group that are connected now."""

    group: str
    members: tuple[Member, ...]
    subscriptions: tuple[Subscription, ...]
    is_broadcasting: bool
    """Each member gets every message and keeps its offsets itself."""
    failures: tuple[BrokerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningMember:
    """The report of a client of a group on itself."""

    client_id: str
    queues: tuple[Queue, ...] = ()
    """The queues that it consumes."""
    subscriptions: tuple[Subscription, ...] = ()
    started_ms: int | None = None
    is_ordered: bool | None = None
    stack: str | None = None
    """The stacks of its threads, if they were asked for."""
    error: str | None = None
    """Why it did not answer."""


@dataclass(frozen=True, slots=True)
class SubscriptionConflict:
    """A topic that the members of a group do not consume in the same way: some get no messages, or the wrong
    ones."""

    topic: str
    expressions: Mapping[str, str | None]
    """The filter of each member, by client id; None if it does not subscribe to the topic."""


@dataclass(frozen=True, slots=True)
class RunningMembers:
    """The reports of all clients of a group."""

    group: str
    members: tuple[RunningMember, ...]
    conflicts: tuple[SubscriptionConflict, ...]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue."""

    queue: Queue
    committed_offset: int
    end_offset: int
    lag_ms: int | None
    """How long the next message has been waiting; None if that was not asked for or is unknown."""

    @property
    def lag(self) -> int:
        """Messages that wait. A topic that was created anew may be shorter than what was committed."""
        return max(self.end_offset - self.committed_offset, 0)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is in all queues that it has committed an offset of."""

    group: str
    queues: tuple[QueueProgress, ...]
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def lag(self) -> int:
        """Messages that wait in all queues together."""
        return sum(queue.lag for queue in self.queues)

    @property
    def lag_ms(self) -> int | None:
        """How long the oldest of them has been waiting."""
        known = [queue.lag_ms for queue in self.queues if queue.lag_ms is not None]
        return max(known) if known else None


@dataclass(frozen=True, slots=True)
class Group:
    """A group: its settings on each broker, its clients and its progress."""

    name: str
    settings: tuple[GroupSettings, ...]
    members: Members
    progress: Progress
    failures: tuple[BrokerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueReset:
    """The change of one queue by a reset."""

    queue: Queue
    committed_offset: int | None
    """Before the reset; None if the group had not committed any."""
    queue_offset: int
    """After the reset."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The changes of a reset: planned if it is a dry run, made otherwise."""

    group: str
    topic: str
    queues: tuple[QueueReset, ...]
    is_dry_run: bool


# Offsets


@dataclass(frozen=True, slots=True)
class Bounds:
    """The messages that a queue holds: from `first` up to but not including `end`."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class QueuePart:
    """A part of a queue: how far it reaches within a number of bytes, and what it holds."""

    end_offset: int
    size_bytes: int
    before_physical_offset: int | None = None
    """The place in the commit log of the message before the part; None if it is not known."""
    delay_ms: int | None = None
    """How long the message at `end_offset` has been stored; None if the broker cannot tell."""


# Messages


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group has given up."""

    message: Message
    origin_topic: str
    """The topic that the group consumed it from."""
    reason: str | None = None
    """Why the consumer has given it up. Only MetaQ's clients and brokers store it."""
    error_type: str | None = None
    """The class of the exception, stored with the reason."""


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """The dead letters of a group that failed in the same way. Their reasons may differ in numbers."""

    error_type: str | None
    reason: str | None
    """With `#` in place of each number; None if the consumers did not say."""
    letters: int
    oldest_ms: int
    newest_ms: int
    topics: tuple[str, ...]
    """The topics that the group consumed them from."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The dead letters of one group."""

    group: str
    waiting: int | None
    """Letters behind the place up to which they were sent again; None if a broker did not answer."""
    stored: int | None
    """All that the brokers still hold."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ResendOutcome:
    """The outcome of sending one dead letter again."""

    id: str
    """The offset id of the letter, or the id that was given if there is no such letter."""
    letter: DeadLetter | None
    error: MetaqError | None = None
    """None if it was sent."""


@dataclass(frozen=True, slots=True)
class NewestMessages:
    """The newest messages of a topic, the newest first, without a gap: every selected message that is newer
    than the last one is among them."""

    messages: tuple[Message, ...]
    before: str | None
    """The place where the next search goes on; None if no message is left."""
    is_truncated: bool
    """The search ended at one of its bounds before it found enough."""
    scanned: int
    """Messages that were looked at, whether they were selected or not."""
    unseen: int
    """Messages that were not looked at."""
    ends: Mapping[Queue, int]
    """The offset of the next message to come, by queue."""
    queues_left_out: int = 0
    """Queues that were not read, because there are too many, and that may have messages as new as these."""
    failures: tuple[BrokerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A message that was sent, or sent again, and its place."""

    id: str
    """The unique id; of a copy, that of the first message."""
    offset_id: str
    queue: Queue
    queue_offset: int


# Cluster


@dataclass(frozen=True, slots=True)
class NameServer:
    """A name server, and why it does not answer."""

    address: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is registered with the name servers."""

    name: str
    cluster: str
    id: int
    """0 is the master, the others are its replicas."""
    address: str
    kind: BrokerKind | None = None
    """None if it does not answer."""
    version: str | None = None
    error: str | None = None

    @property
    def is_master(self) -> bool:
        return self.id == 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The servers of a cluster."""

    name_servers: tuple[NameServer, ...]
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class BrokerConfiguration:
    """The settings that a broker runs with, under RocketMQ's names."""

    broker: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerOption:
    """One option of a running MetaQ broker. Values are texts as in a configuration file."""

    name: str
    value: str
    source: OptionSource
    """`now`: changed at run time, until the broker stops. `kept`: the same, but for later starts too."""
    origin: str
    """The file, the variable or the flag that sets it."""
    at_run_time: bool
    """Whether `configure` can change it."""
    next_start: str
    """Its value after the next start, if nothing else changes."""
    apache_name: str | None
    """RocketMQ's name for it, if it has one."""


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """Measurements that a broker makes of itself; None if it does not report one."""

    broker: str
    version: str | None
    started_ms: int | None
    messages_in: int | None
    """Since the start."""
    messages_out: int | None
    messages_in_per_second: float | None
    messages_out_per_second: float | None
    disk_used_ratio: float | None
    """From 0 to 1, of the disk that holds the commit log."""
    earliest_stored_ms: int | None
    values: Mapping[str, str] = field(default_factory=dict)
    """Everything that the broker reports, under its own names."""


@dataclass(frozen=True, slots=True)
class Switched:
    """A planned switch of the master of a broker group that happened."""

    name: str
    epoch: int
    former: int
    """The id of the node that was master before."""
    master: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A producer or a consumer of one group that is connected now."""

    kind: ClientKind
    group: str
    client_id: str
    address: str
    language: str
    version: str
    """The client's own version if it tells it, as MetaQ's clients do; else the one of RocketMQ's protocol."""
    brokers: tuple[str, ...]
    """The brokers that it is connected to."""
    heartbeat_ms: int | None = None
    """When its last heartbeat came; None if the broker does not report it."""


@dataclass(frozen=True, slots=True)
class ConnectedClients:
    """The clients that are connected to a cluster or to one broker."""

    clients: tuple[ConnectedClient, ...]
    notes: tuple[str, ...] = ()
    """Parts that a broker cannot list."""
    failures: tuple[BrokerFailure, ...] = ()
