"""The questions of one poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from metaq.admin.aio import Admin
from metaq.admin.health.results import Health
from metaq.admin.results import GroupOverview, TopicOverview
from metaq.errors import MetaqError

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one poll; a text says why there is none."""

    topics: TopicOverview | str
    groups: GroupOverview | str
    health: Health | str

    @property
    def is_whole(self) -> bool:
        """Whether every server answered everything."""
        if isinstance(self.topics, str) or isinstance(self.groups, str) or isinstance(self.health, str):
            return False
        errors = [server.error for server in self.health.name_servers]
        errors += [broker.error for broker in self.health.brokers]
        is_reached = all(error is None for error in errors)
        return is_reached and not self.topics.failures and not self.groups.failures

    @property
    def is_ok(self) -> bool:
        return not any(isinstance(answer, str) for answer in (self.topics, self.groups, self.health))


async def ask(admin: Admin, *, at_once: bool) -> Answers:
    """Asks one question after the other, so that no broker works on two of them at the same time.

    With `at_once`, and if a broker does not answer the first question, the others are asked together:
    otherwise a poll would take the sum of their timeouts.
    """

    async def topics() -> TopicOverview | str:
        return await _tried(admin.topics.figures(one_by_one=False))

    async def groups() -> GroupOverview | str:
        return await _tried(admin.groups.figures(one_by_one=False))

    async def health() -> Health | str:
        return await _tried(admin.health.check())

    if at_once:
        return Answers(*await asyncio.gather(topics(), groups(), health()))
    first = await topics()
    if isinstance(first, str) or first.failures:
        return Answers(first, *await asyncio.gather(groups(), health()))
    return Answers(first, await groups(), await health())


async def _tried(work: Awaitable[_T]) -> _T | str:
    """Returns the answer, or why there is none."""
    try:
        return await work
    except MetaqError as error:
        return str(error)
    except Exception as error:
        # A server that answers nonsense must not end the polls of the others.
        _LOG.exception("a poll of the cluster failed")
        return f"{type(error).__name__}: {error}"
