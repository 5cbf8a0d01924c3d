"""Values as people read them. Unknown values are a dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

UNKNOWN = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plain(value: object) -> str:
    """A text as it is, a number with its thousands apart, a list with commas."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or UNKNOWN
    return str(value)


def printable(text: str) -> str:
    """A text that others wrote, without characters that could move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def safe_lines(text: str) -> str:
    """Lines that others wrote in part, without other characters that could move the cursor."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in text.split("\n"))


def moment(timestamp_ms: int | None) -> str:
    """A time, in local time."""
    if timestamp_ms is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # Producers may send any number as a time.


def size(number: int | None) -> str:
    """A number of bytes."""
    if number is None:
        return UNKNOWN
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{number} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def span(milliseconds: float | None) -> str:
    """A length of time, with two digits that matter."""
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:.1f} days"


def rate(per_second: float | None) -> str:
    """A number per second."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.1f}/s" if per_second < 100 else f"{per_second:,.0f}/s"


def share(ratio: float | None) -> str:
    """A part of the whole."""
    return UNKNOWN if ratio is None else f"{ratio:.0%}"


def attributes_text(attributes: Mapping[str, str], without: Sequence[str] = ()) -> str | None:
    """Attributes on one line; None if there are none."""
    pairs = [f"{name}={value}" for name, value in sorted(attributes.items()) if name not in without]
    return ", ".join(pairs) or None
