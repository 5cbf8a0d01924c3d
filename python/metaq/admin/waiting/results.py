"""The results of `delayed` and `transactions`. `metaq.admin.results` describes how results are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metaq.admin.results import BrokerFailure

Decision = Literal["commit", "rollback"]


# Delayed messages


@dataclass(frozen=True, slots=True)
class DueBucket:
    """The delayed messages that are due within a span of time, from `from_ms` up to but not including
    `to_ms`."""

    from_ms: int
    to_ms: int
    messages: int
    """Recalled ones are included."""


@dataclass(frozen=True, slots=True)
class DelayLevelCount:
    """The messages that wait for one of the delay levels, on all brokers together."""

    level: int
    delay_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class DelayedOverview:
    """The delayed messages of a cluster, and when they are due."""

    pending: int | None
    """Messages that wait, with a time of their own or for a delay level; recalled ones are included. None if
    no broker reports it."""
    recalled: int | None
    """Recalls among them. A recalled message stays stored until its time, and is then dropped."""
    earliest_ms: int | None
    """When the next message is due; None if none waits or no broker reports it."""
    latest_ms: int | None
    """When the last message is due, to the minute."""
    levels: tuple[DelayLevelCount, ...]
    """The delay levels for which messages wait."""
    histogram: tuple[DueBucket, ...]
    """Messages by due time, in order and without gaps. A message that is late counts in the first bucket."""
    failures: tuple[BrokerFailure, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each broker that does not report delayed messages."""


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time."""

    broker: str
    id: str
    """The unique id."""
    offset_id: str
    """Names its place in the broker, and is the argument of `recall`."""
    topic: str
    """The topic that will get the message."""
    queue_id: int
    keys: tuple[str, ...]
    tags: str | None
    due_ms: int
    stored_ms: int
    size_bytes: int
    """As stored."""
    level: int | None
    """Its delay level; None if it has a time of its own."""
    is_recalled: bool
    """It was recalled, so nobody will get it."""

    @property
    def can_be_recalled(self) -> bool:
        """A message with a delay level cannot be recalled, and no message can be recalled twice."""
        return self.level is None and not self.is_recalled


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Delayed messages in the order of their due time."""

    messages: tuple[DelayedMessage, ...]
    is_truncated: bool
    """More messages match, or a broker stopped its search at its limit. Narrow the time span."""
    failures: tuple[BrokerFailure, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each broker that does not report delayed messages."""


# Transactions


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half message: its producer has neither committed it nor rolled it back."""

    broker: str
    id: str
    """The unique id of the message."""
    transaction_id: str
    offset_id: str
    """Names its place in the broker, and is the argument of `decide`. Each check stores the half message
    again at another place; older offset ids stay valid."""
    topic: str
    """The topic that gets the message after a commit."""
    producer_group: str
    keys: tuple[str, ...]
    tags: str | None
    began_ms: int
    """When its producer sent it."""
    stored_ms: int
    """When its last copy was stored."""
    size_bytes: int
    """As stored."""
    checks: int
    """How often its producer was asked."""
    checks_max: int
    """After this many checks the broker gives it up."""
    next_check_ms: int | None
    """When its producer is asked next, or when it is given up; None if it is not known."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions that are open, oldest first."""

    transactions: tuple[OpenTransaction, ...]
    total: int | None
    """All open transactions, of one producer group if one was asked for; None if no broker reports it."""
    is_truncated: bool
    """There are more than those that are listed."""
    failures: tuple[BrokerFailure, ...] = ()
    missing: tuple[str, ...] = ()
    """A sentence for each broker that does not report open transactions."""
