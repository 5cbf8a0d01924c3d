"""Messages that wait: for their time, or for the decision about their transaction.

RocketMQ has none of these requests: its tools cannot list such messages. The codes follow those of `health`.
"""

from __future__ import annotations

from typing import Final

from metaq.protocol.bodies import Body, always
from metaq.protocol.command import AnswerMax, Command, Int32, Int64

LISTED_MAX: Final = 1_000
"""Messages or transactions of one answer."""
BUCKETS_MAX: Final = 1_000
"""Counts of one histogram."""
TIME_MAX_MS: Final = 2**62


class LevelLine(Body):
    """One delay level for which messages wait."""

    level: int = always(0)
    delay_ms: int = always(0)
    messages: int = always(0)


class DelayedFigures(Body):
    """The delayed messages of a broker."""

    now_ms: int = always(0)
    """The broker's clock."""
    timed: int = always(0)
    """Messages with a time of their own; recalled ones are included."""
    recalls: int = always(0)
    levels: list[LevelLine] = always(factory=list)
    earliest_ms: int | None = None
    latest_ms: int | None = None
    counts: list[int] = always(factory=list)
    """Messages in each span that was asked for."""


class GetDelayedFigures(Command, code=30_342, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: DelayedFigures. Its counts begin at `from_ms`, and each is of `step_ms`, which are
    whole minutes. The first count has the messages before it as well, the last one those behind it."""

    from_ms: Int64 = 0
    step_ms: Int64 = 0
    buckets: Int32 = 0


class DelayedLine(Body):
    """One delayed message."""

    id: str = always("")
    offset_id: str = always("")
    topic: str = always("")
    queue_id: int = always(0)
    keys: list[str] = always(factory=list)
    tags: str | None = None
    due_ms: int = always(0)
    stored_ms: int = always(0)
    size_bytes: int = always(0)
    level: int | None = None
    is_recalled: bool = always(False)


class DelayedLines(Body):
    messages: list[DelayedLine] = always(factory=list)
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
    topic: str | None = None
    offset_id: str | None = None


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

    offset_id: str


class TransactionLine(Body):
    """One open transaction."""

    id: str = always("")
    transaction_id: str = always("")
    offset_id: str = always("")
    topic: str = always("")
    producer_group: str = always("")
    keys: list[str] = always(factory=list)
    tags: str | None = None
    began_ms: int = always(0)
    stored_ms: int = always(0)
    size_bytes: int = always(0)
    checks: int = always(0)
    next_check_ms: int | None = None


class TransactionLines(Body):
    transactions: list[TransactionLine] = always(factory=list)
    total: int = always(0)
    checks_max: int = always(0)


class ListTransactions(
    Command, code=30_345, permission="describe", resources={}, answer_max=AnswerMax(lines=LISTED_MAX)
):
    """Body of the answer: TransactionLines, oldest first; only those of `producer_group` if it is given, or
    only the one with `offset_id`."""

    count: Int32 = LISTED_MAX
    producer_group: str | None = None
    offset_id: str | None = None


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

    offset_id: str
    commit: bool
