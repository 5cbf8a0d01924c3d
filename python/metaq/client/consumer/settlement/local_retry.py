"""Local retry: stores messages that keep failing on this machine's disk and tries them again from there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from metaq.client.clock import now_ms
from metaq.client.consumer.settlement.local_retry_store import BODY_FLAG, LocalRetryStore, StoredRetry
from metaq.client.consumer.settlement.send_back import send_to_dead_letters
from metaq.client.consumer.subscription import Reject, Retry
from metaq.client.message import Message, inflate
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.client.consumer.options import ConsumerOptions
    from metaq.client.session.session import Session

_log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.5
CLAIM_S: Final = 600.0
"""Another process of the group may repeat an attempt that takes longer than this."""
CLAIM_COUNT: Final = 16
WAIT_MAX_S: Final = 7200.0
NEVER_MS: Final = 2**62
"""The due time of unreadable messages: they stay until somebody replays them."""

Invoke = Callable[[list[Message]], Awaitable[object]]


class LocalRetries:
    """The stored messages of one consumer's group, and the worker that tries them again."""

    def __init__(
        self, session: Session, options: ConsumerOptions, store: LocalRetryStore, invoke: Invoke
    ) -> None:
        self._session = session
        self._options = options
        self._store = store
        self._invoke = invoke
        self._stopping = asyncio.Event()

    async def add(self, message: Message, error: BaseException) -> None:
        """Stores a message durably; its first retry comes after `local_first_wait`."""
        stored_ms = now_ms()
        due_ms = stored_ms + int(self._options.local_first_wait * 1000)
        await asyncio.to_thread(self._store.add, message, _record(message), repr(error), stored_ms, due_ms)
        _log.warning(
            "group %s: %s is stored for local retry after %r", self._options.group, message.id, error
        )

    async def work(self) -> None:
        """Tries messages that are due until `stop` is called; finishes the one in hand first."""
        while not self._stopping.is_set():
            try:
                current_ms = now_ms()
                claimed_until_ms = current_ms + int(CLAIM_S * 1000)
                due = await asyncio.to_thread(self._store.claim, current_ms, claimed_until_ms, CLAIM_COUNT)
                await self._try_all(due)
            except (MetaqError, sqlite3.Error, OSError) as error:
                _log.warning("group %s: local retry failed and runs again: %s", self._options.group, error)
                due = []
            except Exception:
                _log.exception("group %s: local retry failed and runs again", self._options.group)
                due = []
            if not due:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_S):
                        await self._stopping.wait()

    def stop(self) -> None:
        """Makes `work` return after the message in hand."""
        self._stopping.set()

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)

    async def _try_all(self, due: list[StoredRetry]) -> None:
        left = [stored.number for stored in due]
        try:
            for stored in due:
                if self._stopping.is_set():
                    break
                await self._try(stored)
                left.remove(stored.number)
        finally:
            # The consumer ends or its disk fails: the next consumer need not wait until the claim is over.
            if left:
                with contextlib.suppress(sqlite3.Error):
                    self._store.release(left, now_ms())

    async def _try(self, stored: StoredRetry) -> None:
        body = await asyncio.to_thread(self._store.body, stored.number)
        if body is None:
            return
        try:
            message = await asyncio.to_thread(_message, stored, body)
        except Exception as error:
            _log.error("group %s: stored message %d is unreadable", self._options.group, stored.number)
            await self._add_failure(stored, f"unreadable: {error!r}", NEVER_MS)
            return
        after: float | None = None
        try:
            await self._invoke([message])
        except Reject as error:
            await self._give_up(stored, message, error)
            return
        except Exception as error:
            problem = error
            if isinstance(error, Retry):
                after = error.after
        else:
            await asyncio.to_thread(self._store.remove, stored.number)
            return
        if stored.attempts + 1 >= self._options.local_retries_max:
            await self._give_up(stored, message, problem)
            return
        if after is None:
            after = min(self._options.local_first_wait * 2.0 ** (stored.attempts + 1), WAIT_MAX_S)
        await self._add_failure(stored, repr(problem), now_ms() + int(after * 1000))

    async def _give_up(self, stored: StoredRetry, message: Message, error: BaseException) -> None:
        """Removes a message from this disk, but only after the broker has it as a dead letter."""
        if self._options.is_broadcast:
            _log.error("group %s: %s is given up: %r", self._options.group, message.id, error)
        else:
            try:
                await send_to_dead_letters(self._session, self._options, message, error)
            except MetaqError as problem:
                due_ms = now_ms() + int(self._options.local_first_wait * 1000)
                await self._add_failure(stored, repr(problem), due_ms)
                return
        await asyncio.to_thread(self._store.remove, stored.number)

    async def _add_failure(self, stored: StoredRetry, error: str, due_ms: int) -> None:
        await asyncio.to_thread(self._store.add_failure, stored.number, error, due_ms)


_PLAIN: Final = (
    *("topic", "tag", "id", "offset_id", "queue_offset", "physical_offset", "born_at", "stored_at"),
    *("born_host", "store_host", "reconsume_times", "flag", "system_flag"),
)


def _record(message: Message) -> dict[str, object]:
    """Returns every field except queue and body, in a form that JSON can hold."""
    plain: dict[str, object] = {name: getattr(message, name) for name in _PLAIN}
    return plain | {
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "system_properties": dict(message.system_properties),
    }


def _message(stored: StoredRetry, body: bytes) -> Message:
    fields: dict[str, Any] = dict(stored.record)
    body = inflate(body, fields.pop(BODY_FLAG, 0))
    fields["keys"] = tuple(fields["keys"])
    for name in ("properties", "system_properties"):
        fields[name] = MappingProxyType(fields[name])
    fields["reconsume_times"] += stored.attempts + 1
    return Message(**fields, body=body, queue=Queue(stored.queue_topic, stored.broker, stored.queue_id))
