"""The body of a request: bounded in size and time, and read once although two parties look at it."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 30.0

TOO_LARGE: Final = "The request is too large. The console takes up to 8 MiB; use `metaq send` for more."
TOO_SLOW: Final = f"The request did not arrive within {BODY_TIMEOUT_S:.0f} s. Send it again."


class BoundedBody:
    """A `receive` that raises HTTPException 413 for a large body and 408 for a slow one.

    The time begins with the first look at the body and counts for all of it, in however many parts it comes.
    With `read` the middleware takes the body first; pages then get it from here.
    """

    def __init__(self, receive: Receive, *, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._receive = receive
        self._bytes_max = bytes_max
        self._bytes = 0
        self._is_complete = False
        self._deadline_s: float | None = None
        self._kept: Message | None = None

    async def __call__(self) -> Message:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        if self._is_complete:
            # From now on pages only wait for the end of the connection.
            return await self._receive()
        if self._deadline_s is None:
            self._deadline_s = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(self._deadline_s):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, TOO_SLOW, {"Connection": "close"}) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._bytes_max:
                raise HTTPException(413, TOO_LARGE, {"Connection": "close"})
            self._is_complete = not message.get("more_body", False)
        return message

    async def read(self) -> bytes:
        """Returns the whole body and keeps it for the page. Raises HTTPException."""
        parts = []
        while not self._is_complete:
            message = await self()
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
        body = b"".join(parts)
        self._kept = {"type": "http.request", "body": body, "more_body": False}
        return body
