"""Transactions that nobody ended: their producers are asked, and after too many questions they are given up.

How a half message is stored and how a transaction ends is the data plane's (`server/half.rs`,
`server/end_transaction.rs`). Decided here is whom to ask when, and when to stop asking.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from enum import Enum

from metaq._core import BrokerPlane, Clock, Record, StoreFailure, decode_records
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.relays import physical_offset_of
from metaq.broker.state.clients import Clients
from metaq.protocol import names
from metaq.protocol.clients import CheckTransactionState
from metaq.protocol.codes import ResponseCode
from metaq.protocol.dispatch import Request, handles
from metaq.protocol.errors import Refused
from metaq.protocol.messages import ResumeCheckHalfMessage
from metaq.protocol.pump import Pump

_log = logging.getLogger(__name__)

BATCH_COUNT_MAX = 256
TURN_COUNT_MAX = 10_000
"""More than so many wait for the next turn, the oldest first."""
RENEW_AFTER_MS = 120_000
"""A half message that waits longer than this, such as an immune one, is stored again: the queue behind it can
then be forgotten, and a restart has little to read."""
HOUR_MS = 3_600_000


class Step(Enum):
    """What becomes of a half message in a turn."""

    ASK = 0
    RENEW = 1
    PARK = 2


class Transactions:
    """The checks of one broker's open transactions, and where a restart begins to look for them."""

    def __init__(
        self, options: BrokerOptions, clock: Clock, plane: BrokerPlane, clients: Clients, pump: Pump
    ) -> None:
        self._options = options
        self._clock = clock
        self._plane = plane
        self._clients = clients
        self._pump = pump
        self._checked_ms = clock.now_ms()
        self._turning = asyncio.Lock()
        self._next_member: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    async def load(self) -> None:
        """After the committed offsets, before the plane starts."""
        count = await asyncio.to_thread(self._plane.load_transactions)
        if count:
            _log.info("%d transactions are open", count)

    async def keep_offsets(self) -> None:
        """Commits what is done with, as the group under which Apache's broker keeps it too."""
        offsets = await asyncio.to_thread(self._plane.transaction_offsets)
        if offsets is None or offsets == (0, 0):
            return  # The disk was too slow, or nobody ever began a transaction.
        half_offset, done_offset = offsets
        self._plane.assign_offset(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, half_offset)
        self._plane.assign_offset(names.TRANSACTION_GROUP, names.HALF_DONE_TOPIC, 0, done_offset)

    async def check(self) -> None:
        """Does a turn where it is time for one; cheap otherwise."""
        async with self._turning:
            now_ms = self._clock.now_ms()
            # A clock that was set back is no reason to wait for it.
            if 0 <= now_ms - self._checked_ms < self._options.transaction_check_interval_s * 1000:
                return
            self._checked_ms = now_ms
            await self._turn(now_ms)

    async def _turn(self, began_ms: int) -> None:
        for _ in range(TURN_COUNT_MAX // BATCH_COUNT_MAX):
            due = await asyncio.to_thread(
                self._plane.due_transactions,
                timeout_ms=self._options.broker.transaction_timeout_ms,
                renew_ms=RENEW_AFTER_MS,
                stored_before_ms=began_ms,
                count_max=BATCH_COUNT_MAX,
            )
            if not due or not await self._handle([decode_records(half)[0] for half in due]):
                return

    async def _handle(self, halves: list[Record]) -> bool:
        """True where something was done, so that the turn may look for more."""
        steps: dict[Step, list[int]] = {step: [] for step in Step}
        now_ms = self._clock.now_ms()
        for half in halves:
            steps[next_step(half, now_ms, self._options)].append(half.queue_offset)
        parked = await asyncio.to_thread(
            self._plane.park_transactions, steps[Step.PARK], names.CHECKS_EXHAUSTED_TOPIC
        )
        if parked:
            _log.warning("%d transactions were given up: see %s", parked, names.CHECKS_EXHAUSTED_TOPIC)
        renewed = await asyncio.to_thread(self._plane.renew_transactions, steps[Step.RENEW], False)
        asked = await asyncio.to_thread(self._plane.renew_transactions, steps[Step.ASK], True)
        for copy in asked:
            self._ask(copy)
        return bool(parked or renewed or asked)

    @handles(ResumeCheckHalfMessage)
    async def resume_check_half_message(self, command: ResumeCheckHalfMessage, request: Request) -> None:
        """Asks its producers from the beginning again, beginning with the next turn."""
        physical_offset = physical_offset_of(command.msg_id)
        try:
            has_room = await asyncio.to_thread(
                self._plane.resume_transaction, physical_offset, names.CHECKS_EXHAUSTED_TOPIC
            )
        except LookupError:
            remark = f"message {command.msg_id[:64]} is not in {names.CHECKS_EXHAUSTED_TOPIC}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None
        except StoreFailure as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the message was not put back: {error}") from None
        if not has_room:
            remark = "too many transactions are open (transactions_open_max); try again later"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)

    def _ask(self, copy: bytes) -> None:
        """One live producer of the group, another one each time. Where there is none the check counts all the
        same: a group that is gone for good must not keep its half messages for ever."""
        (half,) = decode_records(copy)
        group = half.properties.get("PGROUP", "")
        members = self._clients.producers(group)
        if not members:
            self._next_member.pop(group, None)
            return
        unique_key = half.properties.get("UNIQ_KEY", "")
        command = CheckTransactionState(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=half.message_id,
            topic=half.topic,
            bname=self._options.broker.name,
        )
        first = next(self._next_member[group])
        for turn in range(len(members)):
            member = members[(first + turn) % len(members)]
            if self._pump.send_oneway(member.connection, command, copy):
                return


def next_step(half: Record, now_ms: int, options: BrokerOptions) -> Step:
    """Gives up what was checked too often or is too old, leaves alone what is still in its time, asks for the
    rest."""
    stored_ms = half.store_timestamp_ms
    began_ms = min(half.born_timestamp_ms, stored_ms) if half.born_timestamp_ms > 0 else stored_ms
    age_ms = now_ms - began_ms
    checks = _number(half.properties.get("TRANSACTION_CHECK_TIMES"), 0)
    if checks >= options.transaction_check_max or age_ms > options.store.file_reserved_hours * HOUR_MS:
        return Step.PARK
    immunity_s = _number(half.properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS"), -1)
    patience_ms = immunity_s * 1000 if immunity_s >= 0 else options.broker.transaction_timeout_ms
    return Step.RENEW if age_ms <= patience_ms else Step.ASK


def _number(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise
