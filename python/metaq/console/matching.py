"""Finds names by a part of them."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final, Protocol

SHOWN: Final = 8


class Row(Protocol):
    """A topic or a group of a table."""

    @property
    def kind(self) -> str: ...


def best_matches(rows: Mapping[str, Row], typed: str, limit: int = SHOWN) -> list[str]:
    """Returns the names that contain what was typed: those that begin with it first, then the shortest. Names
    that only the cluster itself uses, such as retry topics, come last."""
    wanted = typed.lower()

    def rank(name: str) -> tuple[bool, bool, int, str]:
        return rows[name].kind != "normal", not name.lower().startswith(wanted), len(name), name

    return nsmallest(limit, (name for name in rows if wanted in name.lower()), key=rank)
