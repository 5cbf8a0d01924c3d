"""Pure parts of the topic and group commands: patterns, attributes, order, conflicts."""

from __future__ import annotations

import pytest

from metaq.admin import GroupFigures, RunningMember, Subscription
from metaq.admin.running_members import conflicts_of
from metaq.cli.attributes import attributes_text, changed_attributes, given_attributes
from metaq.cli.consumer_tables import worst_first
from metaq.cli.formats import some
from metaq.cli.patterns import matcher
from metaq.errors import CommandError


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (None, "orders", True),
        ("ord", "Orders", True),
        ("der", "orders", True),
        ("o*s", "Orders", True),
        ("o*", "my-orders", False),
        ("order?", "orders", True),
        ("pay", "orders", False),
    ],
)
def test_a_pattern_is_a_part_of_the_name_or_all_of_it(pattern: str | None, name: str, matches: bool) -> None:
    assert matcher(pattern)(name) is matches


def test_attributes_are_read_and_written() -> None:
    assert given_attributes(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    assert given_attributes(None) == {}
    assert changed_attributes(["a=1", "b="]) == {"a": "1", "b": None}
    assert attributes_text({"b": "2", "a": "1", "c": "3"}, ("c",)) == "a=1, b=2"
    assert attributes_text({}) is None


@pytest.mark.parametrize("text", ["", "=x", "name"])
def test_a_text_that_is_no_attribute(text: str) -> None:
    with pytest.raises(CommandError, match="is not an attribute"):
        changed_attributes([text])


def test_a_new_attribute_needs_a_value() -> None:
    with pytest.raises(CommandError, match="--attribute a= has no value"):
        given_attributes(["a="])


def figures(name: str, lag: int | None, lag_ms: int | None) -> GroupFigures:
    return GroupFigures(name, "normal", ("b",), 0, lag, lag_ms, None)


def test_the_longest_wait_comes_first_then_the_most_messages() -> None:
    groups = [
        figures("unknown", None, None),
        figures("none", 0, None),
        figures("many", 900, 5),
        figures("old", 1, 60_000),
        figures("few", 1, 5),
    ]
    assert [group.name for group in worst_first(groups)] == ["old", "many", "few", "none", "unknown"]


def test_long_lists_are_cut() -> None:
    assert some(["a", "b"], 2) == "a, b"
    assert some(["a", "b", "c", "d"], 2) == "a, b and 2 more"


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
