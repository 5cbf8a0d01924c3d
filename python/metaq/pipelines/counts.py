"""Counts for people: singular and plural agree."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns `1 row`, `2 rows` or `1,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
