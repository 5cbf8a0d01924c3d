"""Long work on a thread, in steps between which the event loop runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from metaq.work_pools import let_event_loop_run

ITEMS_AT_ONCE: Final = 32

_Item = TypeVar("_Item")


def letting_others_run(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yields the items, and lets the event loop run before every 32 of them."""
    for number, item in enumerate(items):
        if number % ITEMS_AT_ONCE == 0:
            let_event_loop_run()
        yield item
