"""A register in etcd 3.4 or newer, through its JSON gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import msgspec

from metaq.ha.register import Outcome, RegisterAddress, RegisterUnavailable, Stored
from metaq.ha.registers.etcd_gateway import KEY_ROOT, Answered, Gateway, Unanswered, decode
from metaq.ha.registers.http_connection import HttpError

_WATCH_SILENCE_S: Final = 30.0
"""A watch that is silent for longer is opened anew: its member may hang."""
_WATCH_PAUSE_S: Final = 0.1
_WATCH_PAUSE_S_MAX: Final = 1.0


class _KeyValue(msgspec.Struct):
    key: bytes
    mod_revision: Annotated[int, msgspec.Meta(ge=1)]
    value: bytes = b""


class _Range(Answered, kw_only=True):
    kvs: tuple[_KeyValue, ...] = ()
    more: bool = False


class _Swap(Answered, kw_only=True):
    succeeded: bool = False


class _Events(Answered, kw_only=True):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    events: tuple[msgspec.Raw, ...] = ()


class _StreamError(msgspec.Struct):
    message: str = ""


class _WatchLine(msgspec.Struct):
    result: _Events | None = None
    error: _StreamError | None = None


class EtcdRegister:
    """Implements `metaq.ha.register.Register`.

    A swap is sent once. It is sent to another endpoint only if the first one cannot have received it.
    """

    def __init__(self, address: RegisterAddress) -> None:
        """Connects when it is first used. Raises ConfigError if a file of the address cannot be read."""
        self._gateway = Gateway(address)
        self._closing = asyncio.Event()

    async def cluster_id(self) -> str:
        """Returns the id as etcd prints it, in hexadecimal digits."""
        answer = await self._range({"key": KEY_ROOT.encode(), "keys_only": True})
        return f"{answer.header.cluster_id:x}"

    async def get(self, key: str) -> Stored | None:
        answer = await self._range({"key": key.encode()})
        for found in answer.kvs:
            if found.key == key.encode():
                return Stored(found.value, found.mod_revision)
        return None

    async def list(self, prefix: str) -> dict[str, Stored]:
        answer = await self._range({"key": prefix.encode(), "range_end": _prefix_end(prefix)})
        try:
            return {found.key.decode(): Stored(found.value, found.mod_revision) for found in answer.kvs}
        except UnicodeDecodeError:
            raise RegisterUnavailable(f"the register has a key below {prefix} that is not UTF-8") from None

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> Outcome:
        compare = {
            "key": key.encode(),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(expected_revision),
        }
        put = {"request_put": {"key": key.encode(), "value": value}}
        body = msgspec.json.encode({"compare": [compare], "success": [put]})
        try:
            answer = await self._gateway.call("/v3/kv/txn", body, _Swap, repeatable=False)
        except Unanswered:
            return Outcome.UNKNOWN
        return Outcome.DONE if answer.succeeded else Outcome.CONFLICT

    async def watch(self, prefix: str) -> AsyncGenerator[None, None]:
        """Yields hints; see `Register.watch`.

        Each time it is opened anew it yields a hint and watches from there on. So it needs no revision to
        resume from, and a compaction cannot take that away.
        """
        body = msgspec.json.encode(
            {"create_request": {"key": prefix.encode(), "range_end": _prefix_end(prefix)}}
        )
        pause_s = _WATCH_PAUSE_S
        while not self._gateway.closed:
            with contextlib.suppress(RegisterUnavailable):
                lines = self._gateway.stream("/v3/watch", body)
                async with contextlib.aclosing(lines):
                    started = False
                    while await self._next_change(lines, started):
                        started, pause_s = True, _WATCH_PAUSE_S
                        yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
            pause_s = min(2 * pause_s, _WATCH_PAUSE_S_MAX)

    async def close(self) -> None:
        self._closing.set()
        self._gateway.close()

    async def _range(self, request: dict[str, object]) -> _Range:
        # Without "serializable" etcd asks a majority first, so the answer is linearizable.
        body = msgspec.json.encode(request)
        answer = await self._gateway.call("/v3/kv/range", body, _Range, repeatable=True)
        if answer.more:
            raise RegisterUnavailable("the register's answer was cut short")
        return answer

    async def _next_change(self, lines: AsyncGenerator[bytes, None], started: bool) -> bool:
        """Waits until something may have changed. Returns False if the watch must be opened anew."""
        while True:
            try:
                # The first answer says that the watch has started, and comes at once.
                async with asyncio.timeout(_WATCH_SILENCE_S if started else self._gateway.timeout_s):
                    line = await anext(lines)
            except TimeoutError:
                if not started:
                    self._gateway.leave_current("it does not start a watch")
                return False
            if not line:
                continue
            try:
                read = decode(line, _WatchLine)
            except HttpError as error:
                self._gateway.leave_current(f"its watch failed: {error}")
                return False
            result = read.result
            if result is None or result.header.cluster_id != self._gateway.cluster_id:
                reason = read.error.message if read.error is not None else "it has no result"
                self._gateway.leave_current(f"its watch ended: {reason[:300]}")
                return False
            if result.canceled:
                return False
            # Everything else is a sign of life without news.
            if result.created or result.events:
                return True


def _prefix_end(prefix: str) -> bytes:
    """Returns the first key after all keys that start with the prefix."""
    if not prefix:
        raise ValueError("the prefix is empty")
    # UTF-8 has no byte 0xff, so the last byte can always be counted up.
    encoded = prefix.encode()
    return encoded[:-1] + bytes((encoded[-1] + 1,))
