"""The newest dead letters of a group, a page at a time and with a bounded number of questions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.messages.newest_messages import NewestQuery, newest
from metaq.admin.messages.stored_letters import has_copy, letter_of
from metaq.admin.offsets import Offsets
from metaq.admin.results import BrokerFailure, DeadLetter
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.protocol import names

CHECK_SECONDS_MAX: Final = 3.0
"""How long brokers are asked which letters of a page were sent again."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters of a group, the newest first."""

    letters: tuple[DeadLetter, ...] = ()
    before: str | None = None
    """The place where the next page goes on; None if no letter is left."""
    resent: int = 0
    """Letters that are left out, because they were sent again alone."""
    unchecked: int = 0
    """Letters of which no broker said in time whether they were sent again."""
    is_truncated: bool = False
    queues_left_out: int = 0
    failures: tuple[BrokerFailure, ...] = ()


async def newest_letters(
    calls: Calls,
    offsets: Offsets,
    group: str,
    queues: Sequence[Queue],
    *,
    resent: bool,
    limit: int,
    before: str | None,
) -> DeadLetterPage:
    """Reads a page. A broker that does not answer is among its failures."""
    if not queues:
        return DeadLetterPage()
    of_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        of_broker.setdefault(queue.broker, []).append(queue)
    committed, silent = await calls.from_each(
        of_broker, lambda broker: offsets.committed(group, of_broker[broker])
    )
    places = {queue: place or 0 for places in committed.values() for queue, place in places.items()}
    query = NewestQuery(
        names.dead_letter_topic(group),
        limit,
        before=before,
        after=None if resent else places,
        queues=tuple(places),
    )
    found = await newest(calls, offsets, query)
    was_resent = {} if resent else await _resent(calls, group, found.messages)
    failures = {failure.broker: failure for failure in (*silent, *found.failures)}
    return DeadLetterPage(
        tuple(
            letter_of(message)
            for index, message in enumerate(found.messages)
            if not was_resent.get(index, False)
        ),
        found.before,
        resent=sum(was_resent.values()),
        unchecked=0 if resent else len(found.messages) - len(was_resent),
        is_truncated=found.is_truncated,
        queues_left_out=found.queues_left_out,
        failures=tuple(failures[broker] for broker in sorted(failures)),
    )


async def _resent(calls: Calls, group: str, messages: Sequence[Message]) -> dict[int, bool]:
    """Returns which letters were sent again, by their index, as far as brokers answer in time."""
    found: dict[int, bool] = {}

    async def check(index: int) -> None:
        with suppress(MetaqError):
            found[index] = await has_copy(calls, group, messages[index])

    with suppress(TimeoutError):
        async with asyncio.timeout(CHECK_SECONDS_MAX):
            await in_parallel(range(len(messages)), check)
    return found
