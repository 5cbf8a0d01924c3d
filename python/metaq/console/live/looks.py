"""Rows that somebody looks at, fetched by their names and kept for a poll interval.

Apache's brokers have no list of figures. Their tables have names, and the figures of one page of rows are
asked for when a page is shown. Viewers of the same rows share the answers; viewers of other rows do not wait
for them.
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

    def __init__(
        self, fetch: Callable[[frozenset[str]], Awaitable[Mapping[str, R]]], now_ms: Callable[[], int]
    ) -> None:
        """`fetch` returns those of the rows that it finds."""
        self._fetch = fetch
        self._now_ms = now_ms
        self._kept: dict[str, tuple[int, R | None]] = {}
        self._under_way: dict[str, asyncio.Task[Mapping[str, R]]] = {}
        self._changes = 0

    async def rows(self, names: Sequence[str], age_ms_max: int) -> dict[str, R]:
        """Returns the rows with these names that are not older than this, and fetches the others. If the
        brokers do not answer, those are missing."""
        now_ms = self._now_ms()
        self._kept = {name: kept for name, kept in self._kept.items() if 0 <= now_ms - kept[0] < age_ms_max}
        asked = names[:ROWS_MAX]
        wanted = frozenset(name for name in asked if name not in self._kept and name not in self._under_way)
        if wanted:
            task = asyncio.create_task(self._look(wanted))
            self._under_way.update(dict.fromkeys(wanted, task))
        found = {name: row for name in names if (row := self._kept.get(name, (0, None))[1]) is not None}
        for name, looking in [(name, self._under_way[name]) for name in asked if name in self._under_way]:
            # Other viewers wait for the same answer when this one has left.
            rows = await asyncio.shield(looking)
            if name in rows:
                found[name] = rows[name]
        return found

    def forget(self) -> None:
        """Has all rows fetched again, because the cluster was changed."""
        self._changes += 1
        self._kept, self._under_way = {}, {}

    async def _look(self, wanted: frozenset[str]) -> Mapping[str, R]:
        changes, rows = self._changes, dict[str, R]()
        try:
            rows.update(await self._fetch(wanted))
        except MetaqError:
            pass  # The rows of the last poll stand in.
        finally:
            if changes == self._changes:
                for name in wanted:
                    del self._under_way[name]
        if changes == self._changes:
            now_ms = self._now_ms()
            self._kept.update((name, (now_ms, rows.get(name))) for name in wanted)
            self._kept = dict(list(self._kept.items())[-KEPT_MAX:])
        return rows
