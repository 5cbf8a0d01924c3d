"""The administration client: what an operator asks of a cluster and changes in it.

`Admin` is for plain code and `metaq.admin.aio.Admin` for asyncio. Both have the same parts: `topics`,
`groups`, `offsets`, `messages`, `dead_letters` and `brokers`. Each part is a file of that name on asyncio;
`sync.py` is the plain face over them. `broker_groups.py`, which only commands use so far, looks at groups of
brokers and orders switches. They send their requests through `calls.py`, which finds brokers, asks
many at once and tries again. `queue_reading.py` reads topics with a `selection.py`, and `message_copies.py`
sends stored messages again. `results.py` has everything that is returned, `positions.py` the four kinds of
positions.

The command line, the Spark source and the pipelines use it. It works on MetaQ's brokers and on Apache's, and
imports nothing of the servers, because Spark's processes load it. Its public surface is `__all__` here; a
test pins it. Users read docs/admin-client.md.
"""

from metaq.admin import aio
from metaq.admin.limits import Rate
from metaq.admin.positions import Position, parse_position
from metaq.admin.results import (
    Bounds,
    Broker,
    BrokerConfiguration,
    BrokerFailure,
    BrokerFigures,
    Cluster,
    DeadLetter,
    DeadLetterCount,
    Group,
    GroupName,
    Groups,
    GroupSettings,
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
    Subscription,
    Topic,
    TopicName,
    TopicRoute,
    TopicSettings,
)
from metaq.admin.sync import Admin
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
    "Cluster",
    "DeadLetter",
    "DeadLetterCount",
    "Group",
    "GroupName",
    "GroupSettings",
    "Groups",
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
    "Subscription",
    "Topic",
    "TopicName",
    "TopicRoute",
    "TopicSettings",
    "aio",
    "parse_position",
]
