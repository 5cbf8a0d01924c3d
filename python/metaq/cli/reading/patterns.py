"""Patterns that choose names in lists."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Returns whether a name matches: all of it if the pattern has * or ?, otherwise a part of it. Case does
    not count."""
    if pattern is None:
        return lambda name: True
    folded = pattern.casefold()
    if any(sign in folded for sign in "*?["):
        return lambda name: fnmatch.fnmatchcase(name.casefold(), folded)
    return lambda name: folded in name.casefold()
