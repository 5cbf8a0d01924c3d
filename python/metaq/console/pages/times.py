"""Moments in addresses: milliseconds since 1970, as every link of the console writes them."""

from __future__ import annotations

from typing import Final

MOMENT_MS_MAX: Final = 253_402_300_799_000
"""The last second of the year 9999."""


def moment_of(text: str | None) -> int | None:
    """Returns a moment, or None if there is none or it is not one."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 15:
        return None
    return min(int(text), MOMENT_MS_MAX)
