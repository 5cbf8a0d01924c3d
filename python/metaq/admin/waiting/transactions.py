"""Open transactions, on asyncio: listed, and ended by hand."""

from __future__ import annotations

from typing import Final

from metaq.admin.calls import UNKNOWN_REQUEST, Calls
from metaq.admin.waiting.offset_ids import check_limit, checked_offset_id
from metaq.admin.waiting.results import Decision, OpenTransaction, OpenTransactions
from metaq.errors import NoSuchMessage, NotSupported, UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.waiting import (
    LISTED_MAX,
    DecideTransaction,
    ListTransactions,
    TransactionLine,
    TransactionLines,
)
from metaq.protocol.reply import Reply

LIMIT: Final = 100


class Transactions:
    """Lists the transactions that their producers have not ended, and ends them by hand."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(
        self, *, limit: int = LIMIT, producer_group: str | None = None, broker: str | None = None
    ) -> OpenTransactions:
        """Lists open transactions, oldest first: of one producer group or of all, on one broker or on all.

        Brokers that are not MetaQ's do not report them: `missing` says so. Raises NoRoute and UsageError.
        """
        check_limit(limit, LISTED_MAX)
        command = ListTransactions(count=limit, producer_group=producer_group)

        async def ask(name: str) -> TransactionLines | None:
            reply = await self._calls.ask(name, command, accept=(UNKNOWN_REQUEST,))
            return None if reply.code == UNKNOWN_REQUEST else TransactionLines.decode(reply.body)

        brokers = await self._calls.masters() if broker is None else [broker]
        answers, failures = await self._calls.from_each(brokers, ask)
        missing = sorted(name for name, lines in answers.items() if lines is None)
        found = {name: lines for name, lines in answers.items() if lines is not None}
        transactions = sorted(
            (transaction for name, lines in found.items() for transaction in _transactions(name, lines)),
            key=lambda transaction: (transaction.began_ms, transaction.broker, transaction.offset_id),
        )
        total = sum(lines.total for lines in found.values()) if found else None
        shown = tuple(transactions[:limit])
        is_truncated = total is not None and total > len(shown)
        return OpenTransactions(
            shown, total, is_truncated, failures, tuple(_not_reported(name) for name in missing)
        )

    async def find(self, offset_id: str, *, broker: str | None = None) -> OpenTransaction:
        """Finds an open transaction by an offset id of its half message. Without `broker`, all masters are
        asked. Raises NoSuchMessage, NoRoute, NotSupported and UsageError."""
        return (await self._find(offset_id, broker))[1]

    async def decide(
        self, offset_id: str, decision: Decision, *, broker: str | None = None
    ) -> OpenTransaction:
        """Commits an open transaction or rolls it back, instead of its producer. Without `broker`, all
        masters are asked for it.

        Returns the transaction as it was. A later decision of the producer is refused if it differs. Raises
        NoSuchMessage, NoRoute, NotSupported and UsageError, and Refused if the transaction has ended
        meanwhile.
        """
        if decision not in ("commit", "rollback"):
            raise UsageError(f"the decision is {decision!r}", hint="it is commit or rollback")
        name, _ = await self._find(offset_id, broker)
        command = DecideTransaction(offset_id=offset_id.upper(), commit=decision == "commit")
        reply = await self._calls.change(name, command)
        return _transactions(name, TransactionLines.decode(reply.body))[0]

    # Inside

    async def _find(self, offset_id: str, broker: str | None) -> tuple[str, OpenTransaction]:
        command = ListTransactions(count=1, offset_id=checked_offset_id(offset_id))
        codes = (UNKNOWN_REQUEST, ResponseCode.QUERY_NOT_FOUND)

        async def ask(name: str) -> Reply:
            return await self._calls.ask(name, command, accept=codes)

        brokers = await self._calls.masters() if broker is None else [broker]
        replies, _ = await self._calls.from_each(brokers, ask)
        for name, reply in replies.items():
            if reply.code == ResponseCode.SUCCESS:
                return name, _transactions(name, TransactionLines.decode(reply.body))[0]
        if all(reply.code == UNKNOWN_REQUEST for reply in replies.values()):
            raise NotSupported(_not_reported(", ".join(sorted(replies))))
        remarks = [reply.remark for reply in replies.values() if reply.code != UNKNOWN_REQUEST]
        raise NoSuchMessage(
            f"no transaction with the offset id {offset_id} is open: {remarks[0]}",
            hint="`metaq transaction list` lists those that are open",
        )


def _not_reported(broker: str) -> str:
    return f"{broker} does not report open transactions: it is not a MetaQ broker, or it is an older one"


def _transactions(broker: str, lines: TransactionLines) -> tuple[OpenTransaction, ...]:
    return tuple(_transaction(broker, line, lines.checks_max) for line in lines.transactions)


def _transaction(broker: str, line: TransactionLine, checks_max: int) -> OpenTransaction:
    return OpenTransaction(
        broker,
        line.id,
        line.transaction_id,
        line.offset_id,
        line.topic,
        line.producer_group,
        tuple(line.keys),
        line.tags,
        line.began_ms,
        line.stored_ms,
        line.size_bytes,
        line.checks,
        checks_max,
        line.next_check_ms,
    )
