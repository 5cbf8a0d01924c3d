"""Numbers that others have written. For very long ones, `int` raises an error that nobody expects."""

from __future__ import annotations

from typing import Final

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


def number_in(text: str, most: int) -> int | None:
    """Returns the number that the ASCII digits of a text write; None if it is not one from 0 to `most`.

    It may have as many digits as `most` has, so that the time does not grow with the text.
    """
    if len(text) > len(str(most)) or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None
