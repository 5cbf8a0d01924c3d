"""Rows that somebody looks at, fetched one by one and kept for a poll interval.

Apache's brokers have no list of figures. Their tables have names, and the figures of one page of rows are
asked for when a page is shown. Two viewers of the same rows share the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from metaq.errors import MetaqError

ROWS_MAX: Final = 100
"""Rows that one call fetches."""
KEPT_MAX: Final = 1_000

R = TypeVar("R")


class Looks(Generic[R]):
    """The rows of one table that were fetched lately."""

    def __init__(self, fetch: Callable[[frozenset[str]], Awaitable[Mapping[str, R]]]) -> None:
        """`fetch` returns those of the rows that it finds."""
        self._fetch = fetch
        self._kept: dict[str, tuple[int, R | None]] = {}
        self._turn = asyncio.Lock()
        self._changes = 0

    async def rows(self, names: Sequence[str], now_ms: int, age_ms_max: int) -> dict[str, R]:
        """Returns the rows with these names that are not older than this, and fetches the others. If the
        brokers do not answer, those are missing."""
        async with self._turn:
            self._kept = {
                name: kept for name, kept in self._kept.items() if 0 <= now_ms - kept[0] < age_ms_max
            }
            wanted = frozenset(name for name in names[:ROWS_MAX] if name not in self._kept)
            if wanted:
                changes = self._changes
                try:
                    found = await self._fetch(wanted)
                except MetaqError:
                    found = {}
                known = {**self._kept, **{name: (now_ms, found.get(name)) for name in wanted}}
                if changes == self._changes:
                    self._kept = dict(list(known.items())[-KEPT_MAX:])
            else:
                known = self._kept
            kept = ((name, known.get(name, (0, None))[1]) for name in names)
            return {name: row for name, row in kept if row is not None}

    def forget(self) -> None:
        """Has all rows fetched again, because the cluster was changed."""
        self._changes += 1
        self._kept = {}
