"""Readers of row images: bytes as the server writes them give the text that the server prints."""

from __future__ import annotations

import contextlib
import struct
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.binlog_sync.envelope import encode_change
from metaq.pipelines.binlog_sync.values import columns as kinds
from metaq.pipelines.binlog_sync.values.charsets import decoder_of
from metaq.pipelines.binlog_sync.values.value_readers import reader_of, timestamp_text


def read(image: bytes, kind: int, **more: Any) -> Any:
    """Returns the value, which must take up the whole image."""
    told = {"unsigned": False, "name": "c", "character_set_name": "utf8", **more}
    reader = reader_of(SimpleNamespace(type=kind, **told))
    assert reader is not None
    value, end = reader(b"before" + image + b"behind", 6)
    assert end == 6 + len(image)
    for shorter in range(len(image)):
        with contextlib.suppress(IndexError, ValueError, struct.error):
            assert reader(image[:shorter], 0)[1] > shorter, "it would be noticed by its end"
    return value


@given(
    st.data(),
    st.sampled_from(
        [(1, kinds.TINY), (2, kinds.SHORT), (3, kinds.INT24), (4, kinds.LONG), (8, kinds.LONGLONG)]
    ),
    st.booleans(),
)
def test_integers(data: st.DataObject, size_and_kind: tuple[int, int], unsigned: bool) -> None:
    size, kind = size_and_kind
    low, high = (0, 2 ** (8 * size) - 1) if unsigned else (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
    value = data.draw(st.integers(low, high))
    assert read(value.to_bytes(size, "little", signed=not unsigned), kind, unsigned=unsigned) == value


def write_decimal(unscaled: int, precision: int, scale: int) -> bytes:
    """Encodes groups of nine digits, four bytes each, from the point outwards."""
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    digits = str(abs(unscaled)).rjust(precision, "0")
    whole, part = digits[: precision - scale], digits[precision - scale :]
    first = len(whole) % 9
    groups = ([whole[:first]] if first else []) + [whole[n : n + 9] for n in range(first, len(whole), 9)]
    groups += [part[n : n + 9] for n in range(0, len(part), 9)]
    image = b"".join(int(group).to_bytes(sizes[len(group)], "big") for group in groups)
    if unscaled < 0:
        image = bytes(byte ^ 0xFF for byte in image)
    return bytes((image[0] ^ 0x80,)) + image[1:]


@given(st.data())
def test_decimals(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(precision, 38)))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    image = write_decimal(unscaled, precision, scale)
    found = read(image, kinds.NEWDECIMAL, precision=precision, decimals=scale)
    assert int(found.replace(".", "")) == unscaled
    whole, _, part = found.removeprefix("-").partition(".")
    assert len(part) == scale
    assert whole == "0" or not whole.startswith("0")


def fraction(micros: int, decimals: int) -> tuple[int, int, str]:
    """Returns the stored number, its size in bytes, and the printed text."""
    size = (decimals + 1) // 2
    stored = micros // 10 ** (6 - decimals) * 10 ** (2 * size - decimals)
    return stored, size, f".{micros:06d}"[: decimals + 1] if decimals else ""


@given(
    st.integers(0, 838),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999_999),
    st.integers(0, 6),
    st.booleans(),
)
def test_times(hours: int, minutes: int, seconds: int, micros: int, decimals: int, negative: bool) -> None:
    stored, size, printed = fraction(micros, decimals)
    number = (hours << 12 | minutes << 6 | seconds) << size * 8 | stored
    negative = negative and number > 0
    image = ((0x800000 << size * 8) + (-number if negative else number)).to_bytes(3 + size, "big")
    wanted = f"{'-' if negative else ''}{hours:02d}:{minutes:02d}:{seconds:02d}{printed}"
    assert read(image, kinds.TIME2, fsp=decimals) == wanted


@given(
    st.integers(0, 9999),
    st.integers(0, 12),
    st.integers(0, 31),
    st.integers(0, 86_399),
    st.integers(0, 999_999),
    st.integers(0, 6),
)
def test_dates_and_times_of_day(
    year: int, month: int, day: int, second: int, micros: int, decimals: int
) -> None:
    hours, minutes, seconds = second // 3600, second // 60 % 60, second % 60
    stored, size, printed = fraction(micros, decimals)
    packed = 1 << 39 | (year * 13 + month) << 22 | day << 17 | hours << 12 | minutes << 6 | seconds
    image = packed.to_bytes(5, "big") + stored.to_bytes(size, "big")
    wanted = f"{year:04d}-{month:02d}-{day:02d} {hours:02d}:{minutes:02d}:{seconds:02d}{printed}"
    assert read(image, kinds.DATETIME2, fsp=decimals) == wanted
    image = (year << 9 | month << 5 | day).to_bytes(3, "little")
    assert read(image, kinds.DATE) == wanted[:10]


@given(st.integers(1, 2**32 - 1))
def test_timestamps(seconds: int) -> None:
    day = date(1970, 1, 1) + timedelta(days=seconds // 86_400)
    assert timestamp_text(seconds).startswith(f"{day.isoformat()} ")
    assert read(seconds.to_bytes(4, "big"), kinds.TIMESTAMP2, fsp=0) == timestamp_text(seconds)


@given(st.text(max_size=80), st.sampled_from(["utf8", "utf16", "utf32"]))
def test_texts(text: str, charset: str) -> None:
    codec = {"utf8": "utf-8", "utf16": "utf-16-be", "utf32": "utf-32-be"}[charset]
    raw = text.encode(codec)
    for size in (1, 2, 3, 4):
        if len(raw) < 256**size:
            image = len(raw).to_bytes(size, "little") + raw
            assert read(image, kinds.BLOB, length_size=size, character_set_name=charset) == text


def test_every_byte_of_latin1_is_a_character() -> None:
    decode = decoder_of("latin1")
    assert decode is not None
    text = decode(bytes(range(256)))
    assert len(set(text)) == 256
    assert text[0x80] == "€"
    assert text[0x81] == "\x81"
    assert decoder_of("swe7") is None


@given(st.binary(max_size=16))
def test_fixed_bytes_have_their_length(raw: bytes) -> None:
    shortened = raw.ljust(16, b"\0").rstrip(b"\0")
    image = bytes((len(shortened),)) + shortened
    assert read(image, kinds.STRING, max_length=16, character_set_name="binary") == raw.ljust(16, b"\0")


@given(st.sets(st.integers(0, 63)))
def test_sets_are_in_the_order_of_their_definition(members: set[int]) -> None:
    labels = [f"m{99 - number}" for number in range(64)]
    mask = sum(1 << member for member in members)
    found = read(mask.to_bytes(8, "little"), kinds.SET, size=8, set_values=labels)
    assert found == ",".join(labels[member] for member in sorted(members))


@given(st.integers(1, 64), st.data())
def test_bits(bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, 2**bits - 1))
    size = (bits + 7) // 8
    assert read(value.to_bytes(size, "big"), kinds.BIT, bits=bits, bytes=size) == value


@given(
    st.one_of(
        st.none(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    )
)
def test_json_keeps_values_exactly(value: object) -> None:
    change = msgspec.json.decode(encode_change("1", "insert", {"c": value}))
    assert change == {"seq": "1", "op": "insert", "row": {"c": value}}


def test_a_character_set_without_a_codec() -> None:
    # Python's nearest codec lacks characters, so a row in the middle of a table would fail.
    assert decoder_of("eucjpms") is None
    assert decoder_of("ujis") is not None
