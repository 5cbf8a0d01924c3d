"""Reads values from row images of the binlog, in a form that JSON represents without loss.

| column | JSON |
|---|---|
| NULL | null |
| integers, BIT, YEAR | a number, exact up to 64 bits, unsigned if the column is |
| FLOAT, DOUBLE | a number; for a FLOAT the exact value of its 32 bits |
| DECIMAL | text with all its decimals, `"-12.50"` |
| DATE, DATETIME, TIME | text as the server prints it, `"2026-01-31 12:00:00.50"`; zero dates too |
| TIMESTAMP | the same, in UTC |
| CHAR, VARCHAR, TEXT, ENUM | text; the invalid value of an ENUM is `""`, as the server prints it |
| SET | its members in the order of the definition, separated by commas; the empty set is `""` |
| BINARY, VARBINARY, BLOB, geometry | base64 of all bytes, trailing zeros included |
| UUID, INET4, INET6 | text as the server prints it; see `fixed_bytes.py` |
| JSON | text: on MariaDB as it was written, on MySQL equal as JSON |

A reader is a function of an image and an index; it returns the value and the index after it. It raises
LookupError, ValueError or struct.error if the image does not match its table map.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import Any, Final

from metaq.pipelines.binlog_sync.values import columns as kinds
from metaq.pipelines.binlog_sync.values.charsets import decoder_of
from metaq.pipelines.binlog_sync.values.json_binary import text_of_binary

Value = int | float | str | bytes | None
ValueReader = Callable[[bytes, int], tuple[Value, int]]

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DECIMAL_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes by number of decimal digits, up to nine."""


def reader_of(column: Any) -> ValueReader | None:
    """Returns a reader for a column of a table map of mysql-replication; None if its type is unknown."""
    kind = column.type
    if kind in _FIXED:
        return _fixed(_FIXED[kind][1 if column.unsigned else 0])
    if kind == kinds.INT24:
        return _int24(signed=not column.unsigned)
    if kind == kinds.NEWDECIMAL:
        return _decimal(column.precision, column.decimals)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind in _TIMES:
        return _TIMES[kind](column.fsp)
    if kind == kinds.BIT:
        return _bit(column.bytes)
    if kind == kinds.ENUM:
        return _enum(column.size, tuple(column.enum_values))
    if kind == kinds.SET:
        return _set(column.size, tuple(column.set_values))
    if kind == kinds.GEOMETRY:
        return _bytes(column.length_size)
    if kind == kinds.JSON:
        return _json(column.length_size)
    if kind == kinds.BLOB:
        return _text_or_bytes(column, column.length_size)
    if kind in (kinds.VARCHAR, kinds.VAR_STRING, kinds.STRING):
        prefix_bytes = 2 if column.max_length > 255 else 1
        if kind == kinds.STRING and kinds.is_binary(column):
            return _padded(prefix_bytes, column.max_length)
        return _text_or_bytes(column, prefix_bytes)
    return None


# Numbers


def _fixed(form: str) -> ValueReader:
    packed = struct.Struct(form)
    unpack, size = packed.unpack_from, packed.size

    def read(image: bytes, at: int) -> tuple[Value, int]:
        return unpack(image, at)[0], at + size

    return read


_FIXED: Final = {
    kinds.TINY: ("<b", "<B"),
    kinds.SHORT: ("<h", "<H"),
    kinds.LONG: ("<i", "<I"),
    kinds.LONGLONG: ("<q", "<Q"),
    kinds.FLOAT: ("<f", "<f"),
    kinds.DOUBLE: ("<d", "<d"),
}


def _int24(*, signed: bool) -> ValueReader:
    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + 3
        return int.from_bytes(_exactly(image, at, end), "little", signed=signed), end

    return read


def _bit(size: int) -> ValueReader:
    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + size
        return int.from_bytes(_exactly(image, at, end), "big"), end

    return read


def _year(image: bytes, at: int) -> tuple[Value, int]:
    year = image[at]
    return (year + 1900 if year else 0), at + 1


def _decimal(precision: int, scale: int) -> ValueReader:
    """Reads groups of nine digits in four big-endian bytes, from the point outwards, and shorter end groups.

    The first bit is set unless the number is negative; all bytes of a negative number are inverted.
    """
    whole_groups, whole_rest = divmod(precision - scale, 9)
    part_groups, part_rest = divmod(scale, 9)
    groups = [(_DECIMAL_BYTES[whole_rest], whole_rest)] if whole_rest else []
    groups += [(4, 9)] * (whole_groups + part_groups)
    groups += [(_DECIMAL_BYTES[part_rest], part_rest)] if part_rest else []
    size = sum(count for count, _ in groups)
    inverted = (1 << size * 8) - 1
    sign = 1 << (size * 8 - 1)
    whole_digits = precision - scale

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + size
        number = int.from_bytes(_exactly(image, at, end), "big")
        negative = not number & sign
        number ^= sign
        if negative:
            number ^= inverted
        left_bits = size * 8
        digits = ""
        for count, width in groups:
            left_bits -= count * 8
            digits += f"{number >> left_bits & (1 << count * 8) - 1:0{width}d}"
        text = digits[:whole_digits].lstrip("0") or "0"
        if scale:
            text = f"{text}.{digits[whole_digits:]}"
        return (f"-{text}" if negative else text), end

    return read


# Times

_TWO: Final = [f"{number:02d}" for number in range(64)]
"""Numbers with two digits. The lookup is much faster than formatting."""


def _date(image: bytes, at: int) -> tuple[Value, int]:
    packed = image[at] | image[at + 1] << 8 | image[at + 2] << 16
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}", at + 3


def _fraction(stored: int, decimals: int) -> str:
    """Formats the decimals: two digits in each byte. If their number is odd, the last digit is always 0."""
    return f".{stored:0{(decimals + 1) // 2 * 2}d}"[: decimals + 1] if decimals else ""


def _datetime(decimals: int) -> ValueReader:
    """Reads 40 bits (1, year * 13 + month: 17, day: 5, hour: 5, minute: 6, second: 6), then the decimals."""
    part_bytes = (decimals + 1) // 2
    part_bits = part_bytes * 8
    part_mask = (1 << part_bits) - 1

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + 5 + part_bytes
        number = int.from_bytes(_exactly(image, at, end), "big")
        packed = number >> part_bits & 0x7FFFFFFFFF
        text = (
            f"{_packed_day(packed >> 17)}"
            f" {_TWO[packed >> 12 & 31]}:{_TWO[packed >> 6 & 63]}:{_TWO[packed & 63]}"
        )
        return (text + _fraction(number & part_mask, decimals) if part_bytes else text), end

    return read


@lru_cache(4096)
def _packed_day(packed: int) -> str:
    year, month = divmod(packed >> 5, 13)
    return f"{year:04d}-{month:02d}-{packed & 31:02d}"


@lru_cache(4096)
def _day(number: int) -> str:
    return date.fromordinal(_EPOCH + number).isoformat()


def timestamp_text(seconds: int) -> str:
    """Formats seconds since 1970 in UTC."""
    days, rest = divmod(seconds, 86_400)
    return f"{_day(days)} {_TWO[rest // 3600]}:{_TWO[rest // 60 % 60]}:{_TWO[rest % 60]}"


def _timestamp(decimals: int) -> ValueReader:
    part_bytes = (decimals + 1) // 2

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + 4 + part_bytes
        raw = _exactly(image, at, end)
        seconds, part = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big")
        # Second 0 stands for the zero date.
        text = timestamp_text(seconds) if seconds or part else "0000-00-00 00:00:00"
        return text + _fraction(part, decimals), end

    return read


def _time(decimals: int) -> ValueReader:
    """Reads hours (10 bits), minutes (6), seconds (6) and decimals as one signed number with an offset."""
    part_bytes = (decimals + 1) // 2
    part_bits = part_bytes * 8
    middle = 0x800000 << part_bits

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + 3 + part_bytes
        number = int.from_bytes(_exactly(image, at, end), "big") - middle
        sign = ""
        if number < 0:
            sign, number = "-", -number
        whole, part = number >> part_bits, number & (1 << part_bits) - 1
        text = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        return text + _fraction(part, decimals), end

    return read


_SIMPLE: Final[dict[int, ValueReader]] = {kinds.YEAR: _year, kinds.DATE: _date}
_TIMES: Final[dict[int, Callable[[int], ValueReader]]] = {
    kinds.TIME2: _time,
    kinds.DATETIME2: _datetime,
    kinds.TIMESTAMP2: _timestamp,
}

# Text and bytes


def _text_or_bytes(column: Any, prefix_bytes: int) -> ValueReader | None:
    if kinds.is_binary(column):
        return _bytes(prefix_bytes)
    decode = decoder_of(column.character_set_name or "utf8mb4")
    return None if decode is None else _text(prefix_bytes, decode)


def _text(prefix_bytes: int, decode: Callable[[bytes], str]) -> ValueReader:
    if prefix_bytes == 1:

        def read_short(image: bytes, at: int) -> tuple[Value, int]:
            begin = at + 1
            end = begin + image[at]
            return decode(_exactly(image, begin, end)), end

        return read_short

    def read(image: bytes, at: int) -> tuple[Value, int]:
        begin = at + prefix_bytes
        end = begin + int.from_bytes(image[at:begin], "little")
        return decode(_exactly(image, begin, end)), end

    return read


def _bytes(prefix_bytes: int) -> ValueReader:
    def read(image: bytes, at: int) -> tuple[Value, int]:
        begin = at + prefix_bytes
        end = begin + int.from_bytes(image[at:begin], "little")
        return _exactly(image, begin, end), end

    return read


def _padded(prefix_bytes: int, length: int) -> ValueReader:
    """Reads a BINARY, whose trailing zeros the binlog omits."""
    read_short = _bytes(prefix_bytes)

    def read(image: bytes, at: int) -> tuple[Value, int]:
        value, end = read_short(image, at)
        assert isinstance(value, bytes)
        return value.ljust(length, b"\0"), end

    return read


def _enum(size: int, labels: tuple[str, ...]) -> ValueReader:
    """Reads an ENUM; number 0 is its invalid value, which the first label stands for."""

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + size
        return labels[int.from_bytes(_exactly(image, at, end), "little")], end

    return read


def _set(size: int, labels: tuple[str, ...]) -> ValueReader:
    @lru_cache(1024)
    def text(mask: int) -> str:
        return ",".join(label for number, label in enumerate(labels) if mask >> number & 1)

    def read(image: bytes, at: int) -> tuple[Value, int]:
        end = at + size
        return text(int.from_bytes(_exactly(image, at, end), "little")), end

    return read


def _json(prefix_bytes: int) -> ValueReader:
    read_bytes = _bytes(prefix_bytes)

    def read(image: bytes, at: int) -> tuple[Value, int]:
        value, end = read_bytes(image, at)
        assert isinstance(value, bytes)
        # The server writes an empty value for null if the column was added without a value.
        return (text_of_binary(value, _decimal_of) if value else "null"), end

    return read


def _decimal_of(data: bytes) -> str:
    """Reads a DECIMAL of a JSON document.

    | precision: u8 | scale: u8 | as in a row image |
    """
    text, _ = _decimal(data[0], data[1])(data, 2)
    return str(text)


def _exactly(image: bytes, begin: int, end: int) -> bytes:
    raw = image[begin:end]
    if len(raw) != end - begin:
        raise ValueError("a row image ends too early")
    return raw
