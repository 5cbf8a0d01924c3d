"""Checks of the arguments that both parts take."""

from __future__ import annotations

import re

from metaq.errors import UsageError

_OFFSET_ID = re.compile("[0-9A-F]{16}(?:[0-9A-F]{24})?[0-9A-F]{16}")


def checked_offset_id(offset_id: str) -> str:
    """Returns the offset id in upper case. Raises UsageError if it is none."""
    if _OFFSET_ID.fullmatch(offset_id.upper()) is None:
        raise UsageError(f"{offset_id[:64]!r} is not an offset id", hint="it has 32 or 56 hexadecimal digits")
    return offset_id.upper()


def check_limit(limit: int, limit_max: int) -> None:
    """Raises UsageError."""
    if not 1 <= limit <= limit_max:
        raise UsageError(f"the limit is {limit}", hint=f"it is a number from 1 to {limit_max}")
