"""Counts for people: singular and plural agree."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Returns `1 row`, `2 rows` or `1,000 rows`; `many` is for nouns whose plural is not made with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
