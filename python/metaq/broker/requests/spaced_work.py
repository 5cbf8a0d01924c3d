"""Long work in steps, between which the event loop runs: on a thread, or on the event loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from metaq.work_pools import let_event_loop_run

ITEMS_AT_ONCE: Final = 32
UPDATES_AT_ONCE: Final = 64
"""Topics or groups that are checked, changed or published in one turn of the event loop."""

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
