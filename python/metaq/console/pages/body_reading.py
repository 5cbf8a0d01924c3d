"""Bodies of the messages of one list, read up to a number of bytes.

A compressed body of some KiB may become many MiB, so the bytes that brokers sent bound nothing. Each list,
search and export reads a bounded number of bytes; the rows behind say that their bodies were not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException

from metaq.admin.messages.newest_messages import EndOfSearch
from metaq.client.compression import limit_inflation
from metaq.client.message import Message
from metaq.console import bodies
from metaq.errors import UnreadableBody

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest compressed body that the console reads."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of bodies that one list reads."""
EXPORTS_MAX: Final = 2
EXPORT_WAIT_S: Final = 10.0


def limit_bodies() -> None:
    """Has this process refuse compressed bodies that would become larger than the console shows."""
    limit_inflation(BODY_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message of a list."""

    message: Message
    start: str | None
    """The beginning of its body; None if that is binary."""
    size_bytes: int | None
    """None if the body cannot be decompressed, or was not read."""
    is_read: bool = True
    """False if the list has read as many bytes as it may before it came to this message."""


class BodyReader:
    """Reads the bodies of one list."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._left = bytes_max
        self._counted: set[str] = set()

    def body(self, message: Message) -> bytes:
        """Returns the body. Raises UnreadableBody, and EndOfSearch if nothing more may be read."""
        if message.offset_id in self._counted:
            return message.body
        if self._left <= 0:
            raise EndOfSearch
        try:
            body = message.body
        except UnreadableBody:
            # It was decompressed up to the limit before it failed.
            self._left -= BODY_BYTES_MAX
            raise
        self._left -= len(body)
        return body

    def has_text(self, message: Message, text: str) -> bool:
        """Whether the body holds a text, in UTF-8 or GBK. The case of ASCII letters does not matter. Raises
        EndOfSearch."""
        try:
            body = self.body(message).lower()
        except UnreadableBody:
            return False
        small = text.lower()
        is_found = small.encode() in body or small.encode("gbk", "replace") in body
        if is_found and message.offset_id:
            self._counted.add(message.offset_id)
        return is_found

    def row(self, message: Message) -> MessageRow:
        """Returns a message with the beginning of its body."""
        try:
            body = self.body(message)
        except UnreadableBody:
            return MessageRow(message, None, None)
        except EndOfSearch:
            return MessageRow(message, None, None, is_read=False)
        return MessageRow(message, bodies.preview(body), len(body))


_exports = asyncio.Semaphore(EXPORTS_MAX)


@asynccontextmanager
async def export_turn() -> AsyncIterator[None]:
    """Waits for a turn to export: each export holds many bodies. Raises HTTPException 503 if none comes."""
    try:
        async with asyncio.timeout(EXPORT_WAIT_S):
            await _exports.acquire()
    except TimeoutError:
        raise HTTPException(503, BUSY, {"Retry-After": "10"}) from None
    try:
        yield
    finally:
        _exports.release()


BUSY: Final = f"The console makes {EXPORTS_MAX} exports already. Try again in a moment."
