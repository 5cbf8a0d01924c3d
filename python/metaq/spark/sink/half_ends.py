"""Commits or rolls back many half messages, and tries again until each broker has done it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from metaq.client.producer.transactions import COMMIT, ROLL_BACK
from metaq.client.session.session import Session
from metaq.errors import NoRoute
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import EndTransaction
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply
from metaq.retry import Backoff, Retry, retry, steady
from metaq.spark.errors import SparkError
from metaq.spark.sink.markers import Chain, Marker

_log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 64
CALL_TIMEOUT_S: Final = 10.0
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
SURELY_OURS_MS: Final = 12 * 3_600_000
"""If a half message has ended and nobody knows how, only its own commit can have ended it up to this age:
brokers give none up earlier."""
_LATER: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
    )
)


class NotShown(SparkError):
    """Rows of a decided batch could not be shown."""


async def end_all(session: Session, marker: Marker, *, commit: bool, timeout_s: float) -> None:
    """Ends every half message of the marker. Raises NotShown if one could not be committed."""
    limit = Retry(timeout_s)
    for topic in marker.topics:
        # Routes tell where brokers are.
        await _find(session, topic, limit.left_s)
    ends = _Ends(session, marker, commit, limit)
    await asyncio.gather(*(ends.end_chain(chain) for chain in marker.chains))


async def _find(session: Session, topic: str, timeout_s: float) -> None:
    await retry(
        lambda: session.routes.get(topic, creatable=True),
        timeout_s,
        backoff=steady(PAUSE_MAX_S),
        retriable=lambda error: isinstance(error, Unreachable | NoRoute),
    )


class _Ends:
    def __init__(self, session: Session, marker: Marker, commit: bool, limit: Retry) -> None:
        self._session = session
        self._marker = marker
        self._commit = commit
        self._limit = limit
        self._free = asyncio.Semaphore(UNDER_WAY_MAX)

    async def end_chain(self, chain: Chain) -> None:
        if chain.is_ordered:
            for place in chain.places:
                await self._end(chain.broker, place)
        else:
            await asyncio.gather(*(self._end(chain.broker, place) for place in chain.places))

    async def _end(self, broker: str, place: tuple[int, int]) -> None:
        async with self._free:
            tries = Retry(self._limit.left_s, Backoff(PAUSE_FIRST_S, PAUSE_MAX_S))
            while True:
                try:
                    reply = await self._session.call(broker, self._command(place), timeout=CALL_TIMEOUT_S)
                    if reply.code not in _LATER:
                        return self._judge(broker, place, reply)
                    last = f"code {reply.code}: {reply.remark}"
                except (Unreachable, NoRoute) as error:
                    last = str(error)
                if not await tries.pause():
                    raise NotShown(
                        f"half message {place[0]} of {self._marker.name}/{self._marker.number} was not ended"
                        f" at {broker} in time: {last}",
                        hint="the batch is decided: its next start, or a check of the broker, finishes it",
                    )

    def _command(self, place: tuple[int, int]) -> EndTransaction:
        half_offset, physical_offset = place
        return EndTransaction(
            producer_group=self._marker.group,
            tran_state_table_offset=half_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=COMMIT if self._commit else ROLL_BACK,
            msg_id="",
            from_transaction_check=True,
        )

    def _judge(self, broker: str, place: tuple[int, int], reply: Reply) -> None:
        if reply.code == ResponseCode.SUCCESS:
            return
        age_ms = time.time_ns() // 1_000_000 - self._marker.made_ms
        if reply.code == ResponseCode.TRANSACTION_STATE_UNKNOWN and age_ms < SURELY_OURS_MS:
            return
        what = f"half message {place[0]} at {broker}: {reply.remark}"
        if not self._commit:
            _log.warning("a rollback was not taken: %s", what)
            return
        raise NotShown(
            f"rows of {self._marker.name}/{self._marker.number} cannot be shown: {what}",
            hint="messages that brokers gave up are in TRANS_CHECK_MAX_TIME_TOPIC",
        )
