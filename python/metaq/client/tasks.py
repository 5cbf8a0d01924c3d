"""Background tasks that end together with the object that started them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from metaq.errors import MetaqError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

CANCEL_INTERVAL_S: Final = 0.5
"""A task that swallowed its cancellation is cancelled again after this time."""


class Tasks:
    """The background tasks of one object, whose name appears in task names and log lines."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Runs a coroutine in a task of its own."""
        task = asyncio.get_running_loop().create_task(work, name=f"metaq {self._owner} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_once(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Calls a function in a task of its own and logs its failure."""
        self.spawn(self._logged(work, name), name)

    def run_every(self, interval_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Calls a function again and again, first after one interval. A failure is logged."""
        self.spawn(self._repeat(interval_s, work, name), name)

    def cancel(self) -> None:
        """Cancels every task without waiting."""
        for task in list(self._tasks):
            task.cancel()

    async def end(self) -> None:
        """Cancels every task and waits until all have ended."""
        await end_tasks(list(self._tasks))

    async def _repeat(self, interval_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._logged(work, name)

    async def _logged(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await work()
        except (MetaqError, OSError) as error:
            _log.info("%s: %s failed: %s", self._owner, name, error)
        except Exception:
            _log.exception("%s: %s failed", self._owner, name)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels these tasks, as often as necessary, and waits until they have ended."""
    tasks = list(tasks)
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_INTERVAL_S)
    await asyncio.gather(*tasks, return_exceptions=True)
