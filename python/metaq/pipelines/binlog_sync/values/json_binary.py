"""Converts JSON values of MySQL from the binary form of the binlog to the text that a query returns.

    type: u8, then by type:
    0, 2 small object, array    | count: u16 | bytes: u16 | keys: (offset: u16, length: u16) | values | …
    1, 3 large object, array    the same with u32, except for lengths of keys
         a value                | type: u8 | the value itself if it fits, otherwise its offset |
    4    literal                0 null, 1 true, 2 false
    5-10 i16 u16 i32 u32 i64 u64                            11 double
    12   text                   | length, seven bits in each byte | UTF-8 |
    15   a value of a column    | type of the column: u8 | length as above | bytes |

A number has the same form whether it comes from the binlog or from a query. A decimal number that a double
cannot represent exactly keeps its digits.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_TEXT, _OPAQUE = 12, 15
_LITERALS: Final = {0: None, 1: True, 2: False}
_NUMBERS: Final = {number: struct.Struct(f"<{form}") for number, form in enumerate("hHiIqQd", start=5)}
_INLINE_SMALL: Final = frozenset((4, 5, 6))
_INLINE_LARGE: Final = frozenset((4, 5, 6, 7, 8))
_DEPTH_MAX: Final = 128
"""Servers allow a depth of 100."""
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_LINE: Final = 76
"""The length of a line of base64 that the server writes."""
_INTEGER: Final = re.compile(r"-?\d+")


def text_of_binary(data: bytes, decimal_of: Callable[[bytes], str]) -> str:
    """Converts the binary form; raises ValueError, LookupError or struct.error.

    `decimal_of` reads a DECIMAL with its precision and scale.
    """
    return _dumped(_Document(data, decimal_of).value(data[0], 1))


def text_of_text(text: str) -> str:
    """Converts the text that a query returns."""
    return _dumped(json.loads(text, parse_float=_number))


def _number(text: str) -> int | float | msgspec.Raw:
    """Converts the text of a decimal number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    if Decimal(repr(number)) == Decimal(text):
        return number
    return msgspec.Raw(format(Decimal(text), "f").encode())


def _dumped(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


class _Document:
    """One document. Each value is read once, so the time for a damaged document is limited by its length."""

    def __init__(self, data: bytes, decimal_of: Callable[[bytes], str]) -> None:
        self._data = data
        self._decimal_of = decimal_of
        self._values_left = len(data)

    def value(self, kind: int, at: int, depth: int = 0) -> Any:
        data = self._data
        if kind <= _LARGE_ARRAY:
            return self._container(kind, at, depth)
        if kind == _LITERAL:
            return _LITERALS[data[at]]
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack_from(data, at)[0]
        if kind == _TEXT:
            return _sized(data, at).decode()
        if kind == _OPAQUE:
            return _opaque(data[at], _sized(data, at + 1), self._decimal_of)
        raise ValueError(f"a JSON document has the unknown type {kind}")

    def _container(self, kind: int, at: int, depth: int) -> Any:
        is_small = kind in (_SMALL_OBJECT, _SMALL_ARRAY)
        width, inline = (2, _INLINE_SMALL) if is_small else (4, _INLINE_LARGE)
        count = self._number(at, width)
        self._values_left -= count + 1
        if self._values_left < 0 or depth > _DEPTH_MAX:
            raise ValueError("a JSON document has more values than it has room for")
        entries = at + 2 * width
        keys: list[str] = []
        if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
            for _ in range(count):
                begin = at + self._number(entries, width)
                end = begin + self._number(entries + width, 2)
                if end > len(self._data):
                    raise ValueError("a JSON document ends too early")
                keys.append(self._data[begin:end].decode())
                entries += width + 2
        values: list[Any] = []
        for _ in range(count):
            of = self._data[entries]
            begin = entries + 1 if of in inline else at + self._number(entries + 1, width)
            values.append(self.value(of, begin, depth + 1))
            entries += 1 + width
        return dict(zip(keys, values, strict=True)) if kind in (_SMALL_OBJECT, _LARGE_OBJECT) else values

    def _number(self, at: int, size: int) -> int:
        if at + size > len(self._data):
            raise ValueError("a JSON document ends too early")
        return int.from_bytes(self._data[at : at + size], "little")


def _sized(data: bytes, at: int) -> bytes:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 35:
            raise ValueError("a JSON document has an invalid length")
    if at + length > len(data):
        raise ValueError("a JSON document ends too early")
    return data[at : at + length]


def _opaque(kind: int, data: bytes, decimal_of: Callable[[bytes], str]) -> Any:
    if kind == _DECIMAL:
        return _number(decimal_of(data))
    if kind in (_DATE, _DATETIME, _TIMESTAMP, _TIME) and len(data) == 8:
        return _time_text(kind, int.from_bytes(data, "little", signed=True))
    encoded = base64.b64encode(data).decode()
    lines = "\n".join(encoded[begin : begin + _LINE] for begin in range(0, len(encoded), _LINE))
    return f"base64:type{kind}:{lines}"


def _time_text(kind: int, packed: int) -> str:
    """Decodes 40 bits as in a DATETIME or a TIME, and 24 bits of microseconds; the sign applies to all."""
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    whole, micro = packed >> 24, packed & 0xFFFFFF
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micro:06d}"
    if kind == _TIME:
        return f"{sign}{whole >> 12 & 1023:02d}:{clock}"
    year, month = divmod(whole >> 22, 13)
    day = f"{year:04d}-{month:02d}-{whole >> 17 & 31:02d}"
    return day if kind == _DATE else f"{day} {whole >> 12 & 31:02d}:{clock}"
