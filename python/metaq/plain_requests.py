"""HTTP requests without bodies in chunks, for servers whose peers may be strangers."""

from __future__ import annotations

from typing import NoReturn

import h11

CHUNKS_REFUSED = "send the body with a Content-Length, not in chunks"
BODY_REFUSED = "send the request without a body"


class PlainRequests(h11.Connection):
    """The server's end of a connection.

    h11 makes an event of every chunk. A body of one-byte chunks takes more than a second for each MB, before
    anybody has looked at its request. So requests with such a body are refused by their head.
    """

    def __init__(self, head_bytes_max: int, *, takes_bodies: bool) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=head_bytes_max)
        self._takes_bodies = takes_bodies
        self.refusal = ""
        """Why the last request was refused, and what to do."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Raises RemoteProtocolError also for a request that is refused."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            for name, value in event.headers:
                if name == b"transfer-encoding":
                    self._refuse(CHUNKS_REFUSED, 411)
                if name == b"content-length" and not self._takes_bodies and value.strip(b"0"):
                    self._refuse(BODY_REFUSED, 413)
        return event

    def _refuse(self, reason: str, status: int) -> NoReturn:
        self.refusal = reason
        raise h11.RemoteProtocolError(reason, error_status_hint=status)
