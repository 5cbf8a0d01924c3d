"""Unique ids of messages, in the form that Java clients use."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from datetime import datetime

from metaq._core import UniqueIds


def unique_ids(host: str) -> UniqueIds:
    """Returns the ids of a client at that address, in this process.

    | ip 4 | pid 2 | random 4 | milliseconds since the first of the month 4 | counter 2 |

    They are written in hex. An IPv6 address takes 16 bytes, as in Java, which makes the id longer.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        address = secrets.token_bytes(4)
    prefix = address + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
    return UniqueIds(prefix, secrets.randbelow(1 << 16), month_start_ms())


def month_start_ms(now_s: float | None = None) -> int:
    """Returns the start of this month in local time, which is how Java's tools read the ids."""
    now = datetime.fromtimestamp(time.time() if now_s is None else now_s)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(first.timestamp() * 1000)
