"""Messages that wait: for their time, or for the decision about their transaction.

RocketMQ has none of these requests: its tools cannot list such messages. The codes follow those of `health`.
"""

from __future__ import annotations

from typing import Final

from metaq.protocol.bodies import Body, always
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import Int32, Int64, LongText, Name, Rows, ShortText, Text

LISTED_MAX: Final = 1_000
"""Messages or transactions of one answer."""
BUCKETS_MAX: Final = 1_000
"""Counts of one histogram."""
TIME_MAX_MS: Final = 2**62


class LevelLine(Body):
    """One delay level for which messages wait."""

    level: Int32 = always(0)
    delay_ms: Int64 = always(0)
    messages: Int64 = always(0)


class DelayedFigures(Body):
    """The delayed messages of a broker."""

    now_ms: Int64 = always(0)
    """The broker's clock."""
    timed: Int64 = always(0)
    """Messages with a time of their own; recalled ones are included."""
    recalls: Int64 = always(0)
    levels: Rows[LevelLine] = always(factory=list)
    earliest_ms: Int64 | None = None
    latest_ms: Int64 | None = None
    counts: Rows[Int32] = always(factory=list)
    """Messages in each span that was asked for."""


class GetDelayedFigures(Command, code=30_342, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: DelayedFigures. Its counts begin at `from_ms`, and each is of `step_ms`, which are
    whole minutes. The first count has the messages before it as well, the last one those behind it."""

    from_ms: Int64 = 0
    step_ms: Int64 = 0
    buckets: Int32 = 0


class DelayedLine(Body):
    """One delayed message. Its sender chose the id, the keys and the tags."""

    id: Text = always("")
    offset_id: ShortText = always("")
    topic: Name = always("")
    queue_id: Int32 = always(0)
    keys: Rows[Text] = always(factory=list)
    tags: Text | None = None
    due_ms: Int64 = always(0)
    stored_ms: Int64 = always(0)
    size_bytes: Int64 = always(0)
    level: Int32 | None = None
    is_recalled: bool = always(False)


class DelayedLines(Body):
    messages: Rows[DelayedLine] = always(factory=list)
    is_truncated: bool = always(False)


class ListDelayedMessages(
    Command,
    code=30_343,
    permission="describe",
    resources={"topic": "topic"},
    answer_max=AnswerMax(lines=LISTED_MAX),
):
    """Body of the answer: DelayedLines in the order of their due time, from `from_ms` up to but not including
    `to_ms`; only those for `topic` if it is given, or only the one with `offset_id`."""

    from_ms: Int64 = 0
    to_ms: Int64 = TIME_MAX_MS
    count: Int32 = LISTED_MAX
    topic: Name | None = None
    offset_id: ShortText | None = None


class RecallDelayedMessage(
    Command,
    code=30_344,
    permission="admin",
    resources={},
    answer_max=AnswerMax(lines=1),
    ends_with_connection=False,
):
    """An operator recalls a message that waits for its time. Body of the answer: DelayedLines with this
    message."""

    offset_id: ShortText


class TransactionLine(Body):
    """One open transaction. Its sender chose the ids, the producer group, the keys and the tags."""

    id: Text = always("")
    transaction_id: LongText = always("")
    offset_id: ShortText = always("")
    topic: Name = always("")
    producer_group: Text = always("")
    keys: Rows[Text] = always(factory=list)
    tags: Text | None = None
    began_ms: Int64 = always(0)
    stored_ms: Int64 = always(0)
    size_bytes: Int64 = always(0)
    checks: Int32 = always(0)
    next_check_ms: Int64 | None = None


class TransactionLines(Body):
    transactions: Rows[TransactionLine] = always(factory=list)
    total: Int64 = always(0)
    checks_max: Int32 = always(0)


class ListTransactions(
    Command, code=30_345, permission="describe", resources={}, answer_max=AnswerMax(lines=LISTED_MAX)
):
    """Body of the answer: TransactionLines, oldest first; only those of `producer_group` if it is given, or
    only the one with `offset_id`."""

    count: Int32 = LISTED_MAX
    producer_group: Name | None = None
    offset_id: ShortText | None = None


class DecideTransaction(
    Command,
    code=30_346,
    permission="admin",
    resources={},
    answer_max=AnswerMax(lines=1),
    ends_with_connection=False,
):
    """An operator ends an open transaction. Body of the answer: TransactionLines with this transaction as it
    was before."""

    offset_id: ShortText
    commit: bool
