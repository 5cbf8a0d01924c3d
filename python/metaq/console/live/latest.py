"""Answers that pages ask of the cluster themselves, kept for a moment.

Viewers of the same page share an answer. If the cluster does not answer any more, the last answer stays and
the page shows its age.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from starlette.requests import Request

from metaq.console.live.parts import Part
from metaq.errors import MetaqError

AGE_MS_MAX: Final = 4_000
"""Younger answers are not asked for again."""
KEPT_MAX: Final = 200

T = TypeVar("T")
Key = tuple[str, ...]


@dataclass(slots=True)
class _Kept:
    part: Part[Any] = field(default_factory=Part)
    asked_ms: int | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Latest:
    """The newest answers by a key. It belongs to one event loop."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or _now_ms
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._changes = 0

    async def ask(
        self, key: Key, ask: Callable[[T | None], Awaitable[T]], *, age_ms_max: int = AGE_MS_MAX
    ) -> Part[T]:
        """Returns the answer, asked for again if it is too old. `ask` gets the answer before, which it may
        complete the new one with. An error of the cluster leaves the answer before, which is stale then."""
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        async with kept.turn:
            now_ms = self._now_ms()
            if kept.asked_ms is None or not 0 <= now_ms - kept.asked_ms < age_ms_max:
                changes = self._changes
                try:
                    kept.part = kept.part.renewed(await ask(kept.part.value), self._now_ms())
                except MetaqError as error:
                    kept.part = kept.part.failed(str(error), self._now_ms())
                # An answer that a change overtook may be older than the change.
                kept.asked_ms = self._now_ms() if changes == self._changes else None
            return kept.part

    def forget(self) -> None:
        """Has everything asked for again, because the cluster was changed."""
        self._changes += 1
        for kept in self._kept.values():
            kept.asked_ms = None


def latest_of(request: Request) -> Latest:
    """Returns the answers of the console that serves a request."""
    state = request.app.state
    if not hasattr(state, "latest"):
        state.latest = Latest()
    found = state.latest
    assert isinstance(found, Latest)
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
