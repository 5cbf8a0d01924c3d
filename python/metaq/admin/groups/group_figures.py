"""Figures of groups: a request per broker and 1,000 groups, or some per group on other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaq.admin.calls import UNKNOWN_REQUEST, Calls, in_parallel
from metaq.admin.groups.group_settings import config_pages
from metaq.admin.kinds import group_kind
from metaq.admin.results import GroupFigures, GroupName, GroupOverview
from metaq.admin.topic_figures import JOINED_AT_ONCE, Advance, total
from metaq.errors import MetaqError
from metaq.protocol.bodies import ConsumerConnection, ConsumeStatsList, ConsumeTimeSpans
from metaq.protocol.clients import GetConsumerConnectionList
from metaq.protocol.codes import ResponseCode
from metaq.protocol.figures import GetGroupFigures, GroupLine, GroupLines
from metaq.protocol.offsets import GetBrokerConsumeStats, QueryConsumeTimeSpan

ALL_GROUPS_TIMEOUT_S: Final = 60.0
"""An Apache broker computes the progress of all its groups for one answer."""


@dataclass(slots=True)
class _Backlog:
    """The progress of one group, from the answer of an Apache broker on all groups."""

    lag: int = 0
    out_per_second: float = 0.0
    behind: list[str] = field(default_factory=list)
    """Topics in which messages wait."""


async def overview(
    calls: Calls,
    brokers: Sequence[str],
    chosen: Callable[[GroupName], bool] | None,
    advance: Advance | None,
    *,
    one_by_one: bool = True,
) -> GroupOverview:
    """Returns the figures of the chosen groups of these brokers. Without `one_by_one`, a broker that needs
    requests for each group is asked only for their names and their lag in messages."""
    missing: dict[str, str] = {}

    async def one(broker: str) -> dict[str, GroupLine]:
        def is_chosen(name: str) -> bool:
            return chosen is None or chosen(GroupName(name, group_kind(name), (broker,)))

        lines: dict[str, GroupLine] = {}
        after = ""
        while True:
            reply = await calls.ask(broker, GetGroupFigures(after=after), accept=(UNKNOWN_REQUEST,))
            if reply.code == UNKNOWN_REQUEST:
                if not one_by_one:
                    missing[broker] = (
                        f"{broker} does not report members and waiting times in a list; "
                        "`metaq group show` asks for them"
                    )
                    return await _names_and_lags(calls, broker, is_chosen, advance)
                return await _one_by_one(calls, broker, is_chosen, advance)
            page = GroupLines.decode(reply.body)
            lines.update({line.name: line for line in page.groups if is_chosen(line.name)})
            if advance is not None:
                advance(len(page.groups))
            if page.is_last or not page.groups:
                return lines
            after = page.groups[-1].name

    found, failures = await calls.from_each(brokers, one)
    names = sorted({name for lines in found.values() for name in lines})
    ordered, unknown = sorted(found.items()), frozenset(missing)
    groups: list[GroupFigures] = []
    for number, name in enumerate(names):
        if number % JOINED_AT_ONCE == 0:
            await asyncio.sleep(0)
        lines = {broker: of_broker[name] for broker, of_broker in ordered if name in of_broker}
        groups.append(_joined(lines, unknown))
    return GroupOverview(
        tuple(groups), failures, tuple(missing[broker] for broker in sorted(missing)), tuple(sorted(found))
    )


async def _one_by_one(
    calls: Calls, broker: str, is_chosen: Callable[[str], bool], advance: Advance | None
) -> dict[str, GroupLine]:
    names = [name async for page in config_pages(calls, broker) for name in page if is_chosen(name)]
    reply = await calls.ask(
        broker, GetBrokerConsumeStats(), timeout_s=max(calls.timeout_s, ALL_GROUPS_TIMEOUT_S)
    )
    backlogs = _backlogs(ConsumeStatsList.decode(reply.body))

    async def one(name: str) -> GroupLine:
        line = GroupLine(name=name, members=await _members(calls, broker, name))
        backlog = backlogs.get(name)
        if backlog is not None:
            line.lag, line.out_per_second = backlog.lag, backlog.out_per_second
            for topic in backlog.behind:
                delay_ms = await _delay(calls, broker, name, topic)
                if delay_ms is not None:
                    line.lag_ms = max(delay_ms, line.lag_ms or 0)
        if advance is not None:
            advance(1)
        return line

    return await in_parallel(names, one)


async def _names_and_lags(
    calls: Calls, broker: str, is_chosen: Callable[[str], bool], advance: Advance | None
) -> dict[str, GroupLine]:
    """The lags are unknown if the broker takes too long to compute them."""
    names = [name async for page in config_pages(calls, broker) for name in page if is_chosen(name)]
    try:
        reply = await calls.ask(broker, GetBrokerConsumeStats())
        backlogs = _backlogs(ConsumeStatsList.decode(reply.body))
    except MetaqError:
        backlogs = {}
    if advance is not None:
        advance(len(names))
    lines = {name: GroupLine(name=name) for name in names}
    for name in lines.keys() & backlogs.keys():
        lines[name].lag, lines[name].out_per_second = backlogs[name].lag, backlogs[name].out_per_second
    return lines


def _backlogs(stats: ConsumeStatsList) -> dict[str, _Backlog]:
    """By group; without those that have committed nothing."""
    found: dict[str, _Backlog] = {}
    for by_group in stats.consume_stats_list:
        for group, of_topics in by_group.items():
            for of_topic in of_topics:
                backlog = found.setdefault(group, _Backlog())
                backlog.out_per_second += of_topic.consume_tps
                for queue, place in of_topic.offset_table.items():
                    waiting = max(place.broker_offset - place.consumer_offset, 0)
                    backlog.lag += waiting
                    if waiting and queue.topic not in backlog.behind:
                        backlog.behind.append(queue.topic)
    return found


async def _members(calls: Calls, broker: str, group: str) -> int:
    offline = ResponseCode.CONSUMER_NOT_ONLINE
    reply = await calls.ask(broker, GetConsumerConnectionList(consumer_group=group), accept=(offline,))
    if reply.code == offline:
        return 0
    return len({client.client_id for client in ConsumerConnection.decode(reply.body).connection_set})


async def _delay(calls: Calls, broker: str, group: str, topic: str) -> int | None:
    gone = ResponseCode.TOPIC_NOT_EXIST
    reply = await calls.ask(broker, QueryConsumeTimeSpan(topic=topic, group=group), accept=(gone,))
    if reply.code == gone:
        return None
    spans = ConsumeTimeSpans.decode(reply.body).consume_time_span_set
    delays = [span.delay_time for span in spans if span.delay_time > 0]
    return max(delays) if delays else None


def _joined(lines: Mapping[str, GroupLine], unknown: frozenset[str]) -> GroupFigures:
    """Adds up what brokers say of one group. The members and waiting times of the `unknown` brokers were not
    asked for."""
    parts = list(lines.values())
    is_known = unknown.isdisjoint(lines)
    lags = [line.lag for line in parts if line.lag is not None]
    waits = [line.lag_ms for line in parts if line.lag_ms is not None]
    return GroupFigures(
        parts[0].name,
        group_kind(parts[0].name),
        tuple(lines),
        max(line.members for line in parts) if is_known else None,
        sum(lags) if lags else None,
        max(waits) if waits and is_known else None,
        total([line.out_per_second for line in parts]),
    )
