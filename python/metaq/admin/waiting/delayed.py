"""Delayed messages, on asyncio: counted, listed and recalled."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeVar

from metaq.admin.calls import UNKNOWN_REQUEST, Calls
from metaq.admin.results import BrokerFailure
from metaq.admin.waiting.due_buckets import Spans
from metaq.admin.waiting.offset_ids import check_limit, checked_offset_id
from metaq.admin.waiting.results import (
    DelayedMessage,
    DelayedMessages,
    DelayedOverview,
    DelayLevelCount,
    DueBucket,
)
from metaq.errors import NoSuchMessage, NotSupported, UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.waiting import (
    BUCKETS_MAX,
    LISTED_MAX,
    TIME_MAX_MS,
    DelayedFigures,
    DelayedLine,
    DelayedLines,
    GetDelayedFigures,
    ListDelayedMessages,
    RecallDelayedMessage,
)
from metaq.protocol.errors import Refused
from metaq.protocol.reply import Reply

BUCKETS: Final = 48
LIMIT: Final = 100
_B = TypeVar("_B", DelayedFigures, DelayedLines)


class Delayed:
    """Counts and lists the messages that wait for their time, and recalls them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def overview(self, *, buckets: int = BUCKETS, broker: str | None = None) -> DelayedOverview:
        """Counts the messages that wait on one broker or on all, and divides their due times into at most
        `buckets` equal spans.

        Each broker gets two requests, and reads no messages for them. Brokers that are not MetaQ's do not
        report delayed messages: `missing` says so. Raises NoRoute and UsageError.
        """
        if not 1 <= buckets <= BUCKETS_MAX:
            raise UsageError(f"buckets is {buckets}", hint=f"it is a number from 1 to {BUCKETS_MAX}")
        brokers = await self._calls.masters() if broker is None else [broker]
        figures, failures, missing = await self._figures(brokers, GetDelayedFigures())
        if not figures:
            return DelayedOverview(None, None, None, None, (), (), failures, missing)
        first = [known.earliest_ms for known in figures.values() if known.earliest_ms is not None]
        last = [known.latest_ms for known in figures.values() if known.latest_ms is not None]
        histogram: tuple[DueBucket, ...] = ()
        if first and last:
            # Late messages count in the first span, so no span begins before now.
            begin_ms = max(min(first), min(known.now_ms for known in figures.values()))
            spans = Spans.covering(begin_ms, max(*last, begin_ms), buckets)
            command = GetDelayedFigures(from_ms=spans.from_ms, step_ms=spans.step_ms, buckets=spans.count)
            counted, lost, silent = await self._figures(figures, command)
            failures, missing = (*failures, *lost), (*missing, *silent)
            histogram = spans.buckets([known.counts for known in counted.values()])
        levels = _levels(figures.values())
        return DelayedOverview(
            sum(known.timed for known in figures.values()) + sum(level.messages for level in levels),
            sum(known.recalls for known in figures.values()),
            min(first, default=None),
            max(last, default=None),
            levels,
            histogram,
            failures,
            missing,
        )

    async def list(
        self,
        *,
        topic: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int = LIMIT,
        broker: str | None = None,
    ) -> DelayedMessages:
        """Lists messages that wait, in the order of their due time: those for a topic or for all topics, due
        from `from_ms` up to but not including `to_ms`.

        A message shows up within a second or two after it was sent. Brokers bound their search; then
        `is_truncated` is true. To go on behind a list, give the last `due_ms` as `from_ms`. Raises NoRoute
        and UsageError.
        """
        check_limit(limit, LISTED_MAX)
        command = ListDelayedMessages(
            from_ms=0 if from_ms is None else min(max(from_ms, 0), TIME_MAX_MS),
            to_ms=TIME_MAX_MS if to_ms is None else min(max(to_ms, 0), TIME_MAX_MS),
            count=limit,
            topic=topic,
        )
        brokers = await self._calls.masters() if broker is None else [broker]
        found, failures, missing = await self._ask_each(brokers, command, DelayedLines)
        messages = sorted(
            (_message(name, line) for name, lines in found.items() for line in lines.messages),
            key=lambda message: (message.due_ms, message.broker, message.offset_id),
        )
        is_truncated = len(messages) > limit or any(lines.is_truncated for lines in found.values())
        return DelayedMessages(tuple(messages[:limit]), is_truncated, failures, missing)

    async def find(self, offset_id: str, *, broker: str | None = None) -> DelayedMessage:
        """Finds a message that waits, by its offset id. Without `broker`, all masters are asked. Raises
        NoSuchMessage, NoRoute, NotSupported and UsageError."""
        return (await self._find(offset_id, broker))[1]

    async def recall(self, offset_id: str, *, broker: str | None = None) -> DelayedMessage:
        """Recalls a message that waits, by its offset id, so that nobody gets it. Without `broker`, all
        masters are asked for it.

        Returns the message. Raises NoSuchMessage, NoRoute, NotSupported and UsageError, and Refused if the
        message has a delay level, was recalled before or is due.
        """
        name, _ = await self._find(offset_id, broker)
        reply = await self._calls.change(name, RecallDelayedMessage(offset_id=offset_id.upper()))
        return _message(name, DelayedLines.decode(reply.body).messages[0])

    # Inside

    async def _figures(
        self, brokers: Collection[str], command: GetDelayedFigures
    ) -> tuple[dict[str, DelayedFigures], tuple[BrokerFailure, ...], tuple[str, ...]]:
        return await self._ask_each(brokers, command, DelayedFigures)

    async def _ask_each(
        self, brokers: Collection[str], command: Command, body: type[_B]
    ) -> tuple[dict[str, _B], tuple[BrokerFailure, ...], tuple[str, ...]]:
        """Returns the answers, the brokers that did not answer, and a sentence for each that does not know
        the request or has not counted its messages yet."""
        missing: dict[str, str] = {}

        async def ask(broker: str) -> _B | None:
            try:
                reply = await self._calls.ask(broker, command, accept=(UNKNOWN_REQUEST,))
            except Refused as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
                missing[broker] = f"{broker} does not report delayed messages now: {error}"
                return None
            if reply.code != UNKNOWN_REQUEST:
                return body.decode(reply.body)
            missing[broker] = _not_reported(broker)
            return None

        found, failures = await self._calls.from_each(brokers, ask)
        answers = {broker: answer for broker, answer in found.items() if answer is not None}
        return answers, failures, tuple(missing[broker] for broker in sorted(missing))

    async def _find(self, offset_id: str, broker: str | None) -> tuple[str, DelayedMessage]:
        command: Command = ListDelayedMessages(count=1, offset_id=checked_offset_id(offset_id))
        codes = (UNKNOWN_REQUEST, ResponseCode.QUERY_NOT_FOUND)

        async def ask(name: str) -> Reply:
            return await self._calls.ask(name, command, accept=codes)

        brokers = await self._calls.masters() if broker is None else [broker]
        replies, _ = await self._calls.from_each(brokers, ask)
        for name, reply in replies.items():
            if reply.code == ResponseCode.SUCCESS:
                return name, _message(name, DelayedLines.decode(reply.body).messages[0])
        if all(reply.code == UNKNOWN_REQUEST for reply in replies.values()):
            raise NotSupported(_not_reported(", ".join(sorted(replies))))
        raise NoSuchMessage(
            f"no message with the offset id {offset_id} waits for its time",
            hint="it may be delivered already; `metaq delayed list` lists those that wait",
        )


def _not_reported(broker: str) -> str:
    return f"{broker} does not report delayed messages: it is not a MetaQ broker, or it is an older one"


def _levels(figures: Collection[DelayedFigures]) -> tuple[DelayLevelCount, ...]:
    """Adds up the levels of brokers. Those with different delays stay apart."""
    counts: dict[tuple[int, int], int] = {}
    for known in figures:
        for line in known.levels:
            key = (line.level, line.delay_ms)
            counts[key] = counts.get(key, 0) + line.messages
    return tuple(DelayLevelCount(*key, messages) for key, messages in sorted(counts.items()))


def _message(broker: str, line: DelayedLine) -> DelayedMessage:
    return DelayedMessage(
        broker,
        line.id,
        line.offset_id,
        line.topic,
        line.queue_id,
        tuple(line.keys),
        line.tags,
        line.due_ms,
        line.stored_ms,
        line.size_bytes,
        line.level,
        line.is_recalled,
    )
