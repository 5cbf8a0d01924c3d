"""Reports of members of a group on themselves, and subscriptions that differ."""

from __future__ import annotations

import pytest

from metaq.admin import RunningMember, Subscription
from metaq.admin.groups.running_members import _described, conflicts_of
from metaq.protocol.bodies import ConsumerRunningInfo


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


@pytest.mark.parametrize(("started", "shown"), [("1700000000000", 1_700_000_000_000), ("9" * 5_000, None)])
def test_a_start_time_that_is_no_time_is_left_out(started: str, shown: int | None) -> None:
    body = b'{"properties":{"PROP_CONSUMER_START_TIMESTAMP":"%s"}}' % started.encode()
    member = _described("one", ConsumerRunningInfo.decode(body))
    assert (member.client_id, member.started_ms) == ("one", shown)
