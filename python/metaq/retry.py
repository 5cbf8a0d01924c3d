"""Trying again: how long, how often, and after which errors.

`retry` repeats a whole call while its error says that it may pass. Loops with rules of their own use `Retry`,
which only knows the deadline and the pauses:

    tries = Retry(timeout_s)
    while (found := look()) is None:
        if not await tries.pause():
            raise NotThere(…)
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from metaq.errors import MetaqError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow up to a bound."""

    first_s: float = 0.1
    max_s: float = 1.0
    factor: float = 2.0
    jitter: float = 0.2
    """The share of a pause that is random, so that many clients do not come back at the same moment."""

    def pause_s(self, tries: int) -> float:
        """Returns the pause after this number of failed tries."""
        # Large exponents overflow a float long after the bound is reached.
        pause_s = min(self.first_s * self.factor ** min(max(tries - 1, 0), 64), self.max_s)
        return pause_s * (1 - self.jitter * random.random())


BACKOFF: Final = Backoff()


def steady(pause_s: float) -> Backoff:
    """Returns pauses that are all equal, for a condition that is looked at again and again."""
    return Backoff(pause_s, pause_s, jitter=0.0)


class Retry:
    """The limits of one call and the pauses between its tries. With `timeout_s` None it has no deadline."""

    def __init__(
        self, timeout_s: float | None, backoff: Backoff = BACKOFF, *, tries_max: int | None = None
    ) -> None:
        self.tries = 0
        """Tries that failed."""
        self._tries_max = tries_max
        self._backoff = backoff
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """The time until the deadline; never negative."""
        return float("inf") if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def reset(self) -> None:
        """Forgets the failed tries, because one succeeded. The deadline stays."""
        self.tries = 0

    def next_pause_s(self, *, at_once: bool = False) -> float | None:
        """Counts a failed try. Returns the pause before the next one, which is 0 if `at_once` is set.

        Returns None if no time or no try is left.
        """
        self.tries += 1
        if self._tries_max is not None and self.tries >= self._tries_max:
            return None
        pause_s = 0.0 if at_once else self._backoff.pause_s(self.tries)
        return None if pause_s >= self.left_s else pause_s

    async def pause(self) -> bool:
        """Sleeps until the next try; returns False at once if none is left."""
        pause_s = self.next_pause_s()
        if pause_s is None:
            return False
        await asyncio.sleep(pause_s)
        return True

    def pause_blocking(self, stop: threading.Event | None = None) -> bool:
        """Does what `pause` does, in a thread without an event loop; returns False once `stop` is set."""
        pause_s = self.next_pause_s()
        if pause_s is None:
            return False
        if stop is not None:
            return not stop.wait(pause_s)
        time.sleep(pause_s)
        return True


def is_retriable(error: MetaqError) -> bool:
    """Returns what the error says of itself."""
    return error.retriable


async def retry(
    call: Callable[[], Awaitable[_T]],
    timeout_s: float | None,
    *,
    backoff: Backoff = BACKOFF,
    tries_max: int | None = None,
    retriable: Callable[[MetaqError], bool] = is_retriable,
) -> _T:
    """Calls until a call succeeds, raises an error that will not pass, or no time or try is left.

    The last error is raised as it is. A timeout of 0 means one call.
    """
    tries = Retry(timeout_s, backoff, tries_max=tries_max)
    while True:
        try:
            return await call()
        except MetaqError as error:
            if not retriable(error) or not await tries.pause():
                raise
            _log.info("trying again: %s", error)
