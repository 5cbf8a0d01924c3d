"""Open transactions for operators: a list of them, and their end by hand.

crates/server/src/transaction/by_hand.rs bounds the search and ends them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from metaq._core import BrokerPlane, Store, StoreFailure, decode_records
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.relays import physical_offset_of
from metaq.broker.requests.spaced_work import letting_others_run
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.waiting import (
    LISTED_MAX,
    DecideTransaction,
    ListTransactions,
    TransactionLine,
    TransactionLines,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.properties import (
    KEYS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECKS,
    TRANSACTION_ID,
    UNIQUE_KEY,
    number_of,
)
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

_Found = tuple[bytes, int, int, int]


class OpenTransactions:
    """Answers for the open transactions of this master. `next_check_ms` is the time of the first turn of
    checks from a time on."""

    def __init__(
        self,
        options: BrokerOptions,
        store: Store,
        plane: BrokerPlane,
        next_check_ms: Callable[[int], int],
        pools: WorkPools,
    ) -> None:
        self._options = options
        self._store = store
        self._plane = plane
        self._next_check_ms = next_check_ms
        self._pools = pools

    @handles(ListTransactions)
    async def list_transactions(self, command: ListTransactions, request: Request) -> Response:
        if command.offset_id is not None:
            line = await self._find(command.offset_id, request)
            return Response(body=self._lines([line], 1).encode())

        def search() -> bytes:
            found, total = self._plane.list_transactions(
                count_max=min(max(command.count, 1), LISTED_MAX),
                timeout_ms=self._options.broker.transaction_timeout_ms,
                renew_ms=int(self._options.transaction_renew_s * 1000),
                producer_group=command.producer_group,
            )
            return self._lines([self._line(each) for each in letting_others_run(found)], total).encode()

        return Response(body=await self._pools.look_ups.run(request, search))

    @handles(DecideTransaction)
    async def decide_transaction(self, command: DecideTransaction, request: Request) -> Response:
        line = await self._find(command.offset_id, request)
        physical_offset = physical_offset_of(command.offset_id)
        try:
            before = await self._pools.storing.run(
                request,
                lambda: self._plane.decide_transaction(physical_offset, command.commit),
            )
        except LookupError:
            raise _not_open(command.offset_id, "no half message is stored there") from None
        except StoreFailure as failure:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the end of the transaction was not stored: {failure}"
            ) from failure
        if before is not None:
            raise _not_open(command.offset_id, _ended(before))
        peer_log.write(
            _log,
            logging.INFO,
            request.remote,
            "transaction %s of producer group %s was %s by hand, by %s",
            line.transaction_id,
            line.producer_group,
            "committed" if command.commit else "rolled back",
            request.remote,
        )
        return Response(body=self._lines([line], 1).encode())

    async def _find(self, offset_id: str, request: Request) -> TransactionLine:
        physical_offset = physical_offset_of(offset_id)

        def find() -> TransactionLine:
            # Another broker may have another half message at the same place.
            stored = self._store.record_at(physical_offset)
            if stored is None or decode_records(stored)[0].message_id != offset_id.upper():
                raise _not_open(offset_id, "no half message is stored there")
            try:
                found, before = self._plane.find_transaction(
                    physical_offset,
                    timeout_ms=self._options.broker.transaction_timeout_ms,
                    renew_ms=int(self._options.transaction_renew_s * 1000),
                )
            except LookupError:
                raise _not_open(offset_id, "no half message is stored there") from None
            if found is None:
                raise _not_open(offset_id, _ended(before or ""))
            return self._line(found)

        return await self._pools.look_ups.run(request, find)

    def _lines(self, lines: list[TransactionLine], total: int) -> TransactionLines:
        return TransactionLines(
            transactions=lines, total=total, checks_max=self._options.transaction_check_max
        )

    def _line(self, found: _Found) -> TransactionLine:
        head, size_bytes, began_ms, check_from_ms = found
        (record,) = decode_records(head)
        properties = record.properties
        unique_id = properties.get(UNIQUE_KEY, "")
        return TransactionLine(
            id=unique_id,
            transaction_id=properties.get(TRANSACTION_ID, unique_id),
            offset_id=record.message_id,
            topic=properties.get(REAL_TOPIC, ""),
            producer_group=properties.get(PRODUCER_GROUP, ""),
            keys=properties.get(KEYS, "").split(),
            tags=properties.get(TAGS),
            began_ms=began_ms,
            stored_ms=record.store_timestamp_ms,
            size_bytes=size_bytes,
            checks=number_of(properties.get(TRANSACTION_CHECKS)),
            next_check_ms=self._next_check_ms(check_from_ms),
        )


def _ended(before: str) -> str:
    """Says how a transaction ended before."""
    if before == "given up":
        return f"it was given up, and its message is in {names.CHECKS_EXHAUSTED_TOPIC}"
    if before in ("committed", "rolled back"):
        return f"it was {before} before"
    return "it ended long ago, and its outcome is no longer known"


def _not_open(offset_id: str, why: str) -> Refused:
    return Refused(ResponseCode.QUERY_NOT_FOUND, f"no open transaction has the offset id {offset_id}: {why}")
