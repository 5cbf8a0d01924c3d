"""The administration client: what an operator asks of a cluster and changes in it.

`Admin` is for plain code and `metaq.admin.aio.Admin` for asyncio. Both have the same parts: `topics`,
`groups`, `offsets`, `messages`, `dead_letters`, `traces`, `brokers` and `health`. Each part is a file of that
name on asyncio; `sync.py` is the plain face over them. They send their requests through `calls.py`, which
finds brokers, asks many at once and tries again. `results.py` has everything that is returned, `positions.py`
the four kinds of positions, and `kinds.py` the names of the system.

`queue_reading.py` reads topics with a `selection.py`, and `message_copies.py` sends stored messages again.
`topic_figures.py` and `group_figures.py` collect what lists show, and `running_members.py` asks the clients
of a group. `timelines.py` has the timeline of one message, `timeline_events.py` and `group_states.py` make
it, and `otlp.py` writes it as OpenTelemetry spans. `health.py` collects the state of a cluster, with
`apache_report.py` for Apache's brokers; `findings.py` and `consumption_findings.py` judge it.
`support_documents.py` writes it down for a support bundle, and `redaction.py` removes secrets.
`broker_groups.py`, which only commands use so far, looks at groups of brokers and orders switches.

The command line, the Spark source and the pipelines use it. It works on MetaQ's brokers and on Apache's, and
imports nothing of the servers, because Spark's processes load it. Its public surface is `__all__` here; a
test pins it. Users read docs/admin-client.md.
"""

from metaq.admin import aio
from metaq.admin.limits import Rate
from metaq.admin.otlp import spans
from metaq.admin.positions import Position, parse_position
from metaq.admin.results import (
    Bounds,
    Broker,
    BrokerConfiguration,
    BrokerFailure,
    BrokerFigures,
    BrokerHealth,
    Client,
    Clients,
    Cluster,
    DeadLetter,
    DeadLetterCount,
    Finding,
    Group,
    GroupFigures,
    GroupName,
    GroupOverview,
    Groups,
    GroupSettings,
    Health,
    Limits,
    Member,
    Members,
    MessageCopy,
    NameServer,
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
    Topic,
    TopicFigures,
    TopicName,
    TopicOverview,
    TopicRoute,
    TopicSettings,
)
from metaq.admin.sync import Admin
from metaq.admin.timelines import Timeline, TimelineEvent, TimelineGroup
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
    "Client",
    "Clients",
    "Cluster",
    "Credentials",
    "DeadLetter",
    "DeadLetterCount",
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
    "Position",
    "Progress",
    "QueuePart",
    "QueueProgress",
    "QueueReset",
    "QueueState",
    "Rate",
    "ResendOutcome",
    "Reset",
    "RouteBroker",
    "RunningMember",
    "RunningMembers",
    "Subscription",
    "SubscriptionConflict",
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
