"""`Admin.messages` and `Admin.dead_letters` for plain code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeVar, cast

from metaq.admin.messages import dead_letters, stored_messages
from metaq.admin.messages.dead_letters import RATE
from metaq.admin.messages.letter_pages import DeadLetterPage
from metaq.admin.messages.queue_reading import OnWait
from metaq.admin.messages.stored_messages import LIMIT
from metaq.admin.positions import Position
from metaq.admin.purge_results import Purge
from metaq.admin.results import (
    DeadLetter,
    DeadLetterCount,
    DeadLetterReason,
    MessageCopy,
    NewestMessages,
    ResendOutcome,
)
from metaq.client.message import Message
from metaq.client.portal import Portal
from metaq.client.session.routes import Queue

_T = TypeVar("_T")
_END: Final = object()


class Messages:
    """Finds messages by id, by key and by time, reads topics, sends messages and sends stored ones again.
    Nothing is consumed by it."""

    def __init__(self, portal: Portal, work: stored_messages.Messages) -> None:
        self._portal = portal
        self._work = work

    def by_id(self, topic: str, id: str) -> tuple[Message, ...]:
        """Finds a message by the id that its producer got. There are several if it was sent again or stored
        again for a retry. Raises NoSuchMessage and NoRoute."""
        return self._portal.run(self._work.by_id, topic, id)

    def by_offset_id(self, offset_id: str) -> Message:
        """Finds a message by its offset id, which names its broker and its place there. Raises UsageError
        and NoSuchMessage."""
        return self._portal.run(self._work.by_offset_id, offset_id)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = LIMIT,
    ) -> tuple[Message, ...]:
        """Finds the newest messages with a key, of all times or of those stored between two; the oldest
        first. Raises NoRoute."""
        return self._portal.run(self._work.by_key, topic, key, begin=begin, end=end, limit=limit)

    def by_time(
        self, topic: str, begin: datetime, end: datetime, *, limit: int = LIMIT
    ) -> tuple[Message, ...]:
        """Returns the first messages that were stored from one time on and before another. Raises NoRoute."""
        return self._portal.run(self._work.by_time, topic, begin, end, limit=limit)

    def read(
        self,
        topic: str,
        start: Position = "earliest",
        end: Position = "latest",
        *,
        follow: bool = False,
        last: int | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        key: str | None = None,
        queues: Iterable[Queue] | None = None,
        on_wait: OnWait | None = None,
    ) -> Iterator[Message]:
        """Yields the messages of a topic between two positions in the order in which they were stored. With
        `follow` it goes on with those that arrive, and does not end.

        `last` yields only that many messages before the end. `tags`, `sql` and `key` select messages; tags
        and a SQL92 expression exclude each other. `queues` are the queues to read. While it follows, it waits
        for a broker that is away, and calls `on_wait` with its name and the error. Raises NoRoute and
        UsageError.
        """
        return _iterate(
            self._portal,
            lambda: self._work.read(
                topic,
                start,
                end,
                follow=follow,
                last=last,
                tags=tags,
                sql=sql,
                key=key,
                queues=queues,
                on_wait=on_wait,
            ),
        )

    def newest(
        self,
        topic: str,
        *,
        limit: int = LIMIT,
        begin: datetime | None = None,
        end: datetime | None = None,
        before: str | None = None,
        after: Mapping[Queue, int] | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        key: str | None = None,
        matches: Callable[[Message], bool] | None = None,
        queues: Iterable[Queue] | None = None,
    ) -> NewestMessages:
        """Returns the newest messages of a topic, the newest first, and looks at a bounded number of them.

        `begin` and `end` are times. `tags`, `sql`, `key` and the function `matches` select messages. `before`
        is the field of an earlier result, and goes on where that ended. `after` has the first offsets to look
        at, by queue. Raises NoRoute and UsageError.
        """
        return self._portal.run(
            self._work.newest,
            topic,
            limit=limit,
            begin=begin,
            end=end,
            before=before,
            after=after,
            tags=tags,
            sql=sql,
            key=key,
            matches=matches,
            queues=queues,
        )

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay: timedelta | None = None,
    ) -> MessageCopy:
        """Sends one message, as a person does by hand: once, and without a second try. Raises InvalidMessage,
        NoRoute and Refused."""
        return self._portal.run(
            self._work.send, topic, body, tag=tag, keys=keys, properties=properties, delay=delay
        )

    def resend(self, message: Message, *, group: str | None = None) -> MessageCopy:
        """Sends a stored message again: to its topic, so that all groups get it, or to one group alone. The
        copy has the same id. Raises NoRoute, NoSuchGroup, NoSuchMessage and UsageError."""
        return self._portal.run(self._work.resend, message, group=group)


class DeadLetters:
    """Counts and lists the dead letters of groups, and gives them to their group again."""

    def __init__(self, portal: Portal, work: dead_letters.DeadLetters) -> None:
        self._portal = portal
        self._work = work

    def counts(self, groups: Iterable[str] | None = None) -> tuple[DeadLetterCount, ...]:
        """Counts the dead letters of these groups, or of every group that has some. Each group needs a few
        requests."""
        return self._portal.run(self._work.counts, groups)

    def purge(self, group: str, to: Position = "latest", *, dry_run: bool = False) -> Purge:
        """Takes away the dead letters of a group before a position, such as a time; all of them unless one is
        given. It cannot be undone. With `dry_run` nothing is changed. Raises NoSuchGroup, and the errors of
        `Topics.purge`."""
        return self._portal.run(self._work.purge, group, to, dry_run=dry_run)

    def list(self, group: str, *, resent: bool = False) -> Iterator[DeadLetter]:
        """Yields the dead letters of a group that were not sent again yet; with `resent` all of them. Raises
        NoSuchGroup."""
        return _iterate(self._portal, lambda: self._work.list(group, resent=resent))

    def reasons(
        self, group: str, *, error_type: str | None = None, reason: str | None = None
    ) -> tuple[DeadLetterReason, ...]:
        """Counts the dead letters of a group that were not sent again yet by exception and reason, most
        first; only those that `matching` yields. Reads all of them. Raises NoSuchGroup."""
        return self._portal.run(self._work.reasons, group, error_type=error_type, reason=reason)

    def matching(
        self, group: str, *, error_type: str | None = None, reason: str | None = None
    ) -> Iterator[DeadLetter]:
        """Yields the dead letters of a group that were not sent again yet: those of one exception, and those
        with a text in their reason, whatever numbers either has. Raises NoSuchGroup."""
        return _iterate(
            self._portal, lambda: self._work.matching(group, error_type=error_type, reason=reason)
        )

    def newest(
        self, group: str, *, resent: bool = False, limit: int = LIMIT, before: str | None = None
    ) -> DeadLetterPage:
        """Returns the newest dead letters of a group, the newest first, with a bounded number of requests.
        Letters that were sent again are left out, unless `resent` is set: a page may have fewer letters than
        `limit`. `before` is the field of an earlier page, and goes on where that ended. Raises NoSuchGroup
        and UsageError."""
        return self._portal.run(self._work.newest, group, resent=resent, limit=limit, before=before)

    def find(self, group: str, id: str) -> DeadLetter:
        """Finds a dead letter by its id or its offset id. Raises NoSuchGroup and NoSuchMessage."""
        return self._portal.run(self._work.find, group, id)

    def resend(self, group: str, *, rate: float = RATE) -> Iterator[DeadLetter]:
        """Gives a group its dead letters again, `rate` a second, and yields each one after it was sent.

        No other group gets them, and their tries are counted anew. If it is interrupted, the next call
        continues from there. Raises NoSuchGroup.
        """
        return _iterate(self._portal, lambda: self._work.resend(group, rate=rate))

    def resend_each(
        self, group: str, ids: Iterable[str] | None = None, *, rate: float = RATE
    ) -> Iterator[ResendOutcome]:
        """Gives a group its dead letters again, or those with these ids, and yields what became of each one.

        A letter that a broker refuses does not keep the others back, and the next call tries it again. If a
        broker does not answer, the rest of its queue waits for the next call. Raises NoSuchGroup.
        """
        return _iterate(self._portal, lambda: self._work.resend_each(group, ids, rate=rate))

    def resend_one(self, group: str, id: str, *, body: bytes | None = None) -> DeadLetter:
        """Gives a group one of its dead letters again, by its id or its offset id. With `body`, the group
        gets that instead of the stored body. Raises NoSuchGroup and NoSuchMessage."""
        return self._portal.run(self._work.resend_one, group, id, body=body)


def _iterate(portal: Portal, start: Callable[[], AsyncGenerator[_T, None]]) -> Iterator[_T]:
    """Takes each item from a generator that runs on the portal's loop."""
    generator = start()
    taking: set[asyncio.Task[object]] = set()

    async def take() -> object:
        task = asyncio.current_task()
        assert task is not None
        taking.add(task)
        task.add_done_callback(taking.discard)
        return await anext(generator, _END)

    async def end() -> None:
        # After Ctrl-C the last item may still be awaited.
        for task in list(taking):
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        await generator.aclose()

    try:
        while (item := portal.run(take)) is not _END:
            yield cast(_T, item)
    finally:
        if portal.usable:
            portal.run(end)
