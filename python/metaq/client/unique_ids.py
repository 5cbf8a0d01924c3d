"""Ids that a client gives to its messages, in the form that Java clients give theirs."""

from __future__ import annotations

import ipaddress
import itertools
import os
import secrets
import struct
import time
from datetime import datetime


class UniqueIds:
    """Address, process, a random word, milliseconds since the first of the month, and a counter, in hex:

    | ip 4 | pid 2 | random 4 | milliseconds 4 | counter 2 |

    An address of version 6 takes 16 bytes, as in Java, which makes the id longer.
    """

    def __init__(self, host: str) -> None:
        try:
            address = ipaddress.ip_address(host.partition("%")[0]).packed
        except ValueError:
            address = secrets.token_bytes(4)
        prefix = address + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
        self._prefix = prefix.hex().upper()
        self._counter = itertools.count(secrets.randbelow(1 << 16))
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._begin_month(now_ms)
        tail = struct.pack(">IH", (now_ms - self._month_start_ms) & 0xFFFFFFFF, next(self._counter) & 0xFFFF)
        return self._prefix + tail.hex().upper()

    def _begin_month(self, now_ms: int) -> None:
        # Local time, since that is what Java's tools take it for when they read the time back.
        first = datetime.fromtimestamp(now_ms / 1000).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_start_ms = int(first.timestamp() * 1000)
        self._month_end_ms = int(following.timestamp() * 1000)
