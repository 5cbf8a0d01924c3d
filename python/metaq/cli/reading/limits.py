"""Limits of topics and groups, as flags give them."""

from __future__ import annotations

import re
from typing import Literal

from metaq.admin import Rate
from metaq.config.kinds import Bytes, Kind, Number
from metaq.errors import CommandError
from metaq.protocol.attributes import BYTES_MAX, MESSAGES_MAX

NONE = "none"


def message_rate(text: str | None) -> Rate:
    """Reads --messages-per-second. Raises CommandError."""
    return _rate("--messages-per-second", text, Number(1, MESSAGES_MAX))


def byte_rate(text: str | None) -> Rate:
    """Reads --bytes-per-second. Raises CommandError."""
    return _rate("--bytes-per-second", text, Bytes(1, BYTES_MAX))


def byte_size(flag: str, text: str | None) -> Rate:
    """Reads a size or `none`. Raises CommandError."""
    return _rate(flag, text, Bytes(1, BYTES_MAX))


def span_ms(flag: str, text: str | None) -> int | Literal["none"] | None:
    """Reads a span such as 90s, 36h or 7d, or `none`, as milliseconds. Raises CommandError."""
    if text is None:
        return None
    if text.lower() == NONE:
        return "none"
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or not int(found[1]):
        raise CommandError(f"{flag} {text}: write 90s, 36h or 7d", hint=f"{flag} none removes it")
    return int(found[1]) * {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[found[2]]


def _rate(flag: str, text: str | None, kind: Kind) -> Rate:
    if text is None:
        return None
    if text.lower() == NONE:
        return "none"
    try:
        rate = kind.parse(text)
    except ValueError as error:
        raise CommandError(f"{flag} {text}: {error}", hint=f"{flag} none removes the limit") from None
    assert isinstance(rate, int)
    return rate
