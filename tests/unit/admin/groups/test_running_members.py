"""Members of a group whose subscriptions differ."""

from __future__ import annotations

from metaq.admin import RunningMember, Subscription
from metaq.admin.groups.running_members import conflicts_of


def member(name: str, error: str | None = None, **filters: str) -> RunningMember:
    subscriptions = tuple(Subscription(topic, text, "TAG") for topic, text in filters.items())
    return RunningMember(name, subscriptions=subscriptions, error=error)


def test_members_conflict_if_their_filters_or_topics_differ() -> None:
    assert conflicts_of([]) == ()
    assert conflicts_of([member("one", orders="a"), member("two", orders="a")]) == ()
    found = conflicts_of(
        [
            member("one", orders="a", **{"%RETRY%g": "*"}),
            member("two", orders="b", audit="*"),
            member("mute", error="timeout"),
        ]
    )
    assert [(conflict.topic, conflict.expressions) for conflict in found] == [
        ("audit", {"one": None, "two": "TAG *"}),
        ("orders", {"one": "TAG a", "two": "TAG b"}),
    ]
