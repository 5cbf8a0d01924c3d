"""A timeline for people."""

from __future__ import annotations

import pytest

from metaq.admin import Timeline, TimelineEvent, TimelineGroup
from metaq.cli.commands.trace import lines

MINUTE_MS = 60_000


def timeline(*events: TimelineEvent, **more: object) -> Timeline:
    fields: dict[str, object] = {
        "id": "ID",
        "topic": "t",
        "tag": None,
        "keys": (),
        "type": None,
        "body_bytes": None,
        "traceparent": None,
        "events": events,
        "groups": (),
        "notes": (),
    }
    return Timeline(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("passed_ms", "shown"),
    [
        (0, "+0 ms"),
        (9_999, "+9999 ms"),
        (12_345, "+12.3 s"),
        (30 * MINUTE_MS, "+30 min"),
        (3000 * MINUTE_MS, "+50 h"),
    ],
)
def test_times_are_since_the_first_event(passed_ms: int, shown: str) -> None:
    born = TimelineEvent("born", 1000, "trace")
    stored = TimelineEvent("stored", 1000 + passed_ms, "store")
    assert lines(timeline(born, stored))[-1] == f"{shown:>9}  stored"


def test_unknown_values_are_said() -> None:
    running = TimelineEvent("delivered", None, "trace", group="g", retries=1)
    unknown = TimelineGroup("g", "unknown")
    found = lines(timeline(running, topic=None, groups=(unknown,), notes=("nobody knows",)))
    assert found[1] == "topic unknown"
    assert "        ?  delivered   g, try 2, no result" in found
    assert found[-5:] == ["groups", "  g: unknown", "", "not known", "  nobody knows"]


def test_names_from_messages_neither_move_the_cursor_nor_break_the_width() -> None:
    hostile = "\x1b[2J" + "long " * 40
    dead = TimelineEvent("dead", 1, "store", group=hostile, reason=hostile, error_type="x" * 200)
    shown = lines(timeline(dead, id=hostile, tag=hostile, keys=(hostile,), notes=(hostile,)))
    assert all(len(line) <= 80 for line in shown)
    assert "\x1b" not in "".join(shown)
