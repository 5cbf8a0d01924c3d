"""Long work on a thread, in steps between which the event loop runs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from metaq.work_pools import let_event_loop_run

ITEMS_AT_ONCE: Final = 32
SORTED_AT_ONCE: Final = 1_024

_Item = TypeVar("_Item")


def letting_others_run(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yields the items, and lets the event loop run before every 32 of them."""
    for number, item in enumerate(items):
        if number % ITEMS_AT_ONCE == 0:
            let_event_loop_run()
        yield item


def sorted_in_steps(items: Iterable[_Item], key: Callable[[_Item], Any]) -> list[_Item]:
    """Sorts, and lets the event loop run meanwhile: a long `sort` holds Python's lock to its end."""
    unsorted = list(letting_others_run(items))
    parts = []
    for first in range(0, len(unsorted), SORTED_AT_ONCE):
        let_event_loop_run()
        parts.append(sorted(unsorted[first : first + SORTED_AT_ONCE], key=key))
    return list(letting_others_run(heapq.merge(*parts, key=key)))
