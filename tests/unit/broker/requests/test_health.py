"""Subscriptions that disagree, as a broker reports them."""

from __future__ import annotations

from metaq.broker.requests.health import conflicts_of
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.protocol.bodies import SubscriptionData


def member(number: int, **filters: str) -> Member:
    subscriptions = {
        topic: SubscriptionData(topic=topic, sub_string=expression) for topic, expression in filters.items()
    }
    return Member(number, f"c{number}", 0, 0, "h:1", 0, subscriptions)


def disagreements(*members: Member) -> list[tuple[str, tuple[str, ...]]]:
    group = ConsumerGroup("g")
    for each in members:
        group.put(each)
    return [(conflict.topic, conflict.wanted) for conflict in conflicts_of(group)]


def test_members_that_agree() -> None:
    assert disagreements() == []
    assert disagreements(member(1, T="a", U="*"), member(2, T="a", U="*")) == []


def test_different_filters_and_topics() -> None:
    assert disagreements(member(1, T="a"), member(2, T="b"), member(3, T="a")) == [("T", ("a", "b"))]
    assert disagreements(member(1, T="*"), member(2, T="*", U="*")) == [("U", ("*", "not subscribed"))]


def test_retry_topics_and_new_members_are_no_conflict() -> None:
    first = member(1, T="*")
    first.subscriptions["%RETRY%g"] = SubscriptionData(topic="%RETRY%g", sub_string="*")
    assert disagreements(first, member(2, T="*"), member(3)) == []


def test_a_long_filter_is_cut() -> None:
    [(_, wanted)] = disagreements(member(1, T="a" * 5_000), member(2, T="b"))
    assert max(map(len, wanted)) == 1_024


def test_each_subscription_is_looked_at_once() -> None:
    looks = 0

    class Topic(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    group = ConsumerGroup("g")
    for number in range(200):
        each = member(number)
        names = [Topic(f"t{number}-{topic}") for topic in range(10)]
        each.subscriptions = {name: SubscriptionData(topic=name, sub_string="*") for name in names}
        group.members[number] = each
    looks = 0
    assert len(list(conflicts_of(group))) == 2_000
    assert looks < 10 * 2_000, "and not once for each of 200 members"
