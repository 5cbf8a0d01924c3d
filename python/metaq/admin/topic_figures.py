"""Figures of topics: a request per broker and 1,000 topics, or some per topic on other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from metaq.admin.calls import UNKNOWN_REQUEST, Calls, in_parallel
from metaq.admin.kinds import topic_kind, topics_of_brokers
from metaq.admin.results import TopicFigures, TopicKind, TopicName, TopicOverview
from metaq.protocol.bodies import (
    BrokerStatsData,
    GroupList,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicStatsTable,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import ViewBrokerStatsData
from metaq.protocol.commands.figures import PAGE_MAX, GetTopicFigures, TopicLine, TopicLines
from metaq.protocol.commands.groups import QueryTopicConsumeByWho
from metaq.protocol.commands.offsets import (
    GetEarliestMessageStoreTime,
    QueryConsumerOffset,
    QueueOffset,
    StoreTime,
)
from metaq.protocol.commands.topics import GetAllTopicConfig, GetTopicConfig, GetTopicStatsInfo, TopicPage
from metaq.protocol.errors import ProtocolError
from metaq.protocol.names import DEAD_LETTER_PREFIX

PAGES_MAX: Final = 1_000
JOINED_AT_ONCE: Final = 500
"""Topics or groups that are added up before other coroutines run."""


class _Stats(TopicStatsTable):
    """Brokers before 5.0 do not report the rate."""

    topic_put_tps: float | None = None  # type: ignore[assignment]


Advance = Callable[[int], None]
"""Called with the number of topics or groups that were read since the last call."""


async def overview(
    calls: Calls,
    brokers: Sequence[str],
    chosen: Callable[[TopicName], bool] | None,
    advance: Advance | None,
    *,
    one_by_one: bool = True,
) -> TopicOverview:
    """Returns the figures of the chosen topics of these brokers. Without `one_by_one`, a broker that needs a
    request for each topic is asked only for their names and queues."""
    of_brokers = topics_of_brokers(await calls.brokers())
    missing: dict[str, str] = {}

    def is_chosen(name: str) -> bool:
        return chosen is None or chosen(TopicName(name, topic_kind(name, of_brokers)))

    async def one(broker: str) -> dict[str, TopicLine]:
        lines: dict[str, TopicLine] = {}
        after = ""
        for _ in range(PAGES_MAX):
            reply = await calls.ask(broker, GetTopicFigures(after=after), accept=(UNKNOWN_REQUEST,))
            if reply.code == UNKNOWN_REQUEST:
                missing[broker] = (
                    f"{broker} does not report the age of messages and the rate out in a list; "
                    "`metaq topic show` asks for them"
                )
                return await _one_by_one(calls, broker, is_chosen, advance, names_only=not one_by_one)
            page = TopicLines.decode(reply.body)
            lines.update({line.name: line for line in page.topics if is_chosen(line.name)})
            if advance is not None:
                advance(len(page.topics))
            if page.is_last or not page.topics:
                return lines
            before, after = after, page.topics[-1].name
            if after <= before:
                break
        raise endless(broker, "topics")

    found, failures = await calls.from_each(brokers, one)
    names = sorted({name for lines in found.values() for name in lines})
    ordered = sorted(found.items())
    unknown = frozenset() if one_by_one else frozenset(missing)
    topics: list[TopicFigures] = []
    for number, name in enumerate(names):
        if number % JOINED_AT_ONCE == 0:
            await asyncio.sleep(0)
        lines = {broker: of_broker[name] for broker, of_broker in ordered if name in of_broker}
        topics.append(_joined(topic_kind(name, of_brokers), lines, unknown))
    return TopicOverview(
        tuple(topics), failures, tuple(missing[broker] for broker in sorted(missing)), tuple(sorted(found))
    )


def endless(broker: str, what: str) -> ProtocolError:
    """Returns the error for a broker whose list does not go on, or does not end."""
    return ProtocolError(f"broker {broker} does not end its list of {what}")


async def of_names(calls: Calls, brokers_of: Mapping[str, Collection[str]]) -> TopicOverview:
    """Returns the figures of single topics. `brokers_of` says where each of them lives. Other topics cost
    nothing. A topic that is gone is left out."""
    of_brokers = topics_of_brokers(await calls.brokers())

    async def one(broker: str) -> dict[str, TopicLine]:
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
    topics = tuple(_joined(topic_kind(name, of_brokers), lines) for name, lines in by_name.items() if lines)
    return TopicOverview(topics, failures, (), tuple(sorted(found)))


async def _listed_line(calls: Calls, broker: str, topic: str) -> TopicLine | None:
    gone = ResponseCode.TOPIC_NOT_EXIST
    reply = await calls.ask(broker, GetTopicFigures(topic=topic), accept=(gone,))
    return None if reply.code == gone else TopicLines.decode(reply.body).topics[0]


async def _asked_line(calls: Calls, broker: str, topic: str) -> TopicLine | None:
    gone = ResponseCode.TOPIC_NOT_EXIST
    config, stats = await asyncio.gather(
        calls.ask(broker, GetTopicConfig(topic=topic), accept=(gone,)),
        calls.ask(broker, GetTopicStatsInfo(topic=topic), accept=(gone,)),
    )
    if gone in (config.code, stats.code):
        return None
    return _line(TopicConfig.decode(config.body), _Stats.decode(stats.body))


async def figures_of(calls: Calls, brokers: Sequence[str], topic: str) -> TopicFigures:
    """Returns the figures of one topic, as far as its brokers know them."""
    of_brokers = topics_of_brokers(await calls.brokers())

    async def one(broker: str) -> TopicLine:
        reply = await calls.ask(broker, GetTopicFigures(topic=topic), accept=(UNKNOWN_REQUEST,))
        if reply.code == UNKNOWN_REQUEST:
            return await _everything(calls, broker, topic)
        return TopicLines.decode(reply.body).topics[0]

    found, _ = await calls.from_each(brokers, one)
    return _joined(topic_kind(topic, of_brokers), {broker: found[broker] for broker in sorted(found)})


async def _one_by_one(
    calls: Calls,
    broker: str,
    is_chosen: Callable[[str], bool],
    advance: Advance | None,
    *,
    names_only: bool,
) -> dict[str, TopicLine]:
    configs = [
        config
        async for page in _config_pages(calls, broker)
        for config in page.values()
        if is_chosen(config.topic_name)
    ]
    by_name = {config.topic_name: config for config in configs}
    if names_only:
        if advance is not None:
            advance(len(by_name))
        return {name: _line(config, _Stats()) for name, config in by_name.items()}

    async def one(name: str) -> TopicLine | None:
        gone = ResponseCode.TOPIC_NOT_EXIST
        reply = await calls.ask(broker, GetTopicStatsInfo(topic=name), accept=(gone,))
        if advance is not None:
            advance(1)
        if reply.code == gone:
            return None
        stats = _Stats.decode(reply.body)
        line = _line(by_name[name], stats)
        if name.startswith(DEAD_LETTER_PREFIX):
            line.waiting = await _waiting(calls, broker, name, stats)
        return line

    lines = await in_parallel(by_name, one)
    return {name: line for name, line in lines.items() if line is not None}


async def _waiting(calls: Calls, broker: str, topic: str, stats: _Stats) -> int:
    """Counts the dead letters that were not sent again, with a request for each queue."""
    group = topic.removeprefix(DEAD_LETTER_PREFIX)
    nothing = ResponseCode.QUERY_NOT_FOUND

    async def one(queue_id: int) -> int:
        command = QueryConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        reply = await calls.ask(broker, command, accept=(nothing,))
        return 0 if reply.code == nothing else reply.header(QueueOffset).queue_offset

    places = {queue.queue_id: place for queue, place in stats.offset_table.items() if _messages(place) > 0}
    committed = await in_parallel(places, one)
    return sum(
        max(place.max_offset - max(place.min_offset, committed[queue_id]), 0)
        for queue_id, place in places.items()
    )


async def _config_pages(calls: Calls, broker: str) -> AsyncIterator[dict[str, TopicConfig]]:
    """Yields the settings of all topics of a broker. Brokers before 5.4 send all in one page."""
    seen: set[str] = set()
    version: str | None = None
    for _ in range(PAGES_MAX):
        command = GetAllTopicConfig(topic_seq=len(seen), data_version=version, max_topic_num=PAGE_MAX)
        reply = await calls.ask(broker, command)
        table = TopicConfigTable.decode(reply.body)
        fresh = {name: config for name, config in table.topic_config_table.items() if name not in seen}
        yield fresh
        seen.update(fresh)
        total = reply.header(TopicPage).total_topic_num
        if total is None or len(seen) >= total or not fresh:
            return
        version = table.data_version.encode().decode()


async def _everything(calls: Calls, broker: str, topic: str) -> TopicLine:
    """Returns all figures of one topic of a broker that is not one of MetaQ's: a request for each queue and
    each group."""
    config, stats, groups = await asyncio.gather(
        calls.ask(broker, GetTopicConfig(topic=topic)),
        calls.ask(broker, GetTopicStatsInfo(topic=topic)),
        calls.ask(broker, QueryTopicConsumeByWho(topic=topic)),
    )
    table = _Stats.decode(stats.body)
    line = _line(TopicConfig.decode(config.body), table)

    async def first_stored(queue_id: int) -> int:
        command = GetEarliestMessageStoreTime(topic=topic, queue_id=queue_id)
        return (await calls.ask(broker, command)).header(StoreTime).timestamp

    filled = [queue.queue_id for queue, place in table.offset_table.items() if _messages(place) > 0]
    times = [ms for ms in (await in_parallel(filled, first_stored)).values() if ms > 0]
    line.first_stored_ms = min(times) if times else None
    names = GroupList.decode(groups.body).group_list
    rates = await in_parallel(names, lambda group: _rate(calls, broker, "GROUP_GET_NUMS", f"{topic}@{group}"))
    line.out_per_second = sum(rates.values())
    line.in_per_second = await _rate(calls, broker, "TOPIC_PUT_NUMS", topic)
    return line


async def _rate(calls: Calls, broker: str, name: str, key: str) -> float:
    """Messages per second over the last minute. A broker refuses the question for a key that it has never
    counted."""
    command = ViewBrokerStatsData(stats_name=name, stats_key=key)
    reply = await calls.ask(broker, command, accept=(ResponseCode.SYSTEM_ERROR,))
    if reply.code == ResponseCode.SYSTEM_ERROR:
        return 0.0
    return BrokerStatsData.decode(reply.body).stats_minute.tps


def _messages(place: TopicOffset) -> int:
    return max(place.max_offset - place.min_offset, 0)


def _line(config: TopicConfig, stats: _Stats) -> TopicLine:
    places = stats.offset_table.values()
    last_ms = max((place.last_update_timestamp for place in places), default=0)
    return TopicLine(
        name=config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=config.perm,
        messages=sum(map(_messages, places)),
        last_stored_ms=last_ms if last_ms > 0 else None,
        in_per_second=stats.topic_put_tps,
    )


def _joined(
    kind: TopicKind, lines: Mapping[str, TopicLine], unknown: frozenset[str] = frozenset()
) -> TopicFigures:
    """Adds up the figures that brokers have of one topic. The messages of the `unknown` brokers were not
    asked for."""
    parts = list(lines.values())
    is_known = not unknown or unknown.isdisjoint(lines)
    first = [line.first_stored_ms for line in parts if line.messages > 0]
    last = [line.last_stored_ms for line in parts if line.last_stored_ms is not None]
    # An empty topic has no size to tell.
    sizes = [line.size_bytes if line.messages else 0 for line in parts]
    known_first = [ms for ms in first if ms is not None]
    return TopicFigures(
        parts[0].name,
        kind,
        tuple(lines),
        sum(line.read_queues for line in parts),
        sum(line.write_queues for line in parts),
        sum(line.messages for line in parts) if is_known else None,
        None if None in sizes or not is_known else sum(size or 0 for size in sizes),
        min(known_first) if first and is_known and len(known_first) == len(first) else None,
        max(last) if last and is_known else None,
        total([line.in_per_second for line in parts]),
        total([line.out_per_second for line in parts]),
        sum(line.waiting or 0 for line in parts)
        if is_known and all(line.waiting is not None for line in parts)
        else None,
        min((line.waiting_since_ms for line in parts if line.waiting_since_ms is not None), default=None),
    )


def total(rates: Sequence[float | None]) -> float | None:
    """Returns the sum; None if one of them is not known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if rates and len(known) == len(rates) else None
