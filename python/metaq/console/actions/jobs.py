"""Work that goes on after an action was applied, such as sending many messages again at a rate.

A job belongs to the console, not to a browser: it continues if the page is closed. A restart of the console
ends it, and the audit log then lacks its end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from metaq.console.access.roles import Identity
from metaq.errors import MetaqError, explained

JOBS_MAX: Final = 50
"""Jobs that are remembered. The oldest one that has ended goes first."""
RUNNING_MAX: Final = 10
LINES_MAX: Final = 1_000
"""Outcomes that a job keeps: the failed ones, and the newest of the others."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobLine:
    """The outcome of one step."""

    subject: str
    error: str | None = None


@dataclass(slots=True)
class Job:
    """One piece of work and what became of it so far."""

    id: str
    title: str
    command: str
    total: int | None
    """Steps in all; None if nobody knows."""
    started_ms: int
    subject: str = ""
    """The thing that it works on, such as the dead letters of a group. Only one job works on it at a time."""
    done: int = 0
    failed: int = 0
    failures: list[JobLine] = field(default_factory=list)
    newest: list[JobLine] = field(default_factory=list)
    ended_ms: int | None = None
    error: str | None = None
    """Why the work stopped before its end."""
    is_cancelled: bool = False
    stopped_by: tuple[Identity, str] | None = None
    """The person who stopped it and their address; None if it ran to its end."""
    task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.ended_ms is None

    def add(self, line: JobLine) -> None:
        if line.error is None:
            self.done += 1
            self.newest = [line, *self.newest[: LINES_MAX - 1]]
        else:
            self.failed += 1
            if len(self.failures) < LINES_MAX:
                self.failures.append(line)


class TooManyJobs(MetaqError):
    """The limit of jobs that run at the same time is reached."""


class AlreadyRunning(MetaqError):
    """Another job works on the same thing."""


class Jobs:
    """The jobs of one console."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)

    def start(
        self,
        title: str,
        command: str,
        total: int | None,
        steps: AsyncGenerator[JobLine, None],
        ended: Callable[[Job], Awaitable[None]],
        *,
        subject: str = "",
    ) -> Job:
        """Starts work that yields one line for each step; `ended` is called once at its end. Raises
        AlreadyRunning and TooManyJobs."""
        if (other := self.running(subject)) is not None:
            raise AlreadyRunning(f"the job {other.id} works on {subject} already")
        running = [job for job in self._jobs.values() if job.is_running]
        if len(running) >= RUNNING_MAX:
            raise TooManyJobs(
                f"{len(running)} jobs run already, and {RUNNING_MAX} is the limit",
                hint="wait until one has ended, or stop one",
            )
        id = f"{next(self._numbers)}-{time.time_ns():x}"
        job = Job(id, title, command, total, _now_ms(), subject)
        self._jobs[job.id] = job
        for old in [known.id for known in self._jobs.values() if not known.is_running]:
            if len(self._jobs) <= JOBS_MAX:
                break
            del self._jobs[old]
        job.task = asyncio.create_task(self._run(job, steps, ended))
        return job

    def find(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def running(self, subject: str) -> Job | None:
        """Returns the job that works on this."""
        return next((job for job in self.of(subject) if job.is_running), None) if subject else None

    def of(self, subject: str) -> list[Job]:
        """Returns the jobs that work or worked on this, the newest first."""
        return [job for job in reversed(self._jobs.values()) if job.subject == subject]

    async def stop(self, job: Job, who: Identity | None = None, address: str = "") -> None:
        """Stops a job after the step that it is in. `who` asks for it; None is the console itself."""
        if job.task is not None and job.is_running:
            job.is_cancelled = True
            if job.stopped_by is None and who is not None:
                job.stopped_by = who, address
            # A task that is cancelled before it begins would never record its end.
            await asyncio.sleep(0)
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)

    async def close(self) -> None:
        """Stops everything."""
        for job in [known for known in self._jobs.values() if known.is_running]:
            await self.stop(job)

    async def _run(
        self, job: Job, steps: AsyncGenerator[JobLine, None], ended: Callable[[Job], Awaitable[None]]
    ) -> None:
        try:
            async with aclosing(steps):
                async for line in steps:
                    job.add(line)
        except MetaqError as error:
            job.error = explained(error)
        except asyncio.CancelledError:
            job.is_cancelled = True
        except Exception as error:
            _log.exception("a job of the console failed: %s", job.command)
            job.error = f"{type(error).__name__}: {error}"
        finally:
            job.ended_ms = _now_ms()
        await ended(job)


def _now_ms() -> int:
    return int(time.time() * 1000)
