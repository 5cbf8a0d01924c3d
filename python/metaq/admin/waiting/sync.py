"""`delayed` and `transactions` for plain code: the same names and signatures, and calls that wait."""

from __future__ import annotations

from metaq.admin.waiting import delayed, transactions
from metaq.admin.waiting.delayed import BUCKETS
from metaq.admin.waiting.delayed import LIMIT as DELAYED_LIMIT
from metaq.admin.waiting.results import (
    Decision,
    DelayedMessage,
    DelayedMessages,
    DelayedOverview,
    OpenTransaction,
    OpenTransactions,
)
from metaq.admin.waiting.transactions import LIMIT as TRANSACTIONS_LIMIT
from metaq.client.portal import Portal


class Delayed:
    """Counts and lists the messages that wait for their time, and recalls them."""

    def __init__(self, portal: Portal, work: delayed.Delayed) -> None:
        self._portal = portal
        self._work = work

    def overview(self, *, buckets: int = BUCKETS, broker: str | None = None) -> DelayedOverview:
        """Counts the messages that wait on one broker or on all, and divides their due times into at most
        `buckets` equal spans.

        Each broker gets two requests, and reads no messages for them. Brokers that are not MetaQ's do not
        report delayed messages: `missing` says so. Raises NoRoute and UsageError.
        """
        return self._portal.run(self._work.overview, buckets=buckets, broker=broker)

    def list(
        self,
        *,
        topic: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int = DELAYED_LIMIT,
        broker: str | None = None,
    ) -> DelayedMessages:
        """Lists messages that wait, in the order of their due time: those for a topic or for all topics, due
        from `from_ms` up to but not including `to_ms`.

        A message shows up within a second or two after it was sent. Brokers bound their search; then
        `is_truncated` is true. To go on behind a list, give the last `due_ms` as `from_ms`. Raises NoRoute
        and UsageError.
        """
        return self._portal.run(
            self._work.list, topic=topic, from_ms=from_ms, to_ms=to_ms, limit=limit, broker=broker
        )

    def find(self, offset_id: str, *, broker: str | None = None) -> DelayedMessage:
        """Finds a message that waits, by its offset id. Without `broker`, all masters are asked. Raises
        NoSuchMessage, NoRoute, NotSupported and UsageError."""
        return self._portal.run(self._work.find, offset_id, broker=broker)

    def recall(self, offset_id: str, *, broker: str | None = None) -> DelayedMessage:
        """Recalls a message that waits, by its offset id, so that nobody gets it. Without `broker`, all
        masters are asked for it.

        Returns the message. Raises NoSuchMessage, NoRoute, NotSupported and UsageError, and Refused if the
        message has a delay level, was recalled before or is due.
        """
        return self._portal.run(self._work.recall, offset_id, broker=broker)


class Transactions:
    """Lists the transactions that their producers have not ended, and ends them by hand."""

    def __init__(self, portal: Portal, work: transactions.Transactions) -> None:
        self._portal = portal
        self._work = work

    def list(
        self,
        *,
        limit: int = TRANSACTIONS_LIMIT,
        producer_group: str | None = None,
        broker: str | None = None,
    ) -> OpenTransactions:
        """Lists open transactions, oldest first: of one producer group or of all, on one broker or on all.

        Brokers that are not MetaQ's do not report them: `missing` says so. Raises NoRoute and UsageError.
        """
        return self._portal.run(self._work.list, limit=limit, producer_group=producer_group, broker=broker)

    def find(self, offset_id: str, *, broker: str | None = None) -> OpenTransaction:
        """Finds an open transaction by an offset id of its half message. Without `broker`, all masters are
        asked. Raises NoSuchMessage, NoRoute, NotSupported and UsageError."""
        return self._portal.run(self._work.find, offset_id, broker=broker)

    def decide(self, offset_id: str, decision: Decision, *, broker: str | None = None) -> OpenTransaction:
        """Commits an open transaction or rolls it back, instead of its producer. Without `broker`, all
        masters are asked for it.

        Returns the transaction as it was. A later decision of the producer is refused if it differs. Raises
        NoSuchMessage, NoRoute, NotSupported and UsageError, and Refused if the transaction has ended
        meanwhile.
        """
        return self._portal.run(self._work.decide, offset_id, decision, broker=broker)
