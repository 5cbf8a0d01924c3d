"""How often a master writes down its progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.background.housekeeping import Housekeeping


@pytest.mark.parametrize(("configured_s", "delays_s"), [(5.0, 0.5), (0.1, 0.1)])
def test_a_kill_repeats_less_than_a_second_of_delay_levels(configured_s: float, delays_s: float) -> None:
    """The time between two writes and the write itself, which takes milliseconds, are what a kill repeats."""
    delays = SimpleNamespace(persist=lambda: None)
    state: Any = SimpleNamespace(
        delays=delays, offsets=SimpleNamespace(protect=None), sample=None, topics=None, starts=None
    )
    node: Any = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: 0),
        options=SimpleNamespace(offsets_persist_interval_s=configured_s),
        functions=SimpleNamespace(rest=None),
        store=None,
    )
    parts: Any = SimpleNamespace(check=None, look=None)
    housekeeping = Housekeeping(node, state, parts, parts)
    intervals: dict[Any, float] = {}
    housekeeping._every = lambda interval_s, work: intervals.__setitem__(work, interval_s)  # type: ignore[method-assign]
    housekeeping.start()
    assert intervals[delays.persist] == delays_s
