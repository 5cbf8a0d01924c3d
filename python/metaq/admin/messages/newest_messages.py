"""The newest messages of a topic, read backwards within bounds.

Each queue is read in blocks from its end to its beginning, and the queues are merged by the time at which
messages were stored. So the result has no gap: every selected message that is newer than its last one is in
it. A search that finds little ends at a bound, and says where it can go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.messages.answered_records import messages_in
from metaq.admin.messages.queue_reading import QueueCursor, pull
from metaq.admin.messages.selection import Selection
from metaq.admin.offsets import Offsets
from metaq.admin.positions import milliseconds
from metaq.admin.results import BrokerFailure, NewestMessages
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute, UsageError
from metaq.protocol.bodies import TopicOffset, TopicStatsTable
from metaq.protocol.commands.topics import GetTopicStatsInfo
from metaq.protocol.errors import Unreachable

QUEUES_MAX: Final = 64
"""Queues that are read; those with the newest messages, if there are more."""
SCANNED_MAX: Final = 20_000
"""Messages that one search looks at."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that one search takes from brokers. Every queue is read at least once."""
SECONDS_MAX: Final = 3.0
_BLOCK_BYTES: Final = 512 * 1024
_BLOCK_MESSAGES: Final = 16
"""Messages of the second block of a queue. The first has one message, which tells how large they are."""
_BLOCK_MESSAGES_MAX: Final = 2_048

_TURN_S: Final = 0.02
"""How long a search looks at messages before others get their turn."""

_Age: TypeAlias = tuple[int, str, int]
"""When a message was stored, where, and its place there: a total order."""


class EndOfSearch(Exception):
    """Raised by `matches` if it has read as much as it may. The search ends before that message."""


@dataclass(frozen=True, slots=True)
class NewestQuery:
    """The messages that are wanted."""

    topic: str
    limit: int
    begin: datetime | None = None
    end: datetime | None = None
    before: str | None = None
    """The place where an earlier search ended."""
    after: Mapping[Queue, int] | None = None
    """The first offsets to look at; queues that are not in it are read from their beginning."""
    queues: tuple[Queue, ...] | None = None
    selection: Selection = field(default_factory=Selection)
    matches: Callable[[Message], bool] | None = None


@dataclass(slots=True)
class _Backwards:
    """One queue that is read towards its beginning."""

    queue: Queue
    first: int
    upper: int
    """Everything from here on was looked at."""
    waiting: list[Message] = field(default_factory=list)
    """Selected messages that are not in the result yet, the newest last."""
    block: int = 1
    has_failed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it may have more messages, and none of them waits."""
        return not self.waiting and self.upper > self.first and not self.has_failed

    @property
    def unseen(self) -> int:
        upper = self.waiting[-1].queue_offset + 1 if self.waiting else self.upper
        return max(upper - self.first, 0)


class _Search:
    """One search with its bounds."""

    def __init__(self, calls: Calls, query: NewestQuery, readers: list[_Backwards]) -> None:
        self._calls = calls
        self._query = query
        self._readers = readers
        self._limit_age = None if query.before is None else _age_of(query.before)
        self._bytes = 0
        self._scanned = 0
        self._now_s = asyncio.get_running_loop().time
        self._deadline_s = self._now_s() + SECONDS_MAX
        self._is_ended = False
        self.failures: dict[str, BrokerFailure] = {}
        self.found: list[Message] = []

    async def run(self) -> str | None:
        """Fills `found`. Returns where it ended if there may be more, and None otherwise."""
        while len(self.found) < self._query.limit:
            if not await self._fill():
                return await self._end_early()
            newest = self._newest()
            if newest is None:
                return None
            self.found.append(newest.waiting.pop())
        is_all = all(reader.unseen == 0 or reader.has_failed for reader in self._readers)
        return None if is_all else _text_of(_age(self.found[-1]))

    @property
    def _is_spent(self) -> bool:
        is_full = self._scanned >= SCANNED_MAX or self._bytes >= BYTES_MAX
        return is_full or self._is_ended or self._now_s() >= self._deadline_s

    def _newest(self) -> _Backwards | None:
        heads = [reader for reader in self._readers if reader.waiting]
        return max(heads, key=lambda reader: _age(reader.waiting[-1]), default=None)

    async def _fill(self) -> bool:
        """Reads until a message of every queue waits that has more. Returns False if a bound ends it."""
        while opened := [reader for reader in self._readers if reader.is_open]:
            if self._is_spent and all(reader.block > 1 for reader in opened):
                return False
            await in_parallel(range(len(opened)), lambda index: self._read_block(opened[index]))
        return True

    async def _read_block(self, reader: _Backwards) -> None:
        lower = max(reader.first, reader.upper - reader.block)
        cursor = QueueCursor(reader.queue, lower, reader.upper)
        size_bytes = 0
        pulled: list[Message] = []
        try:
            while cursor.next_offset < reader.upper:
                before = cursor.next_offset
                body = await self._pull(cursor, reader.upper - before, self._query.selection)
                pulled += messages_in(body, reader.queue)
                size_bytes += len(body)
                if cursor.next_offset <= before:
                    break
        except (Unreachable, NoRoute) as error:
            reader.has_failed = True
            self.failures[reader.queue.broker] = BrokerFailure(reader.queue.broker, str(error))
            return
        taken, is_first = len(pulled), reader.block == 1
        matching, looked = await self._look(pulled, lower, reader.upper, is_first=is_first)
        self._bytes += size_bytes
        self._scanned += reader.upper - looked
        reader.upper, reader.waiting = looked, matching
        wanted = max(_BLOCK_MESSAGES, reader.block * 4 if not matching else _BLOCK_MESSAGES)
        fitting = _BLOCK_BYTES * taken // size_bytes if taken else _BLOCK_MESSAGES_MAX
        reader.block = max(2, min(wanted, fitting, _BLOCK_MESSAGES_MAX))

    async def _look(
        self, pulled: list[Message], lower: int, upper: int, *, is_first: bool
    ) -> tuple[list[Message], int]:
        """Returns the wanted messages of a block, and how far it was looked at: from its end down, so that a
        search which ends in the middle has no gap. Takes the messages away, so that the bodies of others do
        not stay in memory."""
        matching: list[Message] = []
        looked, turn_s = upper, self._now_s()
        while pulled:
            message = pulled.pop()
            try:
                is_wanted = self._is_wanted(message, upper)
            except EndOfSearch:
                self._is_ended = True
                # The search looks at one message of every queue at least, to know which queue is newer. So
                # this one is in the result, although nobody knows whether it matches.
                is_wanted = is_first
                if not is_first:
                    return matching[::-1], looked
            if is_wanted:
                matching.append(message)
            looked = min(looked, message.queue_offset)
            if self._now_s() - turn_s >= _TURN_S:
                await asyncio.sleep(0)
                turn_s = self._now_s()
                if turn_s >= self._deadline_s and pulled:
                    return matching[::-1], looked
        return matching[::-1], lower

    async def _pull(self, cursor: QueueCursor, count: int, selection: Selection | None) -> bytes:
        timeout_s = self._calls.timeout_s
        return await pull(self._calls, cursor, selection=selection, messages_max=count, timeout_s=timeout_s)

    def _is_wanted(self, message: Message, upper: int) -> bool:
        if message.queue_offset >= upper or not self._query.selection.matches(message):
            return False
        if self._limit_age is not None and _age(message) >= self._limit_age:
            return False
        return self._query.matches is None or self._query.matches(message)

    async def _end_early(self) -> str | None:
        """Adds the messages that wait and are newer than everything that was not looked at."""
        ages = await in_parallel(
            [number for number, reader in enumerate(self._readers) if reader.is_open], self._age_at_upper
        )
        horizon = max((age for age in ages.values() if age is not None), default=None)
        while len(self.found) < self._query.limit:
            newest = self._newest()
            if newest is None or (horizon is not None and _age(newest.waiting[-1]) < horizon):
                break
            self.found.append(newest.waiting.pop())
        if len(self.found) >= self._query.limit:
            return _text_of(_age(self.found[-1]))
        return None if horizon is None else _text_of(horizon)

    async def _age_at_upper(self, number: int) -> _Age | None:
        """Returns the age of the oldest message that was looked at, whether it is selected or not."""
        reader = self._readers[number]
        cursor = QueueCursor(reader.queue, reader.upper, reader.upper + 1)
        try:
            body = await self._pull(cursor, 1, None)
        except (Unreachable, NoRoute) as error:
            self.failures[reader.queue.broker] = BrokerFailure(reader.queue.broker, str(error))
            return None
        return next(map(_age, messages_in(body, reader.queue)), None)


async def newest(calls: Calls, offsets: Offsets, query: NewestQuery) -> NewestMessages:
    """Returns the newest selected messages, the newest first. Raises NoRoute and UsageError."""
    readers, ends, failures, left_out = await _readers(calls, offsets, query)
    search = _Search(calls, query, readers)
    total = sum(reader.unseen for reader in readers)
    before = await search.run()
    unseen = sum(reader.unseen for reader in readers)
    found = tuple(search.found)
    oldest_ms = found[-1].stored_at if found and before else 0
    known = {failure.broker: failure for failure in failures} | search.failures
    return NewestMessages(
        found,
        before,
        is_truncated=before is not None and len(found) < query.limit,
        scanned=total - unseen,
        unseen=unseen,
        ends=ends,
        queues_left_out=sum(1 for newest_ms in left_out if newest_ms >= oldest_ms),
        failures=tuple(known[broker] for broker in sorted(known)),
    )


async def _readers(
    calls: Calls, offsets: Offsets, query: NewestQuery
) -> tuple[list[_Backwards], dict[Queue, int], tuple[BrokerFailure, ...], list[int]]:
    """Returns the queues to read, the ends of all queues, the brokers that did not answer, and when the
    queues got their last messages that are left out."""
    states, failures = await _states(calls, query)
    ends = {queue: state.max_offset for queue, state in states.items()}
    firsts = {queue: state.min_offset for queue, state in states.items()}
    if query.after is not None:
        firsts = {queue: max(first, query.after.get(queue, 0)) for queue, first in firsts.items()}
    # Apache's brokers report no time for an empty queue.
    filled = sorted(
        (queue for queue in states if ends[queue] > firsts[queue]),
        key=lambda queue: (-states[queue].last_update_timestamp, queue),
    )
    chosen, rest = filled[:QUEUES_MAX], filled[QUEUES_MAX:]
    uppers = {queue: ends[queue] for queue in chosen}
    end_ms = _end_ms(query)
    if end_ms is not None:
        late = [queue for queue in chosen if states[queue].last_update_timestamp >= end_ms]
        uppers |= await offsets.at_times(dict.fromkeys(late, end_ms))
    if query.begin is not None:
        begin_ms = milliseconds(query.begin)
        newer = [queue for queue in chosen if states[queue].last_update_timestamp >= begin_ms]
        starts = await offsets.at_times(dict.fromkeys(newer, begin_ms))
        firsts |= {queue: max(firsts[queue], starts.get(queue, ends[queue])) for queue in chosen}
    readers = [_Backwards(queue, firsts[queue], max(uppers[queue], firsts[queue])) for queue in chosen]
    return readers, ends, failures, [states[queue].last_update_timestamp for queue in rest]


async def _states(
    calls: Calls, query: NewestQuery
) -> tuple[dict[Queue, TopicOffset], tuple[BrokerFailure, ...]]:
    readable = set((await calls.route(query.topic)).readable)
    if query.queues is not None:
        for queue in query.queues:
            if queue not in readable:
                raise UsageError(f"topic {query.topic} has no queue {queue.id} on {queue.broker}")
        readable = set(query.queues)

    async def one(broker: str) -> dict[Queue, TopicOffset]:
        reply = await calls.ask(broker, GetTopicStatsInfo(topic=query.topic), any_node=True)
        table = TopicStatsTable.decode(reply.body).offset_table
        return {Queue(query.topic, broker, queue.queue_id): state for queue, state in table.items()}

    found, failures = await calls.from_each(sorted({queue.broker for queue in readable}), one)
    states = {queue: state for table in found.values() for queue, state in table.items()}
    return {queue: states[queue] for queue in sorted(states) if queue in readable}, failures


def _end_ms(query: NewestQuery) -> int | None:
    ends = [] if query.end is None else [milliseconds(query.end)]
    if query.before is not None:
        # Ages separate messages of the same millisecond.
        ends.append(_age_of(query.before)[0] + 1)
    return min(ends, default=None)


def _age(message: Message) -> _Age:
    return message.stored_at, "" if message.queue is None else message.queue.broker, message.physical_offset


def _text_of(age: _Age) -> str:
    return f"{age[0]}-{age[2]}-{age[1]}"


def _age_of(text: str) -> _Age:
    """Reads the place where a search ended. Raises UsageError."""
    stored_ms, _, rest = text.partition("-")
    physical_offset, _, broker = rest.partition("-")
    try:
        if not broker or max(len(stored_ms), len(physical_offset)) > 19:
            raise ValueError
        return int(stored_ms), broker, int(physical_offset)
    except ValueError:
        raise UsageError(f"{text!r} is not the end of a search") from None


def newest_query(
    topic: str,
    *,
    limit: int,
    begin: datetime | None,
    end: datetime | None,
    before: str | None,
    after: Mapping[Queue, int] | None,
    tags: str | Iterable[str] | None,
    sql: str | None,
    key: str | None,
    matches: Callable[[Message], bool] | None,
    queues: Iterable[Queue] | None,
) -> NewestQuery:
    """Checks what is wanted. Raises UsageError."""
    if limit < 1:
        raise UsageError(f"limit is {limit}", hint="it is a number of messages, at least 1")
    return NewestQuery(
        topic,
        limit,
        begin,
        end,
        before,
        after,
        None if queues is None else tuple(queues),
        Selection(tags, sql, key),
        matches,
    )
