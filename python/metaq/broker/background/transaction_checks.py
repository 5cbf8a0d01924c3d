"""Checks of open transactions: their producers are asked, and after too many checks they are given up.

The data plane stores half messages and ends transactions (`crates/server/src/transaction`). This module
decides whom to ask, when, and when to stop asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from metaq._core import BrokerPlane, Clock, StoreFailure, decode_records
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.relays import physical_offset_of
from metaq.broker.state.clients import Clients
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import CheckTransactionState
from metaq.protocol.commands.messages import ResumeCheckHalfMessage
from metaq.protocol.dispatch import Request, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.pump import Pump
from metaq.protocol.properties import PRODUCER_GROUP, TRANSACTION_CHECKS, UNIQUE_KEY, number_of
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

BATCH_COUNT_MAX = 256
TURN_COUNT_MAX = 10_000
"""The most half messages in one turn, oldest first; the others wait for the next turn."""
GROUPS_REMEMBERED_MAX = 1_000
"""Producer groups whose members take turns. A group that is forgotten begins with its first member again."""
HOUR_MS = 3_600_000


class Step(Enum):
    """The next step for a half message."""

    ASK = 0
    RENEW = 1
    GIVE_UP = 2


class MemberTurns:
    """The number of the member that each producer group is asked through next."""

    def __init__(self) -> None:
        self._next: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._next)

    def next_of(self, group: str) -> int:
        number = self._next.pop(group, 0)
        self._next[group] = number + 1
        if len(self._next) > GROUPS_REMEMBERED_MAX:
            self._next.popitem(last=False)
        return number


class TransactionChecks:
    """Checks the open transactions of one master, and keeps where a restart begins to look for them."""

    def __init__(
        self,
        options: Callable[[], BrokerOptions],
        clock: Clock,
        plane: BrokerPlane,
        clients: Clients,
        pump: Pump,
        pools: WorkPools,
    ) -> None:
        self._read_options = options
        self._clock = clock
        self._plane = plane
        self._clients = clients
        self._pump = pump
        self._pools = pools
        self._checked_ms = clock.now_ms()
        self._turning = asyncio.Lock()
        self._members = MemberTurns()

    async def load(self) -> None:
        """Finds the open transactions. Call it after the committed offsets are loaded and before the plane
        starts."""
        count = await asyncio.to_thread(self._plane.load_transactions)
        if count:
            _log.info("%d transactions are open", count)

    async def keep_offsets(self) -> None:
        """Commits the offsets below which every transaction has ended, for the group that Apache's broker
        uses too."""
        offsets = await asyncio.to_thread(self._plane.transaction_offsets)
        if offsets is None or offsets == (0, 0):
            return  # The disk was too slow, or nobody ever began a transaction.
        half_offset, done_offset = offsets
        self._plane.assign_offset(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0, half_offset)
        self._plane.assign_offset(names.TRANSACTION_GROUP, names.HALF_DONE_TOPIC, 0, done_offset)

    async def check(self) -> None:
        """Does a turn if it is time for one; cheap otherwise."""
        async with self._turning:
            now_ms = self._clock.now_ms()
            # A clock that was set back must not delay the next turn.
            if 0 <= now_ms - self._checked_ms < self._options.transaction_check_interval_s * 1000:
                return
            self._checked_ms = now_ms
            await self._turn(now_ms)

    @property
    def _options(self) -> BrokerOptions:
        """The options of now: some change while the broker runs."""
        return self._read_options()

    def next_check_ms(self, from_ms: int) -> int:
        """When the first turn of checks begins after a time."""
        interval_ms = max(int(self._options.transaction_check_interval_s * 1000), 1)
        turns = max((from_ms - self._checked_ms) // interval_ms + 1, 1)
        return self._checked_ms + turns * interval_ms

    async def _turn(self, began_ms: int) -> None:
        for _ in range(TURN_COUNT_MAX // BATCH_COUNT_MAX):
            due = await asyncio.to_thread(
                self._plane.due_transactions,
                timeout_ms=self._options.broker.transaction_timeout_ms,
                renew_ms=int(self._options.transaction_renew_s * 1000),
                stored_before_ms=began_ms,
                count_max=BATCH_COUNT_MAX,
            )
            if not due or not await self._handle(due):
                return

    async def _handle(self, due: list[tuple[bytes, int, bool]]) -> bool:
        """True if something was done, so that the turn looks for more."""
        steps: dict[Step, list[int]] = {step: [] for step in Step}
        now_ms = self._clock.now_ms()
        for stored, began_ms, is_immune in due:
            (half,) = decode_records(stored)
            checks = number_of(half.properties.get(TRANSACTION_CHECKS))
            step = next_step(checks, now_ms - began_ms, is_immune=is_immune, options=self._options)
            steps[step].append(half.queue_offset)
        given_up = await asyncio.to_thread(
            self._plane.give_up_transactions, steps[Step.GIVE_UP], names.CHECKS_EXHAUSTED_TOPIC
        )
        if given_up:
            _log.warning("%d transactions were given up: see %s", given_up, names.CHECKS_EXHAUSTED_TOPIC)
        renewed = await asyncio.to_thread(self._plane.renew_transactions, steps[Step.RENEW], False)
        asked = await asyncio.to_thread(self._plane.renew_transactions, steps[Step.ASK], True)
        for copy in asked:
            self._ask(copy)
        return bool(given_up or renewed or asked)

    @handles(ResumeCheckHalfMessage)
    async def resume_check_half_message(self, command: ResumeCheckHalfMessage, request: Request) -> None:
        """Starts the checks of a transaction that was given up again, with the next turn."""
        physical_offset = physical_offset_of(command.msg_id)
        try:
            has_room = await self._pools.administration.run(
                request,
                lambda: self._plane.resume_transaction(physical_offset, names.CHECKS_EXHAUSTED_TOPIC),
            )
        except LookupError:
            remark = f"message {command.msg_id[:64]} is not in {names.CHECKS_EXHAUSTED_TOPIC}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None
        except StoreFailure as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the message was not put back: {error}") from None
        if not has_room:
            remark = (
                "too many transactions are open (transactions_open_max, transactions_open_per_group_max, "
                "transactions_open_per_address_max); try again later"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)

    def _ask(self, copy: bytes) -> None:
        """Asks one live producer of the group, another one each time. Without any, the check counts all the
        same: a group that is gone for good must not keep its half messages for ever."""
        (half,) = decode_records(copy)
        group = half.properties.get(PRODUCER_GROUP, "")
        members = self._clients.producers(group)
        if not members:
            return
        unique_key = half.properties.get(UNIQUE_KEY, "")
        command = CheckTransactionState(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=half.message_id,
            topic=half.topic,
            bname=self._options.broker.name,
        )
        first = self._members.next_of(group)
        for turn in range(len(members)):
            member = members[(first + turn) % len(members)]
            if self._pump.send_oneway(member.connection, command, copy):
                return


def next_step(checks: int, age_ms: int, *, is_immune: bool, options: BrokerOptions) -> Step:
    """Gives up a half message that was checked too often or is too old, renews one that is still immune, and
    asks about any other."""
    if checks >= options.transaction_check_max or age_ms > options.store.file_reserved_hours * HOUR_MS:
        return Step.GIVE_UP
    return Step.RENEW if is_immune else Step.ASK
