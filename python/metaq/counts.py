"""Counts for people: singular and plural agree."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, many: str = "") -> str:
    """Returns `1 row`, `2 rows` or `1,000 rows`; `many` is for nouns whose plural is not made with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")
