"""Figures of all topics and all groups of a broker, a page at a time.

RocketMQ answers such questions for one topic or one group only, so a tool would need a request for each of
10,000 topics. RocketMQ has none of these requests. Their codes follow those of `replication`.
"""

from __future__ import annotations

from typing import Final

from metaq.protocol.bodies import Body, always
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import Bits, Int32, Int64, Name, Rows

PAGE_MAX: Final = 1_000
"""Topics or groups of one page. A page may have fewer, because a broker bounds its work by queues as well."""


class TopicLine(Body):
    """One topic. Rates are over the last minute, and missing while the broker has not measured yet."""

    name: Name = always("")
    read_queues: Int32 = always(0)
    write_queues: Int32 = always(0)
    permission: Bits = always(0)
    messages: Int64 = always(0)
    size_bytes: Int64 | None = None
    first_stored_ms: Int64 | None = None
    last_stored_ms: Int64 | None = None
    in_per_second: float | None = None
    out_per_second: float | None = None
    waiting: Int64 | None = None
    """Dead letters that were not sent again. Missing for topics of other kinds, and from older brokers."""
    waiting_since_ms: Int64 | None = None
    """When the oldest of these was stored; missing if there is none."""


class TopicLines(Body):
    topics: Rows[TopicLine] = always(factory=list)
    is_last: bool = always(True)


class GetTopicFigures(
    Command,
    code=30_325,
    permission="describe",
    resources={"topic": "topic"},
    answer_max=AnswerMax(lines=PAGE_MAX),
):
    """Body of the answer: TopicLines in the order of their names, from behind `after` on, or only `topic`."""

    after: Name = ""
    count: Int32 = PAGE_MAX
    topic: Name | None = None


class GroupLine(Body):
    """One group. `lag` is missing if it has committed nothing or has more queues than a broker looks at,
    `lag_ms` if nothing waits, `enabled` if the broker is an older one."""

    name: Name = always("")
    members: Int32 = always(0)
    topics: Int32 = always(0)
    lag: Int64 | None = None
    lag_ms: Int64 | None = None
    out_per_second: float | None = None
    enabled: bool | None = None


class GroupLines(Body):
    groups: Rows[GroupLine] = always(factory=list)
    is_last: bool = always(True)


class GetGroupFigures(
    Command,
    code=30_326,
    permission="describe",
    resources={"group": "group"},
    answer_max=AnswerMax(lines=PAGE_MAX),
):
    """Body of the answer: GroupLines in the order of their names, from behind `after` on, or only `group`."""

    after: Name = ""
    count: Int32 = PAGE_MAX
    group: Name | None = None
