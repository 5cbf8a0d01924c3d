"""Transactions: messages that consumers get only after a commit, and the checks that brokers ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

from metaq._core import Frame, Message, decode_messages, decode_records
from metaq.client.message import TRANSACTION_PREPARED
from metaq.client.producer.options import PreparedSend, ProducerOptions
from metaq.client.producer.results import SendResult, physical_offset
from metaq.client.producer.sending import Sender
from metaq.client.session.routes import Queue
from metaq.client.session.session import NOT_MINE, Session
from metaq.client.user_code import call_user
from metaq.errors import MetaqError, Undecided, UsageError
from metaq.protocol.commands.clients import CheckTransactionState
from metaq.protocol.commands.messages import EndTransaction
from metaq.protocol.dispatch import Response
from metaq.protocol.properties import PRODUCER_GROUP, TRANSACTION, UNIQUE_KEY
from metaq.retry import Backoff, retry

_log = logging.getLogger(__name__)

COMMIT: Final = 8
ROLL_BACK: Final = 12
END_TIMEOUT_S: Final = 5.0
END_RETRY_S: Final = 6.0
"""Longer than one try, and long enough to find the new master after a switch."""
END_BACKOFF: Final = Backoff(first_s=0.05, max_s=0.25, jitter=0.5)

Checker = Callable[[Message], bool | Awaitable[bool | None] | None]
"""Gets the message of a transaction and returns how it ended: True for commit, False for rollback, None if it
is not known yet and the broker should ask again."""


class Transactions:
    """The transactions of one producer."""

    def __init__(self, session: Session, sender: Sender, options: ProducerOptions) -> None:
        self._session = session
        self._sender = sender
        self._options = options
        self._checker: Checker | None = None

    def check_with(self, checker: Checker) -> None:
        """Registers the checker. Raises UsageError if there is one already."""
        if self._checker is not None:
            raise UsageError(f"the producer of {self._options.group} has a checker already")
        self._checker = checker
        self._session.on_request(CheckTransactionState.code, self._check)
        # A broker may wait for the end of a transaction that an earlier process of this group began.
        self._session.know_all_brokers()

    def stop(self) -> None:
        self._session.remove_handler(CheckTransactionState.code, self._check)

    def require_checker(self) -> None:
        """Raises UsageError if there is no checker: a transaction whose end got lost would stay open."""
        if self._checker is None:
            raise UsageError(
                "a transaction needs a checker", hint="write one and decorate it with @producer.check first"
            )

    async def begin(self, prepared: PreparedSend) -> SendResult:
        """Stores the message as a half message, which consumers do not see."""
        message = prepared.message
        message.properties[TRANSACTION] = "true"
        message.properties[PRODUCER_GROUP] = self._options.group
        message.system_flag |= TRANSACTION_PREPARED
        return await self._sender.send(message, prepared.timeout_s, key=prepared.key, queue=prepared.queue)

    async def end(self, half: SendResult, decision: int, properties: Mapping[str, str]) -> None:
        """Commits or rolls back. Raises Undecided if the broker did not answer; it will ask the checker."""
        command = EndTransaction(
            producer_group=self._options.group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=physical_offset(half.offset_id),
            commit_or_rollback=decision,
            msg_id=half.id,
            topic=half.queue.topic,
            transaction_id=half.transaction_id or half.id,
        )

        async def call() -> None:
            try:
                reply = await self._session.call(half.queue.broker, command, timeout=END_TIMEOUT_S)
                reply.check()
            except MetaqError as error:
                if error.retriable:
                    # The broker may have another master now.
                    await self._session.routes.get(half.queue.topic, refresh=True)
                raise

        try:
            await retry(call, END_RETRY_S, backoff=END_BACKOFF)
        except MetaqError as error:
            raise Undecided(
                f"{'commit' if decision == COMMIT else 'rollback'} of transaction {half.id} did not"
                f" reach {half.queue.broker}: {error}",
                hint="the broker will ask the checker",
            ) from error
        self._session.telemetry.ended_transaction(command, half.queue.broker, properties)

    async def _check(self, address: str, frame: Frame) -> Response | None:
        records = decode_records(frame.body)
        if not records or records[0].properties.get(PRODUCER_GROUP) != self._options.group:
            return NOT_MINE
        checker = self._checker
        if checker is None:
            return NOT_MINE
        command = CheckTransactionState.parse(frame.fields)
        record = records[0]
        try:
            queue = Queue(record.topic, command.bname or address, record.queue_id)
            (message,), _ = decode_messages(frame.body, queue, shows_first_topic=False)
            verdict = await call_user(checker, message)
        except Exception:
            _log.exception("the checker of %s failed; the broker will ask again", self._options.group)
            return None
        if verdict is None:
            return None
        if not isinstance(verdict, bool):
            _log.error(
                "the checker of %s returned %r: it must return True, False or None",
                self._options.group,
                verdict,
            )
            return None
        end = EndTransaction(
            producer_group=self._options.group,
            tran_state_table_offset=command.tran_state_table_offset,
            commit_log_offset=command.commit_log_offset,
            commit_or_rollback=COMMIT if verdict else ROLL_BACK,
            msg_id=record.properties.get(UNIQUE_KEY) or command.msg_id or record.message_id,
            topic=record.topic,
            from_transaction_check=True,
            transaction_id=command.transaction_id,
        )
        reply = await self._session.call(address, end, timeout=END_TIMEOUT_S)
        reply.check()
        self._session.telemetry.ended_transaction(end, address, message.system_properties)
        return None


class Transaction:
    """A transaction: committed at the end of its block, rolled back if the block raises.

    `commit` and `rollback` decide earlier. After `leave` the broker will ask the checker.
    """

    def __init__(self, transactions: Transactions, prepared: PreparedSend) -> None:
        self._transactions = transactions
        self._prepared = prepared
        self._half: SendResult | None = None
        self._decided = False

    @property
    def id(self) -> str:
        """The unique id of its message."""
        return self._prepared.message.id

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise UsageError("a transaction can be entered only once", hint="make another one")
        self._half = await self._transactions.begin(self._prepared)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decided:
            return
        if error is None:
            await self.commit()
            return
        try:
            # A cancellation must not interrupt the rollback.
            await asyncio.shield(self.rollback())
        except Undecided as undecided:
            error.add_note(str(undecided))

    async def commit(self) -> None:
        """Lets consumers get the message. Raises Undecided."""
        await self._end(COMMIT)

    async def rollback(self) -> None:
        """Discards the message. Raises Undecided."""
        await self._end(ROLL_BACK)

    async def leave(self) -> None:
        """Decides nothing: the broker will ask the checker."""
        self._require_open()
        self._decided = True

    async def _end(self, decision: int) -> None:
        half = self._require_open()
        self._decided = True
        await self._transactions.end(half, decision, self._prepared.message.properties)

    def _require_open(self) -> SendResult:
        if self._half is None:
            raise UsageError("the transaction has not begun", hint="use it as a context manager")
        if self._decided:
            raise UsageError("the transaction is decided already")
        return self._half
