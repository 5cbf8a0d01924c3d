"""Positions in a queue: `earliest`, `latest`, a time or an offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from metaq.digits import LONG_MAX, number_in
from metaq.errors import UsageError
from metaq.position_words import current_word

Position: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""`earliest` is the first message that a queue still holds, `latest` is behind its last one. A `datetime` is
the first message that was stored then or later; without a time zone it is local time. An `int` is a queue
offset."""

EXAMPLES: Final = "use -10m, 2026-01-31T12:00 or an offset"
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO: Final = re.compile(r"-(\d{1,9})([smhd])")


def parse_position(text: str, now: datetime | None = None) -> Position:
    """Reads `earliest`, `latest`, `-10m` (s, m, h, d before now), a time such as 2026-01-31T12:00, or an
    offset. A time without a zone is local time. Raises UsageError."""
    text = current_word(text.strip())
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdecimal():
        queue_offset = number_in(text, LONG_MAX)
        if queue_offset is None:
            raise UsageError(f"an offset is at most {LONG_MAX}", hint=EXAMPLES)
        return queue_offset
    try:
        if ago := _AGO.fullmatch(text):
            return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(f'"{text}" is not a valid time', hint=EXAMPLES) from None


def milliseconds(moment: datetime) -> int:
    """Returns the time as brokers count it, in milliseconds since 1970."""
    return max(int(moment.timestamp() * 1000), 0)
