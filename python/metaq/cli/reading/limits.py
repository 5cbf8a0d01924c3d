"""Limits of topics and groups, as flags give them."""

from __future__ import annotations

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
