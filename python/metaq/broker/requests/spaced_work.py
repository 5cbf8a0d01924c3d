"""Long work in steps, between which the event loop runs: on a thread, or on the event loop itself."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from metaq.work_pools import let_event_loop_run

ITEMS_AT_ONCE: Final = 32
UPDATES_AT_ONCE: Final = 64
"""Topics or groups that are checked, changed or published in one turn of the event loop."""
SORTED_AT_ONCE: Final = 1_024

_Item = TypeVar("_Item")


def letting_others_run(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yields the items, and lets the event loop run before every 32 of them."""
    for number, item in enumerate(items):
        if number % ITEMS_AT_ONCE == 0:
            let_event_loop_run()
        yield item


async def in_turns(items: Iterable[_Item]) -> AsyncIterator[list[_Item]]:
    """Yields 64 of the items in each turn of the event loop."""
    source = iter(items)
    part = list(islice(source, UPDATES_AT_ONCE))
    while part:
        yield part
        part = list(islice(source, UPDATES_AT_ONCE))
        if part:
            await asyncio.sleep(0)


def sorted_in_steps(items: Iterable[_Item], key: Callable[[_Item], Any]) -> list[_Item]:
    """Sorts, and lets the event loop run meanwhile: a long `sort` holds Python's lock to its end."""
    unsorted = list(letting_others_run(items))
    parts = []
    for first in range(0, len(unsorted), SORTED_AT_ONCE):
        let_event_loop_run()
        parts.append(sorted(unsorted[first : first + SORTED_AT_ONCE], key=key))
    return list(letting_others_run(heapq.merge(*parts, key=key)))
