"""Patterns that choose names in lists."""

from __future__ import annotations

import pytest

from metaq.cli.reading.patterns import matcher


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
