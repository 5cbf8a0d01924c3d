"""Flags that a person may write before or after the command: the cluster to ask and the form of the results.

`metaq --namesrv A topic list`, `metaq topic --namesrv A list` and `metaq topic list --namesrv A` mean the
same; the last flag counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """The form of results."""

    table = "table"
    json = "json"
    csv = "csv"


@dataclass(slots=True)
class Invocation:
    """The flags of this call; None for a flag that was not given."""

    namesrv: str | None = None
    context: str | None = None
    output: Format | None = None


_current = Invocation()


def begin() -> Invocation:
    """Forgets the flags of an earlier call in this process."""
    global _current
    _current = Invocation()
    return _current


def current() -> Invocation:
    return _current


def read_format(text: str) -> Format:
    """Raises ValueError. `text` is the former name of `table`."""
    return Format.table if text == "text" else Format(text)
