"""Limits the bytes that the broker copies on request. Such a request is short, and the message may have
megabytes, so the copies count against the machine that asks for them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

BURST_S = 4.0
"""After a pause, an address may have this much time's worth copied at once."""
HOSTS_MAX = 10_000
"""Addresses that are remembered; the oldest are forgotten."""


class CopyBudget:
    """Bytes by address, at a rate. The last message before the limit may be larger than what is left."""

    def __init__(self, bytes_per_second: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """0 means no limit."""
        self._rate = bytes_per_second
        self._now_s = now_s
        self._paid_s: OrderedDict[str, float] = OrderedDict()
        """Address → when everything that was copied for it is paid for; the last asked one at the end."""

    def check(self, host: str) -> None:
        """Raises Refused if this address has nothing left."""
        owed_s = self._paid_s.get(host, 0.0) - self._now_s()
        if owed_s >= BURST_S:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[FLOW] too many bytes are sent back from {host}: the limit is {self._rate} per second "
                f"(send_back_bytes_per_second), and {round(owed_s * self._rate)} are ahead; try again later",
            )

    def charge(self, host: str, size_bytes: int) -> None:
        """Counts a copy. Raises Refused if this address has nothing left."""
        if self._rate == 0:
            return
        self.check(host)
        now_s = self._now_s()
        self._paid_s[host] = max(self._paid_s.pop(host, 0.0), now_s) + size_bytes / self._rate
        while len(self._paid_s) > HOSTS_MAX or next(iter(self._paid_s.values())) <= now_s:
            self._paid_s.popitem(last=False)
