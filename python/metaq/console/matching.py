"""Finds names by a part of them."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final

SHOWN: Final = 8


def best_matches(names: Iterable[str], typed: str, limit: int = SHOWN) -> list[str]:
    """Returns the names that contain what was typed: those that begin with it first, then the shortest."""
    wanted = typed.lower()
    matching = (name for name in names if wanted in name.lower())
    return nsmallest(limit, matching, key=lambda name: (not name.lower().startswith(wanted), len(name), name))
