"""The policy of the data plane: it gets the entries that changed, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, StandingSubscription, tag_code
from metaq.broker.state import policy
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.filters import Filters
from metaq.broker.state.policy import PolicyFeed, compile_subscription
from metaq.protocol.bodies import ConsumerData, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from metaq.settings import GroupPolicy, SubscriptionPolicy, TopicPolicy
from tests.support.waiting import until


class FakePlane:
    """Keeps the policy it was given."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicPolicy] = {}
        self.groups: dict[str, GroupPolicy] = {}
        self.members: dict[tuple[str, int], list[tuple[int, StandingSubscription]]] = {}
        self.calls = 0
        self.groups_in_call: list[list[str]] = []

    def put_topics(self, topics: Sequence[TopicPolicy]) -> None:
        self.calls += 1
        self.topics |= {topic.name: topic for topic in topics}

    def remove_topic(self, name: str) -> None:
        self.calls += 1
        del self.topics[name]

    def put_groups(self, groups: Sequence[GroupPolicy]) -> None:
        self.calls += 1
        self.groups |= {group.name: group for group in groups}
        self.groups_in_call.append([group.name for group in groups])

    def remove_group(self, name: str) -> None:
        self.calls += 1
        del self.groups[name]

    def put_member(
        self,
        group: str,
        connection: int,
        broadcasting: bool,
        subscriptions: list[tuple[int, StandingSubscription]],
    ) -> None:
        assert group in self.groups
        self.members[group, connection] = subscriptions

    def remove_member(self, group: str, connection: int) -> None:
        del self.members[group, connection]


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


@pytest.fixture
def clients(tables: Any) -> Clients:
    return Clients(tables.clock, 120.0, lambda group, change: None)


@pytest.fixture
def feed(plane: FakePlane, tables: Any, clients: Clients) -> PolicyFeed:
    feed = PolicyFeed(cast(BrokerPlane, plane), tables.topics, tables.groups, clients, Filters())
    clients.member_changed = feed.send_member
    return feed


def test_everything_goes_down_at_the_start_in_two_calls(
    feed: PolicyFeed, plane: FakePlane, tables: Any
) -> None:
    feed.send_all()
    assert plane.calls == 2
    assert set(plane.topics) == {topic.topic_name for topic in tables.topics}
    assert not plane.topics["SCHEDULE_TOPIC_XXXX"].client_writable
    assert plane.topics["BenchmarkTest"].client_writable
    assert "TOOLS_CONSUMER" in plane.groups


def test_only_changes_go_down(feed: PolicyFeed, plane: FakePlane, tables: Any) -> None:
    feed.send_all()
    before = plane.calls
    feed.send_topics(["BenchmarkTest"])
    feed.send_groups(["TOOLS_CONSUMER", "nobody"])
    assert plane.calls == before
    tables.topics.put(TopicConfig(topic_name="t", read_queue_nums=2, write_queue_nums=3, perm=4))
    feed.send_topics(["t"])
    assert plane.topics["t"] == TopicPolicy("t", read_queues=2, write_queues=3, permission=4)
    tables.topics.remove("t")
    feed.send_topics(["t"])
    assert "t" not in plane.topics
    assert plane.calls == before + 2


def test_a_group_carries_the_topics_of_its_live_subscriptions(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients
) -> None:
    tables.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False, broker_id=0))
    data = ConsumerData(
        group_name="g",
        message_model="BROADCASTING",
        subscription_data_set=[SubscriptionData(topic="t", sub_string="a || b", sub_version=7)],
    )
    clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    feed.send_groups(["g"])
    policy = plane.groups["g"]
    assert (policy.consume_enabled, policy.broadcasting) == (False, True)
    # The filter is the member's own: a connection that is no member gets none.
    assert policy.subscriptions == (SubscriptionPolicy("t", version=-1),)
    assert [version for version, _ in plane.members["g", 1]] == [7]
    clients.remove_connection(1)
    feed.send_groups(["g"])
    assert plane.groups["g"].subscriptions == ()
    assert plane.members == {}
    tables.groups.remove("g")
    feed.send_groups(["g"])
    assert "g" not in plane.groups


def test_members_that_come_and_go_cost_nothing_for_the_topics_of_their_group(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def noted(topic: str) -> SubscriptionPolicy:
        made.append(topic)
        return SubscriptionPolicy(topic, -1)

    monkeypatch.setattr(policy, "_for_newcomers", noted)
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))

    def join(connection: int, *topics: str) -> None:
        data = ConsumerData(
            group_name="g", subscription_data_set=[SubscriptionData(topic=topic) for topic in topics]
        )
        clients.put_consumer(data, Member(connection, f"c{connection}", 0, 513, "h:1", 0))
        feed.send_groups(["g"])

    join(1, "t", "u")
    assert made == ["t", "u"]
    join(2)
    clients.remove_connection(2)
    feed.send_groups(["g"])
    assert made == ["t", "u"]
    join(3, "v")
    assert [known.topic for known in plane.groups["g"].subscriptions] == ["t", "u", "v"]
    clients.remove_connection(1)
    feed.send_groups(["g"])
    assert [known.topic for known in plane.groups["g"].subscriptions] == ["v"]


def subscribe(clients: Clients, group: str, connection: int, topics: Sequence[str]) -> None:
    data = ConsumerData(
        group_name=group, subscription_data_set=[SubscriptionData(topic=topic) for topic in topics]
    )
    clients.put_consumer(data, Member(connection, f"c{connection}", 0, 513, "h:1", 0))


def sent_topics(plane: FakePlane, group: str) -> list[str]:
    return [known.topic for known in plane.groups[group].subscriptions]


def test_changes_of_members_gather(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients._changed = lambda group, change: feed.members_changed(group.name)
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    made: list[str] = []

    def noted(topic: str) -> SubscriptionPolicy:
        made.append(topic)
        return SubscriptionPolicy(topic, -1)

    monkeypatch.setattr(policy, "_for_newcomers", noted)

    async def scenario() -> None:
        subscribe(clients, "g", 1, ["t"])
        assert sent_topics(plane, "g") == ["t"], "a new group goes down at once"
        made.clear()
        for _ in range(50):
            subscribe(clients, "g", 2, ["u"])
            # Whatever the group shows, the member has its own subscriptions at once.
            assert len(plane.members["g", 2]) == 1
            subscribe(clients, "g", 2, ["u", "v"])
            assert len(plane.members["g", 2]) == 2
            # A change of the rules goes down at once, and does not compile the topics.
            tables.groups.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
            feed.send_groups(["g"])
            assert not plane.groups["g"].consume_enabled
        assert made == []
        await until(lambda: sent_topics(plane, "g") == ["t", "u", "v"])
        assert made == ["t", "u", "v"]

    asyncio.run(scenario())


def test_many_changed_groups_go_down_in_parts(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients._changed = lambda group, change: feed.members_changed(group.name)
    monkeypatch.setattr(policy, "TOPICS_AT_ONCE", 2 * (policy.GROUP_COSTS + 3))
    names = [f"g{number}" for number in range(7)]
    for name in names:
        tables.groups.put(SubscriptionGroupConfig(group_name=name))

    async def scenario() -> None:
        for name in names:
            subscribe(clients, name, 1, ["t"])
        plane.groups_in_call.clear()
        for name in names:
            subscribe(clients, name, 1, ["t", "u", "v"])
        await until(lambda: all(sent_topics(plane, name) == ["t", "u", "v"] for name in names))
        assert plane.groups_in_call == [["g0", "g1"], ["g2", "g3"], ["g4", "g5"], ["g6"]]

    asyncio.run(scenario())


def test_a_feed_that_has_stopped_sends_nothing_more(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "GATHER_S", 0.0)
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    feed.send_groups(["g"])

    async def scenario() -> None:
        subscribe(clients, "g", 1, ["t"])
        feed.members_changed("g")
        feed.stop()
        before = plane.calls
        for _ in range(10):
            await asyncio.sleep(0)
        assert plane.calls == before

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", []),
        ("", []),
        ("a", ["a"]),
        ("a||b", ["a", "b"]),
        (" a || b || ", ["a", "b"]),
        ("ü", ["ü"]),
    ],
)
def test_tags_become_hash_codes(expression: str, tags: list[str]) -> None:
    subscription = SubscriptionData(topic="t", sub_string=expression, sub_version=7)
    compiled = compile_subscription(subscription, Filters())
    assert compiled.tag_codes == tuple(sorted(tag_code(tag) for tag in tags))
    assert compiled.expression_type == "TAG"
    assert compiled.version == 7


def sql(expression: str, filters: Filters, expression_type: str = "SQL92") -> SubscriptionPolicy:
    return compile_subscription(
        SubscriptionData(topic="t", sub_string=expression, sub_version=7, expression_type=expression_type),
        filters,
    )


def test_expressions_become_programs() -> None:
    compiled = sql("a = 1", Filters())
    assert (compiled.expression_type, compiled.tag_codes, compiled.version) == ("SQL92", (), 7)
    assert compiled.program == (("property", "a"), ("integer", 1), ("equal", None))
    assert compiled.refusal is None


@pytest.mark.parametrize(
    ("expression", "expression_type", "property_filter", "code", "says"),
    [
        ("a || b", "SQL92", True, 23, "line 1, column 3"),
        ("", "SQL92", True, 23, "empty"),
        ("a = 1", "GROOVY", True, 23, "GROOVY"),
        ("a = 1", "SQL92", False, 1, "does not support consumer to filter message by SQL92"),
    ],
)
def test_a_filter_that_cannot_be_served_refuses_its_own_pulls_alone(
    expression: str, expression_type: str, property_filter: bool, code: int, says: str
) -> None:
    compiled = sql(expression, Filters(property_filter), expression_type)
    assert compiled.program is None and compiled.tag_codes == ()
    assert compiled.refusal is not None
    assert compiled.refusal[0] == code and says in compiled.refusal[1]


def test_a_filter_is_compiled_when_it_is_new_and_not_whenever_its_group_changes(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_filter = Filters.compile

    def compile_noted(self: Filters, expression_type: str, expression: str) -> Any:
        compiled.append(expression)
        return compile_filter(self, expression_type, expression)

    monkeypatch.setattr(Filters, "compile", compile_noted)
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))

    def subscribe(expression: str, version: int, connection: int = 1) -> tuple[int, StandingSubscription]:
        subscription = SubscriptionData(
            topic="t", sub_string=expression, sub_version=version, expression_type="SQL92"
        )
        data = ConsumerData(group_name="g", subscription_data_set=[subscription])
        clients.put_consumer(data, Member(connection, f"c{connection}", 0, 513, "h:1", 0))
        feed.send_groups(["g"])
        (put,) = plane.members["g", connection]
        return put

    first = subscribe("a = 1", 7)
    tables.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    feed.send_groups(["g"])
    again = subscribe("a = 1", 8)
    assert again[1] is first[1] and (first[0], again[0]) == (7, 8)
    assert subscribe("a = 1", 9, connection=2)[1] is first[1]
    assert compiled == ["a = 1"]
    assert subscribe("a = 2", 9)[1] is not first[1]
    assert compiled == ["a = 1", "a = 2"]
    # Nobody wants the first filter any more, so it is forgotten.
    clients.remove_connection(2)
    del first, again
    subscribe("a = 1", 10)
    assert compiled == ["a = 1", "a = 2", "a = 1"]


def test_members_go_down_with_a_group_that_is_new_to_the_data_plane(
    feed: PolicyFeed, plane: FakePlane, tables: Any, clients: Clients
) -> None:
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="t")])
    clients.put_consumer(data, Member(1, "c", 0, 513, "h:1", 0))
    assert plane.members == {}
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    feed.send_groups(["g"])
    assert list(plane.members) == [("g", 1)]


def test_too_many_tags_are_refused_and_none_is_dropped_in_silence() -> None:
    subscription = SubscriptionData(topic="t", sub_string="||".join(map(str, range(101))))
    compiled = compile_subscription(subscription, Filters(tags_max=100))
    assert compiled.refusal == (
        23,
        "the subscription names 101 tags, the limit is 100 (subscription_tags_max)",
    )
    assert compile_subscription(subscription, Filters(tags_max=101)).refusal is None
