"""Numbers, sizes and times as people read them. An unknown value is never zero: it is a word of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

from metaq.console.words import Language

SPANS = (("d", "h", 86_400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1))
"""Units of time with the next smaller one, and the seconds of both."""
UNITS: Mapping[Language, Mapping[str, str]] = {
    "en": {"ms": "ms", "s": "s", "min": "min", "h": "h", "d": "d"},
    "zh": {"ms": "毫秒", "s": "秒", "min": "分", "h": "小时", "d": "天"},
}


def number(value: float | None) -> str | None:
    """Returns 1,234, or 12.3K and 4.5M from ten thousand on."""
    if value is None:
        return None
    for divisor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= divisor * 10:
            scaled = value / divisor
            return f"{scaled:.1f}{unit}" if abs(scaled) < 100 else f"{scaled:,.0f}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def exact(value: int | None) -> str | None:
    """Returns 1,234,567."""
    return None if value is None else f"{value:,}"


def rate(per_second: float | None) -> str | None:
    """Returns a rate per second; slow ones have a decimal, so that they differ from none."""
    if per_second is None:
        return None
    if 0 < per_second < 0.1:
        return "<0.1"
    return f"{per_second:.1f}" if 0 < per_second < 10 else number(round(per_second))


def size(value: float | None) -> str | None:
    """Returns 512 B, 3.4 MiB."""
    if value is None:
        return None
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    left, index = float(value), 0
    while abs(left) >= 1024 and index < len(units) - 1:
        left /= 1024
        index += 1
    return f"{left:.0f} {units[index]}" if index == 0 or left >= 100 else f"{left:.1f} {units[index]}"


def span(milliseconds: float | None) -> str | None:
    """Returns 250 ms, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h."""
    if milliseconds is None:
        return None
    if milliseconds < 0:
        return f"-{span(-milliseconds)}"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = int(milliseconds / 1000)
    for unit, part, length, smaller in SPANS:
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole} {unit} {rest // smaller} {part}" if rest // smaller else f"{whole} {unit}"
    return f"{seconds} s"


def span_in(language: Language, milliseconds: float | None) -> str | None:
    """Returns a span in a reader's language: 3 min 5 s, 3 分 5 秒."""
    text = span(milliseconds)
    if text is None or language == "en":
        return text
    return " ".join(UNITS[language].get(part, part) for part in text.split())


def share(ratio: float | None) -> str | None:
    """Returns 42 %."""
    return None if ratio is None else f"{ratio * 100:.0f} %"


def moment(milliseconds: int | None, utc_offset_min: int = 0) -> str | None:
    """Returns a date with its time in the reader's zone: 2026-01-31 12:00:05."""
    if milliseconds is None:
        return None
    zone = timezone(timedelta(minutes=utc_offset_min))
    try:
        return datetime.fromtimestamp(milliseconds / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)


def iso(milliseconds: int | None) -> str:
    """Returns the time in UTC as programs write it."""
    if milliseconds is None:
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)
