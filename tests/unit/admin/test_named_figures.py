"""Figures of single topics and groups: other topics and groups of an Apache broker cost nothing."""

from __future__ import annotations

import asyncio

from metaq.admin import topic_figures
from metaq.admin.groups import group_figures
from metaq.admin.results import GroupFigures
from metaq.protocol.bodies import (
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicStatsTable,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import GetConsumerConnectionList
from metaq.protocol.commands.figures import GetGroupFigures, GroupLine, GroupLines
from metaq.protocol.commands.groups import GetAllSubscriptionGroupConfig
from metaq.protocol.commands.messages import MeasureQueue
from metaq.protocol.commands.offsets import GetBrokerConsumeStats, GetConsumeStats, QueryConsumeTimeSpan
from metaq.protocol.commands.topics import GetAllTopicConfig, GetTopicConfig, GetTopicStatsInfo
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply
from tests.support.scripted_calls import NOT_SUPPORTED, ScriptedCalls

GONE = Reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic", {}, b"")
STATS = ConsumeStats(
    consume_tps=2.0,
    offset_table={MessageQueue("apache", 0, "orders"): OffsetWrapper(broker_offset=9, consumer_offset=4)},
)


def body(value: object) -> Reply:
    return Reply(0, None, {}, value.encode())  # type: ignore[attr-defined]


class Apache:
    """A broker with some topics and groups, which knows only Apache's requests."""

    def __init__(self, size: int, *, is_slow: bool = False) -> None:
        self.names = [f"n{number}" for number in range(size)]
        self.is_slow = is_slow

    def answer(self, broker: str, command: Command) -> Reply:
        match command:
            case GetAllTopicConfig():
                configs = {name: TopicConfig(topic_name=name) for name in self.names}
                return body(TopicConfigTable(topic_config_table=configs))
            case GetTopicConfig(topic=topic):
                return body(TopicConfig(topic_name=topic)) if topic in self.names else GONE
            case GetTopicStatsInfo(topic=topic):
                place = TopicOffset(max_offset=7)
                return body(TopicStatsTable(offset_table={MessageQueue(broker, 0, topic): place}))
            case GetAllSubscriptionGroupConfig():
                groups = {
                    name: SubscriptionGroupConfig(group_name=name, consume_enable=name != "n1")
                    for name in self.names
                }
                return body(SubscriptionGroupTable(subscription_group_table=groups))
            case GetBrokerConsumeStats() if self.is_slow:
                raise Unreachable("no answer in time")
            case GetBrokerConsumeStats():
                return body(ConsumeStatsList(consume_stats_list=[{name: [STATS]} for name in self.names]))
            case GetConsumeStats(consumer_group=group):
                return body(STATS if group in self.names else ConsumeStats())
            case GetConsumerConnectionList():
                return body(ConsumerConnection())
            case QueryConsumeTimeSpan():
                return body(ConsumeTimeSpans())
        return NOT_SUPPORTED


def cost_of(size: int) -> tuple[int, int]:
    """Returns the requests and the bytes of answers for one topic and one group of a broker of this size."""
    calls = ScriptedCalls(Apache(size).answer, "apache")

    async def look() -> None:
        topics = await topic_figures.of_names(calls, {"n0": ("apache",), "missing": ("apache",)})
        assert [(topic.name, topic.messages) for topic in topics.topics] == [("n0", 7)]
        groups = await group_figures.of_names(calls, {"n0": ("apache",)})
        assert [(group.name, group.lag, group.members) for group in groups.groups] == [("n0", 5, 0)]

    asyncio.run(look())
    assert not calls.asked.keys() & {
        "GetBrokerConsumeStats",
        "GetAllTopicConfig",
        "GetAllSubscriptionGroupConfig",
    }
    return calls.asked.total(), calls.answered_bytes


def test_the_cost_does_not_grow_with_the_broker() -> None:
    assert cost_of(3) == cost_of(3_000)
    assert cost_of(3)[0] <= 8


def mixed(command: Command, apache: Apache, broker: str) -> Reply:
    if broker == "apache":
        return apache.answer(broker, command)
    match command:
        case MeasureQueue():
            return GONE
        case GetGroupFigures():
            return body(GroupLines(groups=[GroupLine(name="n0", members=2, lag=10, enabled=True)]))
    return NOT_SUPPORTED


def figures(apache: Apache) -> dict[str, GroupFigures]:
    calls = ScriptedCalls(lambda broker, command: mixed(command, apache, broker), "apache", "metaq")

    async def look() -> dict[str, GroupFigures]:
        brokers = await calls.masters()
        found = await group_figures.overview(calls, brokers, None, None, one_by_one=False)
        return {group.name: group for group in found.groups}

    return asyncio.run(look())


def test_a_broker_that_does_not_compute_lags_in_time_leaves_them_unknown() -> None:
    whole = figures(Apache(2))
    assert (whole["n0"].lag, whole["n0"].unreported, whole["n1"].lag) == (15, (), 5)
    partial = figures(Apache(2, is_slow=True))
    assert (partial["n0"].lag, partial["n0"].unreported) == (10, ("apache",))
    assert (partial["n1"].lag, partial["n1"].unreported) == (None, ("apache",))


def test_a_group_is_enabled_if_all_its_brokers_say_so() -> None:
    found = figures(Apache(2))
    assert (found["n0"].enabled, found["n1"].enabled) == (True, False)


def test_a_group_on_both_kinds_of_brokers_is_added_up() -> None:
    apache = Apache(1)
    calls = ScriptedCalls(lambda broker, command: mixed(command, apache, broker), "apache", "metaq")
    found = asyncio.run(group_figures.of_names(calls, {"n0": ("apache", "metaq")}))
    [group] = found.groups
    assert (group.lag, group.members, group.brokers) == (15, 2, ("apache", "metaq"))
    assert found.brokers == ("apache", "metaq") and not found.failures
