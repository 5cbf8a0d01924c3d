"""Looks at the queues and the members of one group, with a bounded number of requests.

Queues cost a request per broker, and one per broker for each topic whose waiting times are asked for. Members
cost one request each, up to `MEMBERS_ASKED_MAX`. Queues of a broker that went away stay with their age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from starlette.requests import Request

from metaq.admin.groups.consumer_groups import ConsumerGroups
from metaq.admin.results import (
    BrokerFailure,
    Members,
    Progress,
    QueueProgress,
    RunningMember,
    SubscriptionConflict,
)
from metaq.client.session.routes import Queue
from metaq.console.console import console_of
from metaq.console.live.latest import latest_of
from metaq.console.live.parts import Part
from metaq.console.live.tables import GroupRow
from metaq.protocol.names import RETRY_PREFIX

TIMED_TOPICS_MAX: Final = 20
"""Topics whose waiting times are asked for: those with the most waiting messages."""
MEMBERS_ASKED_MAX: Final = 100


# Queues


@dataclass(frozen=True, slots=True)
class LookedQueue:
    """The progress in one queue."""

    progress: QueueProgress
    stale_ms: int | None = None
    """None if it is current; otherwise when it was true."""


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The progress of a group in all queues that it has committed an offset of."""

    rows: Mapping[Queue, LookedQueue]
    failures: tuple[BrokerFailure, ...]
    untimed: frozenset[str]
    """Topics whose waiting times were not asked for."""
    taken_ms: int


async def look_at_queues(request: Request, group: str, row: GroupRow | None) -> Part[QueueLook]:
    """Returns the progress of a group in each queue."""
    groups = console_of(request).admin.groups
    away = () if row is None else row.missing

    async def ask(before: QueueLook | None) -> QueueLook:
        return await ask_queues(groups, group, away, before)

    return await latest_of(request).ask(("group-queues", group), ask)


async def ask_queues(
    groups: ConsumerGroups, group: str, away: Collection[str], before: QueueLook | None
) -> QueueLook:
    """Asks each broker twice, and once more for each topic whose waiting times count."""
    plain = await groups.progress(group, times_of=())
    timed = timed_topics(plain.queues)
    found = await groups.progress(group, times_of=timed) if timed else plain
    return joined(before, found, away, timed, _now_ms())


def timed_topics(queues: Iterable[QueueProgress]) -> list[str]:
    """Returns the topics in which the most messages wait."""
    waiting: dict[str, int] = {}
    for progress in queues:
        waiting[progress.queue.topic] = waiting.get(progress.queue.topic, 0) + progress.lag
    behind = [topic for topic, lag in waiting.items() if lag > 0]
    return sorted(behind, key=lambda topic: (-waiting[topic], topic))[:TIMED_TOPICS_MAX]


def joined(
    before: QueueLook | None, found: Progress, away: Collection[str], timed: Collection[str], now_ms: int
) -> QueueLook:
    """Returns the new look, with the old rows of brokers that did not answer."""
    rows = {progress.queue: LookedQueue(progress) for progress in found.queues}
    gone = {*away, *(failure.broker for failure in found.failures)}
    for queue, old in before.rows.items() if before is not None else ():
        if queue.broker in gone and queue not in rows:
            assert before is not None
            rows[queue] = LookedQueue(old.progress, old.stale_ms or before.taken_ms)
    topics = {queue.topic for queue in rows}
    return QueueLook(dict(sorted(rows.items())), found.failures, frozenset(topics.difference(timed)), now_ms)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The progress of a group in one topic."""

    topic: str
    queues: int
    lag: int
    lag_ms: int | None
    is_stale: bool

    @property
    def is_retry(self) -> bool:
        return self.topic.startswith(RETRY_PREFIX)


def topic_rows(rows: Iterable[LookedQueue]) -> tuple[TopicLag, ...]:
    """Returns the topics of a group, the one with the most waiting messages first."""
    by_topic: dict[str, list[LookedQueue]] = {}
    for row in rows:
        by_topic.setdefault(row.progress.queue.topic, []).append(row)
    found = [_topic_lag(topic, of_topic) for topic, of_topic in by_topic.items()]
    return tuple(sorted(found, key=lambda one: (-one.lag, one.topic)))


def _topic_lag(topic: str, rows: list[LookedQueue]) -> TopicLag:
    waits = [row.progress.lag_ms for row in rows if row.progress.lag and row.progress.lag_ms is not None]
    return TopicLag(
        topic,
        len(rows),
        sum(row.progress.lag for row in rows),
        max(waits, default=None),
        any(row.stale_ms is not None for row in rows),
    )


# Members


@dataclass(frozen=True, slots=True)
class MemberLook:
    """The clients of a group, and the reports of the first of them."""

    members: Members
    running: Mapping[str, RunningMember]
    """By client id; at most `MEMBERS_ASKED_MAX`."""
    conflicts: tuple[SubscriptionConflict, ...]

    @property
    def knows_all(self) -> bool:
        """Whether every member has said which queues it consumes."""
        reports = self.running.values()
        answered = sum(report.error is None for report in reports)
        return answered == len(self.members.members) and not self.members.failures

    @property
    def owners(self) -> dict[Queue, tuple[str, ...]]:
        """The members that consume each queue."""
        found: dict[Queue, tuple[str, ...]] = {}
        for client_id, report in sorted(self.running.items()):
            for queue in report.queues:
                found[queue] = (*found.get(queue, ()), client_id)
        return found


async def look_at_members(request: Request, group: str) -> Part[MemberLook]:
    """Returns the clients of a group. They are asked for the queues that they consume."""
    groups = console_of(request).admin.groups

    async def ask(_: MemberLook | None) -> MemberLook:
        return await ask_members(groups, group)

    return await latest_of(request).ask(("group-members", group), ask)


async def ask_members(groups: ConsumerGroups, group: str) -> MemberLook:
    """Asks each broker for the members, and the first `MEMBERS_ASKED_MAX` of them for their queues."""
    members = await groups.members(group)
    asked = [member.client_id for member in members.members[:MEMBERS_ASKED_MAX]]
    if not asked:
        return MemberLook(members, {}, ())
    found = await groups.running(group, client_ids=frozenset(asked))
    return MemberLook(members, {report.client_id: report for report in found.members}, found.conflicts)


# Queues with their owners


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A line of the table of queues."""

    progress: QueueProgress
    stale_ms: int | None
    owners: tuple[str, ...] | None
    """None if it is not known who consumes the queue; empty if nobody does."""
    kind: str = field(default="normal")

    COLUMNS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "name": lambda row: row.progress.queue,
        "queue": lambda row: row.progress.queue,
        "owner": lambda row: row.owners or None,
        "committed": lambda row: row.progress.committed_offset,
        "end": lambda row: row.progress.end_offset,
        "lag": lambda row: row.progress.lag,
        "lag_ms": lambda row: row.progress.lag_ms if row.progress.lag else None,
    }

    @property
    def name(self) -> str:
        queue = self.progress.queue
        return f"{queue.topic} {queue.broker}:{queue.id} {' '.join(self.owners or ())}"


def queue_rows(queues: QueueLook | None, members: MemberLook | None) -> list[QueueRow]:
    """Returns the queues of a group with their owners."""
    if queues is None:
        return []
    owners = members.owners if members is not None else {}
    nobody: tuple[str, ...] | None = () if members is not None and members.knows_all else None
    return [
        QueueRow(looked.progress, looked.stale_ms, owners.get(queue, nobody))
        for queue, looked in queues.rows.items()
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
