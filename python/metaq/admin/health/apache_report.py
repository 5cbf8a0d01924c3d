"""Backlogs and dead letters of an Apache broker, with a bounded number of requests.

One request returns the progress of all groups. Further requests go to the groups with the largest backlogs
alone: whether they have members, and how long their messages wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.errors import MetaqError
from metaq.protocol import names
from metaq.protocol.bodies import (
    ConsumerConnection,
    ConsumeStatsList,
    ConsumeTimeSpans,
    HaReplica,
    HaStatus,
    TopicList,
    TopicStatsTable,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import GetBrokerHaStatus
from metaq.protocol.commands.clients import GetConsumerConnectionList
from metaq.protocol.commands.health import Backlog, DeadLetterCount
from metaq.protocol.commands.offsets import GetBrokerConsumeStats, QueryConsumeTimeSpan
from metaq.protocol.commands.routes import GetAllTopicListFromNameServer
from metaq.protocol.commands.topics import GetTopicStatsInfo

LOOKED_AT_MAX: Final = 20
"""Backlogs, and groups with dead letters, that are looked at closely."""
UNKNOWN_AT_APACHE: Final = (
    "conflicting subscriptions",
    "refused messages",
    "waiting limits",
    "whether it is ready",
)


@dataclass(frozen=True, slots=True)
class Consumption:
    """The backlogs and dead letters that were found, and what could not be found out, in words."""

    backlogs: tuple[Backlog, ...] = ()
    dead_letters: tuple[DeadLetterCount, ...] = ()
    unknown: tuple[str, ...] = ()


async def consumption_of(calls: Calls, address: str) -> Consumption:
    """Asks one master. A question that it refuses or cannot answer becomes something unknown."""
    unknown: list[str] = []
    places: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        places = await _places(calls, address)
    except MetaqError as error:
        unknown.append(f"the backlogs of its groups ({error})")
    found = sorted(
        (
            (waiting, group, topic)
            for (group, topic), (waiting, _) in places.items()
            if waiting > 0 and _is_of_users(group, topic)
        ),
        reverse=True,
    )
    if len(found) > LOOKED_AT_MAX:
        unknown.append(f"more than its {LOOKED_AT_MAX} largest backlogs in one answer")
    backlogs = await in_parallel(found[:LOOKED_AT_MAX], lambda one: _backlog(calls, address, *one), at_once=4)
    letters: tuple[DeadLetterCount, ...] = ()
    try:
        letters = await _dead_letters(calls, address, places, unknown)
    except MetaqError as error:
        unknown.append(f"its dead letters ({error})")
    return Consumption(tuple(backlogs.values()), letters, tuple(unknown))


async def replicas_of(calls: Calls, address: str) -> tuple[HaReplica, ...]:
    """Returns the replicas that copy from a master now. Raises Unreachable or Refused."""
    reply = await calls.ask(address, GetBrokerHaStatus())
    return tuple(HaStatus.decode(reply.body).ha_connection_info)


def _is_of_users(group: str, topic: str) -> bool:
    return not names.is_system_group(group) and not topic.startswith(names.DEAD_LETTER_PREFIX)


async def _places(calls: Calls, address: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Group and topic → the messages that wait, and the offsets that are committed, of all queues."""
    reply = await calls.ask(address, GetBrokerConsumeStats())
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for of_group in ConsumeStatsList.decode(reply.body).consume_stats_list:
        for group, stats in of_group.items():
            for queue, place in (item for each in stats for item in each.offset_table.items()):
                waiting, committed = places.get((group, queue.topic), (0, 0))
                places[group, queue.topic] = (
                    waiting + max(place.broker_offset - place.consumer_offset, 0),
                    committed + place.consumer_offset,
                )
    return places


async def _backlog(calls: Calls, address: str, messages: int, group: str, topic: str) -> Backlog:
    offline = ResponseCode.CONSUMER_NOT_ONLINE
    members: int | None = None
    waiting_ms: int | None = None
    try:
        command = GetConsumerConnectionList(consumer_group=group)
        reply = await calls.ask(address, command, accept=(offline,))
        is_offline = reply.code == offline
        members = 0 if is_offline else len(ConsumerConnection.decode(reply.body).connection_set)
        reply = await calls.ask(address, QueryConsumeTimeSpan(topic=topic, group=group))
        spans = ConsumeTimeSpans.decode(reply.body).consume_time_span_set
        waiting_ms = max((span.delay_time for span in spans if span.delay_time > 0), default=None)
    except MetaqError:
        pass  # The finding then says less.
    return Backlog(group, topic, messages, waiting_ms, members)


async def _dead_letters(
    calls: Calls,
    address: str,
    places: dict[tuple[str, str], tuple[int, int]],
    unknown: list[str],
) -> tuple[DeadLetterCount, ...]:
    reply = await calls.ask_nameserver(GetAllTopicListFromNameServer())
    topics = [
        topic
        for topic in sorted(TopicList.decode(reply.body).topic_list)
        if topic.startswith(names.DEAD_LETTER_PREFIX)
    ]
    if len(topics) > LOOKED_AT_MAX:
        unknown.append(f"the dead letters of {len(topics) - LOOKED_AT_MAX:,} more groups in one answer")

    async def count(topic: str) -> DeadLetterCount | None:
        missing = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
        reply = await calls.ask(address, GetTopicStatsInfo(topic=topic), accept=missing)
        if reply.code in missing:
            return None  # Another broker has it.
        queues = TopicStatsTable.decode(reply.body).offset_table.values()
        group = topic.removeprefix(names.DEAD_LETTER_PREFIX)
        stored = sum(queue.max_offset for queue in queues)
        first = sum(queue.min_offset for queue in queues)
        messages = stored - max(first, places.get((group, topic), (0, 0))[1])
        newest = max((queue.last_update_timestamp for queue in queues), default=0)
        return DeadLetterCount(group, messages, newest or None) if messages > 0 else None

    found = await in_parallel(topics[:LOOKED_AT_MAX], count, at_once=4)
    return tuple(letters for letters in found.values() if letters is not None)
