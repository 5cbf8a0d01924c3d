"""The order of consumer groups in lists."""

from __future__ import annotations

from metaq.admin import GroupFigures
from metaq.cli.printing.consumer_tables import worst_first


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
