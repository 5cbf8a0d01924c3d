"""The local retry: parks what keeps failing on this machine's disk and tries it again from there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from metaq.client.consumer.local_retry_store import Parked, ParkedMessages
from metaq.client.consumer.settlement import send_to_dead_letters
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.client.consumer.group_member import GroupConsumer

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.5
CLAIM_S: Final = 600.0
"""A try that takes longer may be made a second time by another process of the group."""
CLAIM_COUNT: Final = 16
WAIT_MAX_S: Final = 7200.0
NEVER_MS: Final = 2**62
"""What cannot be read is kept, and tried again only where somebody replays it."""

Invoke = Callable[[list[Message]], Awaitable[object]]


class Parking:
    """The parked messages of one consumer's group, and the worker that tries them again."""

    def __init__(self, core: GroupConsumer, store: ParkedMessages, invoke: Invoke) -> None:
        self._core = core
        self._store = store
        self._invoke = invoke
        self._stopping = asyncio.Event()

    async def park(self, message: Message, error: BaseException) -> None:
        """On disk when it returns."""
        now_ms = _now_ms()
        due_ms = now_ms + int(self._core.options.local_first_wait * 1000)
        await asyncio.to_thread(self._store.park, message, _record(message), repr(error), now_ms, due_ms)
        _log.warning("group %s: %s is parked after %r", self._core.options.group, message.id, error)

    async def work(self) -> None:
        """Tries what is due, until `stop`: what it has in hand then is tried to its end."""
        while not self._stopping.is_set():
            try:
                now_ms = _now_ms()
                claimed_until_ms = now_ms + int(CLAIM_S * 1000)
                due = await asyncio.to_thread(self._store.claim, now_ms, claimed_until_ms, CLAIM_COUNT)
                await self._try_all(due)
            except (MetaqError, sqlite3.Error, OSError) as error:
                _log.warning("group %s: parked messages wait: %s", self._core.options.group, error)
                due = []
            except Exception:
                _log.exception("group %s: parked messages wait", self._core.options.group)
                due = []
            if not due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        await self._stopping.wait()

    def stop(self) -> None:
        """Tries nothing more."""
        self._stopping.set()

    async def _try_all(self, due: list[Parked]) -> None:
        left = [parked.number for parked in due]
        try:
            for parked in due:
                if self._stopping.is_set():
                    break
                await self._try(parked)
                left.remove(parked.number)
        finally:
            # The consumer ends, or its disk fails: the next one need not wait until the claim is over.
            if left:
                with contextlib.suppress(sqlite3.Error):
                    self._store.release(left, _now_ms())

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    async def _try(self, parked: Parked) -> None:
        try:
            message = _message(parked)
        except Exception as error:
            _log.error("group %s: parked message %d is unreadable", self._core.options.group, parked.number)
            await asyncio.to_thread(self._store.failed, parked.number, f"unreadable: {error!r}", NEVER_MS)
            return
        after: float | None = None
        try:
            await self._invoke([message])
        except Reject as error:
            await self._give_up(parked, message, error)
            return
        except Exception as error:
            problem = error
            if isinstance(error, Retry):
                after = error.after
        else:
            await asyncio.to_thread(self._store.remove, parked.number)
            return
        if parked.attempts + 1 >= self._core.options.local_retries_max:
            await self._give_up(parked, message, problem)
            return
        if after is None:
            after = min(self._core.options.local_first_wait * 2.0 ** (parked.attempts + 1), WAIT_MAX_S)
        due_ms = _now_ms() + int(after * 1000)
        await asyncio.to_thread(self._store.failed, parked.number, repr(problem), due_ms)

    async def _give_up(self, parked: Parked, message: Message, error: BaseException) -> None:
        """It leaves this disk only after the broker has it among the dead letters."""
        if self._core.options.is_broadcast:
            _log.error("group %s: %s is given up: %r", self._core.options.group, message.id, error)
        else:
            try:
                await send_to_dead_letters(self._core, message)
            except MetaqError as problem:
                due_ms = _now_ms() + int(self._core.options.local_first_wait * 1000)
                await asyncio.to_thread(self._store.failed, parked.number, repr(problem), due_ms)
                return
        await asyncio.to_thread(self._store.remove, parked.number)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_PLAIN: Final = (
    *("topic", "tag", "id", "offset_id", "queue_offset", "physical_offset", "born_at", "stored_at"),
    *("born_host", "store_host", "reconsume_times", "flag", "system_flag"),
)


def _record(message: Message) -> dict[str, object]:
    """Everything of it but queue and body, as JSON takes it."""
    plain: dict[str, object] = {name: getattr(message, name) for name in _PLAIN}
    return plain | {
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "system_properties": dict(message.system_properties),
    }


def _message(parked: Parked) -> Message:
    fields: dict[str, Any] = dict(parked.record)
    fields["keys"] = tuple(fields["keys"])
    for name in ("properties", "system_properties"):
        fields[name] = MappingProxyType(fields[name])
    fields["reconsume_times"] += parked.attempts + 1
    return Message(
        **fields, body=parked.body, queue=Queue(parked.queue_topic, parked.broker, parked.queue_id)
    )
