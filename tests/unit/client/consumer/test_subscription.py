"""Filters, delay levels and options are checked when they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.consumer.options import consumer_options
from metaq.client.consumer.subscription import DELAY_LEVELS_S, Retry, Subscription, delay_level
from metaq.errors import UsageError


def test_tags_are_compared_here_too() -> None:
    subscription = Subscription.of("T", tags="A || B")
    assert subscription.wants("A")
    assert subscription.wants("B")
    assert not subscription.wants("C")
    assert not subscription.wants(None)
    assert subscription.data().sub_string == "A || B"
    assert len(subscription.data().code_set) == 2
    assert Subscription.of("T").wants(None)
    assert Subscription.of("T", tags="*").wants("anything")


@given(st.floats(0, 7200))
def test_a_retry_is_never_early(after: float) -> None:
    level = delay_level(after)
    assert DELAY_LEVELS_S[level - 1] >= after
    assert level == 1 or DELAY_LEVELS_S[level - 2] < after


def test_without_a_time_the_broker_climbs_and_beyond_two_hours_it_is_two_hours() -> None:
    assert delay_level(None) == 0
    assert delay_level(10**6) == 18
    with pytest.raises(UsageError, match="negative"):
        Retry(after=-1)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": "a b"}, "characters other than"),
        ({"group": ""}, "blank"),
        ({"tags": "a", "sql": "b = 1"}, "only one filter"),
        ({"sql": " "}, "empty"),
        ({"tags": ""}, "empty"),
        ({"concurrency": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"retries_max": -1}, "negative"),
        ({"mode": "both"}, "one of"),
        ({"start": "middle"}, "one of"),
        ({"on_failure": "ignore"}, "one of"),
        ({"strategy": "random"}, "no strategy"),
        ({"buffer_count": 0}, "at least 1"),
        ({"ordered": True, "mode": "broadcast"}, "locks"),
        ({"speed": 9}, "no option speed"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_at_the_call(options: dict[str, object], rule: str) -> None:
    keywords = {"topic": "T", "group": "g", **options}
    topic, group = keywords.pop("topic"), keywords.pop("group")
    with pytest.raises(UsageError, match=rule):
        consumer_options(topic, group, keywords)  # type: ignore[arg-type]
