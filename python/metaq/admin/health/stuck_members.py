"""Finds the members behind the queues that brokers report as stuck. It asks few groups, the worst ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.consumer_groups import ConsumerGroups
from metaq.admin.health.state import BrokerState, StuckMember
from metaq.admin.results import RunningMember
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.protocol.commands.health import StuckReport

GROUPS_ASKED_MAX: Final = 10
"""Groups whose members are asked which queues they have."""
MEMBERS_ASKED_MAX: Final = 100
"""Members of one of these groups. Those of a larger group are not named."""


async def stuck_members(
    calls: Calls, groups: ConsumerGroups, brokers: Iterable[BrokerState]
) -> tuple[StuckMember, ...]:
    """Returns the members that hold messages without a commit, the most messages first. Groups behind the
    first ten are without a name."""
    reports: dict[str, list[tuple[BrokerState, StuckReport]]] = {}
    for broker in brokers:
        for report in broker.report.stuck if broker.report is not None and broker.error is None else ():
            reports.setdefault(report.group, []).append((broker, report))
    ordered = sorted(reports, key=lambda group: -sum(report.messages or 0 for _, report in reports[group]))

    async def ask(group: str) -> tuple[RunningMember, ...]:
        try:
            members = (await groups.members(group)).members
            if len(members) > MEMBERS_ASKED_MAX:
                return ()
            return (await groups.running(group)).members
        except MetaqError:
            return ()  # The finding then has no name.

    running = await in_parallel(ordered[:GROUPS_ASKED_MAX], ask)
    found = [
        member for group in ordered for member in _of_group(group, reports[group], running.get(group, ()))
    ]
    return tuple(sorted(found, key=lambda member: (-(member.messages or 0), member.since_ms)))


def _of_group(
    group: str, reports: Iterable[tuple[BrokerState, StuckReport]], members: Iterable[RunningMember]
) -> list[StuckMember]:
    owners = {queue: member.client_id for member in members for queue in member.queues}
    found: dict[str | None, StuckMember] = {}
    for broker, report in reports:
        names = {owners.get(Queue(report.topic, broker.name, queue)) for queue in report.queues}
        # The broker sums up the messages of all queues, so they are those of a member only if it is alone.
        for name in names or {None}:
            messages = report.messages if len(names) == 1 else None
            # The clock of the broker may be another one.
            since_ms = report.since_ms - (broker.clock_skew_ms or 0)
            known = found.get(name)
            if known is not None:
                both = None if known.messages is None or messages is None else known.messages + messages
                topics = tuple(dict.fromkeys((*known.topics, report.topic)))
                found[name] = StuckMember(group, name, topics, both, min(known.since_ms, since_ms))
            else:
                found[name] = StuckMember(group, name, (report.topic,), messages, since_ms)
    return list(found.values())
