"""Dead letters, on asyncio: the messages that a group has given up.

The group's committed offset on its dead-letter topic tells how far they were sent again. A letter behind it
that was sent again alone is recognised by its copy, which names the letter. The key index of the group's
retry topic finds the copy by the unique id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Set
from contextlib import aclosing
from typing import Final

from metaq._core import Record
from metaq.admin.calls import Calls, in_parallel
from metaq.admin.groups.group_settings import require_group
from metaq.admin.messages.answered_records import messages_in, records_in
from metaq.admin.messages.letter_pages import DeadLetterPage, newest_letters
from metaq.admin.messages.queue_reading import QueueCursor, pull
from metaq.admin.messages.stored_letters import StoredLetter, has_copy, send_letter
from metaq.admin.messages.stored_messages import LIMIT, messages_of
from metaq.admin.offsets import Offsets
from metaq.admin.positions import Position, milliseconds
from metaq.admin.purge_results import Purge
from metaq.admin.results import (
    DeadLetter,
    DeadLetterCount,
    DeadLetterReason,
    ResendOutcome,
)
from metaq.admin.topics import Topics
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError, NoRoute, NoSuchMessage, UsageError
from metaq.protocol import names
from metaq.protocol.bodies import TopicList
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import QueryMessage, ViewMessageById
from metaq.protocol.commands.routes import GetAllTopicListFromNameServer
from metaq.protocol.errors import Unreachable

RATE: Final = 100.0
REASONS_MAX: Final = 1_000
"""Reasons with a count of their own; letters with further reasons share one."""
MORE_REASONS: Final = "other reasons"


def general_reason(reason: str | None) -> str | None:
    """Returns a reason with `#` in place of each number, so that letters for different orders or addresses
    count as one kind."""
    return None if reason is None else re.sub(r"\d+|#", "#", reason)


_log = logging.getLogger(__name__)


class _Pace:
    """Spreads work evenly over time."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._due_s = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(self._due_s - loop.time(), 0))
        self._due_s = max(self._due_s, loop.time() - 1) + self._interval_s


class DeadLetters:
    """Counts and lists the dead letters of groups, and gives them to their group again."""

    def __init__(self, calls: Calls, offsets: Offsets, topics: Topics) -> None:
        self._calls = calls
        self._offsets = offsets
        self._topics = topics

    async def purge(self, group: str, to: Position = "latest", *, dry_run: bool = False) -> Purge:
        """Takes away the dead letters of a group before a position, such as a time; all of them unless one is
        given. It cannot be undone. With `dry_run` nothing is changed. Raises NoSuchGroup, and the errors of
        `Topics.purge`."""
        topic = names.dead_letter_topic(group)
        if not await self._queues(group):
            return Purge(topic, (), is_dry_run=dry_run)
        return await self._topics.purge(topic, to, dry_run=dry_run)

    async def counts(self, groups: Iterable[str] | None = None) -> tuple[DeadLetterCount, ...]:
        """Counts the dead letters of these groups, or of every group that has some. Each group needs a few
        requests."""
        if groups is not None:
            return tuple((await in_parallel(groups, self._count)).values())
        command = GetAllTopicListFromNameServer()
        topics = TopicList.decode((await self._calls.ask_nameserver(command)).body).topic_list
        prefix = names.DEAD_LETTER_PREFIX
        known = sorted(topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix))
        found = await in_parallel(known, self._count)
        return tuple(count for count in found.values() if count.stored != 0)

    async def list(self, group: str, *, resent: bool = False) -> AsyncGenerator[DeadLetter, None]:
        """Yields the dead letters of a group that were not sent again yet; with `resent` all of them. Raises
        NoSuchGroup."""
        async with aclosing(self._stored(group, resent=resent)) as letters:
            async for letter, was_resent in letters:
                if resent or not was_resent:
                    yield letter.public

    async def reasons(
        self, group: str, *, error_type: str | None = None, reason: str | None = None
    ) -> tuple[DeadLetterReason, ...]:
        """Counts the dead letters of a group that were not sent again yet by exception and reason, most
        first; only those that `matching` yields. Reads all of them. Raises NoSuchGroup."""
        found: dict[tuple[str | None, str | None], DeadLetterReason] = {}
        async with aclosing(self.matching(group, error_type=error_type, reason=reason)) as letters:
            async for letter in letters:
                key = letter.error_type, general_reason(letter.reason)
                before = found.get(key)
                if before is None and len(found) >= REASONS_MAX:
                    key = None, MORE_REASONS
                    before = found.get(key)
                stored_ms = milliseconds(letter.message.stored_time)
                found[key] = DeadLetterReason(
                    *key,
                    letters=1 if before is None else before.letters + 1,
                    oldest_ms=stored_ms if before is None else min(before.oldest_ms, stored_ms),
                    newest_ms=stored_ms if before is None else max(before.newest_ms, stored_ms),
                    topics=tuple(sorted({letter.origin_topic, *(before.topics if before else ())})),
                )
        return tuple(sorted(found.values(), key=lambda each: -each.letters))

    async def matching(
        self, group: str, *, error_type: str | None = None, reason: str | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """Yields the dead letters of a group that were not sent again yet: those of one exception, and those
        with a text in their reason, whatever numbers either has. Raises NoSuchGroup."""
        wanted = None if reason is None else general_reason(reason)
        async with aclosing(self.list(group)) as letters:
            async for letter in letters:
                has_reason = wanted is None or wanted in (general_reason(letter.reason) or "")
                if has_reason and error_type in (None, letter.error_type):
                    yield letter

    async def newest(
        self, group: str, *, resent: bool = False, limit: int = LIMIT, before: str | None = None
    ) -> DeadLetterPage:
        """Returns the newest dead letters of a group, the newest first, with a bounded number of requests.
        Letters that were sent again are left out, unless `resent` is set: a page may have fewer letters than
        `limit`. `before` is the field of an earlier page, and goes on where that ended. Raises NoSuchGroup
        and UsageError."""
        queues = await self._queues(group)
        return await newest_letters(
            self._calls, self._offsets, group, queues, resent=resent, limit=limit, before=before
        )

    async def find(self, group: str, id: str) -> DeadLetter:
        """Finds a dead letter by its id or its offset id. Raises NoSuchGroup and NoSuchMessage."""
        return (await self._find(group, id)).public

    async def resend(self, group: str, *, rate: float = RATE) -> AsyncGenerator[DeadLetter, None]:
        """Gives a group its dead letters again, `rate` a second, and yields each one after it was sent.

        No other group gets them, and their tries are counted anew. If it is interrupted, the next call
        continues from there. Raises NoSuchGroup.
        """
        async with aclosing(self.resend_each(group, rate=rate)) as outcomes:
            async for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                assert outcome.letter is not None
                yield outcome.letter

    async def resend_each(
        self, group: str, ids: Iterable[str] | None = None, *, rate: float = RATE
    ) -> AsyncGenerator[ResendOutcome, None]:
        """Gives a group its dead letters again, or those with these ids, and yields what became of each one.

        A letter that a broker refuses does not keep the others back, and the next call tries it again. If a
        broker does not answer, the rest of its queue waits for the next call. Raises NoSuchGroup.
        """
        if not rate > 0:
            raise UsageError(f"the rate is {rate}", hint="it is a number of messages a second above 0")
        pace = _Pace(rate)
        if ids is None:
            async with aclosing(self._resend_all(group, pace)) as outcomes:
                async for outcome in outcomes:
                    yield outcome
            return
        sent: dict[Queue, set[int]] = {}
        try:
            for id in ids:
                try:
                    letter = await self._find(group, id)
                except NoSuchMessage as error:
                    yield ResendOutcome(id, None, error)
                    continue
                await pace.wait()
                failure = await self._send_or_fail(group, letter)
                if failure is None:
                    sent.setdefault(letter.queue, set()).add(letter.record.queue_offset)
                yield ResendOutcome(letter.message.offset_id, letter.public, failure)
        finally:
            if sent:
                await self._pass_resent(group, sent)

    async def resend_one(self, group: str, id: str, *, body: bytes | None = None) -> DeadLetter:
        """Gives a group one of its dead letters again, by its id or its offset id. With `body`, the group
        gets that instead of the stored body. Raises NoSuchGroup and NoSuchMessage."""
        letter = await self._find(group, id)
        await send_letter(self._calls, group, letter, body)
        await self._pass_resent(group, {letter.queue: {letter.record.queue_offset}})
        return letter.public

    # Inside

    async def _count(self, group: str) -> DeadLetterCount:
        try:
            queues = tuple((await self._calls.route(names.dead_letter_topic(group))).readable)
            bounds = await self._offsets.bounds(queues)
            committed = await self._offsets.committed(group, queues)
        except (Unreachable, NoRoute) as error:
            if isinstance(error, NoRoute) and not error.retriable:
                return DeadLetterCount(group, 0, 0)  # Its topic was deleted a moment ago.
            return DeadLetterCount(group, None, None, str(error))
        waiting = stored = 0
        for queue, held in bounds.items():
            stored += held.end - held.first
            waiting += max(held.end - max(held.first, committed[queue] or 0), 0)
        return DeadLetterCount(group, waiting, stored)

    async def _queues(self, group: str) -> tuple[Queue, ...]:
        """The queues of the group's dead letters. Raises NoSuchGroup if it has neither these nor settings."""
        try:
            return tuple((await self._calls.route(names.dead_letter_topic(group))).readable)
        except NoRoute as error:
            if error.retriable:
                raise
        await require_group(self._calls, group)
        return ()

    async def _stored(self, group: str, *, resent: bool) -> AsyncGenerator[tuple[StoredLetter, bool], None]:
        """Yields letters, and whether each was sent again; with `resent` all letters, without that check."""
        for cursor in await self._cursors(group, resent=resent):
            async with aclosing(self._stored_in(group, cursor, checks=not resent)) as letters:
                async for found in letters:
                    yield found

    async def _cursors(self, group: str, *, resent: bool) -> tuple[QueueCursor, ...]:
        queues = await self._queues(group)
        bounds = await self._offsets.bounds(queues)
        committed = await self._offsets.committed(group, queues)
        return tuple(
            QueueCursor(
                queue,
                bounds[queue].first if resent else max(bounds[queue].first, committed[queue] or 0),
                bounds[queue].end,
            )
            for queue in queues
        )

    async def _stored_in(
        self, group: str, cursor: QueueCursor, *, checks: bool
    ) -> AsyncGenerator[tuple[StoredLetter, bool], None]:
        while cursor.next_offset < cursor.end_offset:
            before = cursor.next_offset
            body = await pull(self._calls, cursor)
            messages = messages_in(body, cursor.queue)
            letters = [
                StoredLetter(cursor.queue, message, record)
                for message, record in zip(messages, records_in(body, cursor.queue.broker), strict=True)
                if record.queue_offset < cursor.end_offset
            ]
            checked = [has_copy(self._calls, group, letter.message) for letter in letters] if checks else []
            found = deque(zip(letters, await asyncio.gather(*checked) or [False] * len(letters), strict=True))
            del messages, letters
            while found:
                # A letter that is gone from here takes its decompressed body with it.
                yield found.popleft()
            if cursor.next_offset <= before:
                break  # The queue has become shorter.

    async def _resend_all(self, group: str, pace: _Pace) -> AsyncGenerator[ResendOutcome, None]:
        for cursor in await self._cursors(group, resent=False):
            # The group's offset stays before a letter that was not sent. Letters behind it that were sent are
            # recognised by their copies.
            is_whole = True
            async with aclosing(self._stored_in(group, cursor, checks=True)) as letters:
                async for letter, was_resent in letters:
                    error = None
                    if not was_resent:
                        await pace.wait()
                        error = await self._send_or_fail(group, letter)
                        is_whole = is_whole and error is None
                    if is_whole:
                        await self._offsets.commit(group, {letter.queue: letter.record.queue_offset + 1})
                    if not was_resent:
                        yield ResendOutcome(letter.message.offset_id, letter.public, error)
                    if isinstance(error, Unreachable | NoRoute):
                        break

    async def _pass_resent(self, group: str, sent: Mapping[Queue, Set[int]]) -> None:
        """Moves the group's place past the letters at its front that were sent again, so that they no longer
        count. `sent` are the queue offsets of those that were sent just now: the key index, which follows the
        log, may not find their copies yet. It logs a failure: the letters were sent, and the next resend
        moves the place."""
        try:
            for cursor in await self._cursors(group, resent=False):
                if cursor.queue not in sent:
                    continue
                first = place = cursor.next_offset
                async with aclosing(self._stored_in(group, cursor, checks=True)) as letters:
                    async for letter, was_resent in letters:
                        if not was_resent and letter.record.queue_offset not in sent[cursor.queue]:
                            break
                        place = letter.record.queue_offset + 1
                if place > first:
                    await self._offsets.commit(group, {cursor.queue: place})
        except MetaqError as error:
            _log.info("the place of %s among its dead letters is not known: %s", group, error)

    async def _send_or_fail(self, group: str, letter: StoredLetter) -> MetaqError | None:
        try:
            await send_letter(self._calls, group, letter)
        except MetaqError as error:
            return error
        return None

    async def _find(self, group: str, id: str) -> StoredLetter:
        topic = names.dead_letter_topic(group)
        brokers = sorted({queue.broker for queue in await self._queues(group)})
        by_id = QueryMessage(
            topic=topic, key=id, max_num=1, begin_timestamp=0, end_timestamp=2**63 - 1, unique_key=True
        )
        commands: list[ViewMessageById | QueryMessage] = [by_id]
        # A unique id looks like an offset id, but its end may be larger than any offset.
        if re.fullmatch("[0-9a-fA-F]{16}[0-7][0-9a-fA-F]{15}", id):
            commands.insert(0, ViewMessageById(physical_offset=int(id[-16:], 16)))
        codes = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
        for command in commands:

            async def one(
                broker: str, command: ViewMessageById | QueryMessage = command
            ) -> tuple[list[Message], list[Record]]:
                reply = await self._calls.ask(broker, command, accept=codes)
                if reply.code in codes:
                    return [], []
                return messages_of(broker, reply.body), records_in(reply.body, broker)

            found, _ = await self._calls.from_each(brokers, one)
            for broker, (messages, records) in found.items():
                for message, record in zip(messages, records, strict=True):
                    if record.topic == topic and id.upper() in (message.id.upper(), message.offset_id):
                        return StoredLetter(Queue(topic, broker, record.queue_id), message, record)
        raise NoSuchMessage(
            f"group {group} has no dead letter with the id {id}",
            hint=f"`metaq dlq list {group}` lists them",
        )
