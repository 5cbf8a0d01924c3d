"""Figures of groups: a request per broker and 1,000 groups, or some per group on other brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaq.admin.calls import UNKNOWN_REQUEST, Calls, in_parallel
from metaq.admin.groups.group_settings import config_pages
from metaq.admin.kinds import group_kind
from metaq.admin.results import GroupFigures, GroupName, GroupOverview
from metaq.admin.topic_figures import JOINED_AT_ONCE, PAGES_MAX, Advance, endless, total
from metaq.errors import MetaqError
from metaq.protocol.bodies import (
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import GetConsumerConnectionList
from metaq.protocol.commands.figures import GetGroupFigures, GroupLine, GroupLines
from metaq.protocol.commands.offsets import GetBrokerConsumeStats, GetConsumeStats, QueryConsumeTimeSpan

ALL_GROUPS_TIMEOUT_S: Final = 60.0
"""An Apache broker computes the progress of all its groups for one answer."""


@dataclass(slots=True)
class _Backlog:
    """The progress of one group on an Apache broker."""

    lag: int = 0
    out_per_second: float = 0.0
    behind: list[str] = field(default_factory=list)
    """Topics in which messages wait."""

    def add(self, stats: ConsumeStats) -> None:
        self.out_per_second += stats.consume_tps
        for queue, place in stats.offset_table.items():
            waiting = max(place.broker_offset - place.consumer_offset, 0)
            self.lag += waiting
            if waiting and queue.topic not in self.behind:
                self.behind.append(queue.topic)


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
    unreported: set[str] = set()

    async def one(broker: str) -> dict[str, GroupLine]:
        def is_chosen(name: str) -> bool:
            return chosen is None or chosen(GroupName(name, group_kind(name), (broker,)))

        lines: dict[str, GroupLine] = {}
        after = ""
        for _ in range(PAGES_MAX):
            reply = await calls.ask(broker, GetGroupFigures(after=after), accept=(UNKNOWN_REQUEST,))
            if reply.code == UNKNOWN_REQUEST:
                if not one_by_one:
                    missing[broker] = (
                        f"{broker} does not report members and waiting times in a list; "
                        "`metaq group show` asks for them"
                    )
                    lines, has_lags = await _names_and_lags(calls, broker, is_chosen, advance)
                    if not has_lags:
                        unreported.add(broker)
                    return lines
                return await _one_by_one(calls, broker, is_chosen, advance)
            page = GroupLines.decode(reply.body)
            lines.update({line.name: line for line in page.groups if is_chosen(line.name)})
            if advance is not None:
                advance(len(page.groups))
            if page.is_last or not page.groups:
                return lines
            before, after = after, page.groups[-1].name
            if after <= before:
                break
        raise endless(broker, "groups")

    found, failures = await calls.from_each(brokers, one)
    names = sorted({name for lines in found.values() for name in lines})
    ordered, unknown = sorted(found.items()), frozenset(missing)
    groups: list[GroupFigures] = []
    for number, name in enumerate(names):
        if number % JOINED_AT_ONCE == 0:
            await asyncio.sleep(0)
        lines = {broker: of_broker[name] for broker, of_broker in ordered if name in of_broker}
        groups.append(_joined(lines, unknown, unreported))
    return GroupOverview(
        tuple(groups), failures, tuple(missing[broker] for broker in sorted(missing)), tuple(sorted(found))
    )


async def of_names(calls: Calls, brokers_of: Mapping[str, Collection[str]]) -> GroupOverview:
    """Returns the figures of single groups. `brokers_of` says where each of them lives. Other groups cost
    nothing. A group that is gone is left out of the answer of a MetaQ broker; on others it has no members and
    no lag. Those do not say whether consumption is enabled."""

    async def one(broker: str) -> dict[str, GroupLine]:
        look = _listed_line if await calls.is_metaq(broker) else _asked_line
        names = [name for name, brokers in brokers_of.items() if broker in brokers]
        found = await in_parallel(names, lambda name: look(calls, broker, name))
        return {name: line for name, line in found.items() if line is not None}

    homes = sorted({broker for brokers in brokers_of.values() for broker in brokers})
    found, failures = await calls.from_each(homes, one)
    by_name = {
        name: {broker: found[broker][name] for broker in sorted(found) if name in found[broker]}
        for name in sorted(brokers_of)
    }
    groups = tuple(_joined(lines) for lines in by_name.values() if lines)
    return GroupOverview(groups, failures, (), tuple(sorted(found)))


async def _listed_line(calls: Calls, broker: str, group: str) -> GroupLine | None:
    gone = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    reply = await calls.ask(broker, GetGroupFigures(group=group), accept=(gone,))
    return None if reply.code == gone else GroupLines.decode(reply.body).groups[0]


async def _asked_line(calls: Calls, broker: str, group: str) -> GroupLine:
    reply = await calls.ask(broker, GetConsumeStats(consumer_group=group))
    stats = ConsumeStats.decode(reply.body)
    backlog = None
    if stats.offset_table:
        backlog = _Backlog()
        backlog.add(stats)
    return await _line(calls, broker, group, backlog)


async def _one_by_one(
    calls: Calls, broker: str, is_chosen: Callable[[str], bool], advance: Advance | None
) -> dict[str, GroupLine]:
    enabled = await _enabled(calls, broker, is_chosen)
    reply = await calls.ask(
        broker, GetBrokerConsumeStats(), timeout_s=max(calls.timeout_s, ALL_GROUPS_TIMEOUT_S)
    )
    backlogs = _backlogs(ConsumeStatsList.decode(reply.body))

    async def one(name: str) -> GroupLine:
        line = await _line(calls, broker, name, backlogs.get(name))
        line.enabled = enabled[name]
        if advance is not None:
            advance(1)
        return line

    return await in_parallel(enabled, one)


async def _line(calls: Calls, broker: str, group: str, backlog: _Backlog | None) -> GroupLine:
    line = GroupLine(name=group, members=await _members(calls, broker, group))
    if backlog is not None:
        line.lag, line.out_per_second = backlog.lag, backlog.out_per_second
        for topic in backlog.behind:
            delay_ms = await _delay(calls, broker, group, topic)
            if delay_ms is not None:
                line.lag_ms = max(delay_ms, line.lag_ms or 0)
    return line


async def _names_and_lags(
    calls: Calls, broker: str, is_chosen: Callable[[str], bool], advance: Advance | None
) -> tuple[dict[str, GroupLine], bool]:
    """Returns the lines, and whether they have lags: a broker may take too long to compute them."""
    enabled = await _enabled(calls, broker, is_chosen)
    backlogs: dict[str, _Backlog] | None = None
    with contextlib.suppress(MetaqError):
        reply = await calls.ask(broker, GetBrokerConsumeStats())
        backlogs = _backlogs(ConsumeStatsList.decode(reply.body))
    if advance is not None:
        advance(len(enabled))
    lines = {name: GroupLine(name=name, enabled=is_on) for name, is_on in enabled.items()}
    for name, backlog in (backlogs or {}).items():
        if name in lines:
            lines[name].lag, lines[name].out_per_second = backlog.lag, backlog.out_per_second
    return lines, backlogs is not None


async def _enabled(calls: Calls, broker: str, is_chosen: Callable[[str], bool]) -> dict[str, bool]:
    """Returns the chosen groups, each with whether its consumers get messages."""
    return {
        name: config.consume_enable
        async for page in config_pages(calls, broker)
        for name, config in page.items()
        if is_chosen(name)
    }


def _backlogs(stats: ConsumeStatsList) -> dict[str, _Backlog]:
    """By group; without those that have committed nothing."""
    found: dict[str, _Backlog] = {}
    for by_group in stats.consume_stats_list:
        for group, of_topics in by_group.items():
            for of_topic in of_topics:
                found.setdefault(group, _Backlog()).add(of_topic)
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


def _joined(
    lines: Mapping[str, GroupLine],
    unknown: Collection[str] = frozenset(),
    unreported: Collection[str] = frozenset(),
) -> GroupFigures:
    """Adds up what brokers say of one group. The members and waiting times of the `unknown` brokers were not
    asked for, and the `unreported` ones did not say how much waits."""
    parts = list(lines.values())
    is_known = not any(broker in unknown for broker in lines)
    switches = [line.enabled for line in parts]
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
        # One broker that gives nothing is enough for messages to wait.
        False if False in switches else None if None in switches else True,
        tuple(broker for broker in lines if broker in unreported),
    )
