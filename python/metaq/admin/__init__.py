"""The administration client: what an operator asks of a cluster and changes in it.

`Admin` is for plain code and `metaq.admin.aio.Admin` for asyncio. Both have the same parts, which work on
asyncio; `sync.py` is the plain face over them:

topics.py   `topics`; topic_figures.py collects the figures of all topics for lists
offsets.py  `offsets`
groups/     `groups`: consumer groups
messages/   `messages` and `dead_letters`
waiting/    `delayed` and `transactions`: messages that wait for their time or for a decision
traces/     `traces`: the timeline of one message
brokers/    `brokers`, connected clients and groups of brokers
health/     `health`: what is wrong in a cluster, and documents for a support bundle
pipelines/  `pipelines`: the reports of pipelines and Spark queries that run

The parts send their requests through `calls.py`, which finds brokers, asks many at once and tries again.
`results.py` has most results, `positions.py` the four kinds of positions, `limits.py` the
rates that brokers allow, `kinds.py` the names of the system and `versions.py` RocketMQ's versions.

The command line, the Spark source and the pipelines use it. It works on MetaQ's brokers and on Apache's, and
imports nothing of the servers, because Spark's processes load it. Its public surface is `__all__` here; a
test pins it. Users read docs/admin-client.md.
"""

from metaq.admin import aio
from metaq.admin.health.results import BrokerHealth, Finding, Health
from metaq.admin.limits import Rate
from metaq.admin.messages.letter_pages import DeadLetterPage
from metaq.admin.pipelines.reports import PipelineReport, PipelineReports
from metaq.admin.positions import Position, parse_position
from metaq.admin.purge_results import Purge, QueuePurge, Retention
from metaq.admin.results import (
    Bounds,
    Broker,
    BrokerConfiguration,
    BrokerFailure,
    BrokerFigures,
    BrokerOption,
    Cluster,
    ConnectedClient,
    ConnectedClients,
    DeadLetter,
    DeadLetterCount,
    DeadLetterReason,
    Group,
    GroupFigures,
    GroupName,
    GroupOverview,
    Groups,
    GroupSettings,
    Limits,
    Member,
    Members,
    MessageCopy,
    NameServer,
    NewestMessages,
    Progress,
    QueuePart,
    QueueProgress,
    QueueReset,
    QueueState,
    ResendOutcome,
    Reset,
    RouteBroker,
    RunningMember,
    RunningMembers,
    Subscription,
    SubscriptionConflict,
    Switched,
    Topic,
    TopicFigures,
    TopicName,
    TopicOverview,
    TopicRoute,
    TopicSettings,
)
from metaq.admin.sync import Admin
from metaq.admin.traces.otlp import spans
from metaq.admin.traces.timelines import Timeline, TimelineEvent, TimelineGroup
from metaq.admin.waiting.results import (
    Decision,
    DelayedMessage,
    DelayedMessages,
    DelayedOverview,
    DelayLevelCount,
    DueBucket,
    OpenTransaction,
    OpenTransactions,
)
from metaq.credentials import Credentials
from metaq.protocol.bodies import READ, WRITE

__all__ = [
    "READ",
    "WRITE",
    "Admin",
    "Bounds",
    "Broker",
    "BrokerConfiguration",
    "BrokerFailure",
    "BrokerFigures",
    "BrokerHealth",
    "BrokerOption",
    "Cluster",
    "ConnectedClient",
    "ConnectedClients",
    "Credentials",
    "DeadLetter",
    "DeadLetterCount",
    "DeadLetterPage",
    "DeadLetterReason",
    "Decision",
    "DelayLevelCount",
    "DelayedMessage",
    "DelayedMessages",
    "DelayedOverview",
    "DueBucket",
    "Finding",
    "Group",
    "GroupFigures",
    "GroupName",
    "GroupOverview",
    "GroupSettings",
    "Groups",
    "Health",
    "Limits",
    "Member",
    "Members",
    "MessageCopy",
    "NameServer",
    "NewestMessages",
    "OpenTransaction",
    "OpenTransactions",
    "PipelineReport",
    "PipelineReports",
    "Position",
    "Progress",
    "Purge",
    "QueuePart",
    "QueueProgress",
    "QueuePurge",
    "QueueReset",
    "QueueState",
    "Rate",
    "ResendOutcome",
    "Reset",
    "Retention",
    "RouteBroker",
    "RunningMember",
    "RunningMembers",
    "Subscription",
    "SubscriptionConflict",
    "Switched",
    "Timeline",
    "TimelineEvent",
    "TimelineGroup",
    "Topic",
    "TopicFigures",
    "TopicName",
    "TopicOverview",
    "TopicRoute",
    "TopicSettings",
    "aio",
    "parse_position",
    "spans",
]
