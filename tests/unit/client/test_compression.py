"""Bodies are compressed and decompressed in three formats, and bad ones are refused."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import _core
from metaq.client.compression import COMPRESSED, FORMATS, INFLATED_BYTES_MAX, compress, decompress
from metaq.client.message import Outgoing
from metaq.errors import UnreadableBody

FLAGS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@pytest.mark.parametrize("format", FORMATS)
@given(st.binary(max_size=3000), st.integers(1, 50), st.sampled_from([0, 4, 0x10]))
def test_there_and_back(format: str, part: bytes, times: int, flag: int) -> None:
    body = part * times
    packed, its_flag = compress(body, flag, format)
    assert len(packed) <= len(body)
    assert its_flag == (flag if packed == body else flag | FLAGS[format])
    assert decompress(packed, its_flag) == body


@pytest.mark.parametrize("format", FORMATS)
def test_only_what_becomes_smaller_is_compressed(format: str) -> None:
    dense = random.Random(1).randbytes(5000)
    assert compress(dense, 0, format) == (dense, 0)
    repeated = Outgoing("t", b"x" * 5000, {})
    repeated.compress(5001, format)  # type: ignore[arg-type]
    assert repeated.system_flag == 0
    repeated.compress(5000, format)  # type: ignore[arg-type]
    assert repeated.system_flag == FLAGS[format]
    assert len(repeated.body) < 100
    again = repeated.body
    repeated.compress(1, format)  # type: ignore[arg-type]
    assert (repeated.body, repeated.system_flag) == (again, FLAGS[format])


def test_nothing_is_compressed_without_a_format() -> None:
    message = Outgoing("t", b"x" * 5000, {})
    message.compress(1, None)
    assert (message.body, message.system_flag) == (b"x" * 5000, 0)


def test_clients_before_5_0_say_no_format() -> None:
    assert decompress(zlib.compress(b"hello"), COMPRESSED) == b"hello"
    assert decompress(b"hello", 0x300) == b"hello"


@pytest.mark.parametrize("format", FORMATS)
def test_a_body_that_is_cut_off(format: str) -> None:
    body = random.Random(2).randbytes(300) * 3
    packed, flag = compress(body, 0, format)
    for end in range(len(packed)):
        with pytest.raises(UnreadableBody, match=f"decompressed with {format}: it is "):
            decompress(packed[:end], flag)


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
def test_a_damaged_body_is_read_or_refused(format: str, data: st.DataObject) -> None:
    packed = bytearray(compress(b"some words " * 50, 0, format)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableBody):
        assert len(decompress(bytes(packed), FLAGS[format], 10_000)) <= 10_000


@pytest.mark.parametrize("format", FORMATS)
def test_any_bytes_are_read_or_refused(format: str) -> None:
    with pytest.raises(UnreadableBody, match=r"damaged|cut off"):
        decompress(b"hello, this is not compressed", FLAGS[format])


@pytest.mark.parametrize("format", FORMATS)
def test_a_bomb_is_stopped_at_the_limit(format: str) -> None:
    bomb, flag = compress(bytes(1_000_001), 0, format)
    with pytest.raises(UnreadableBody, match="longer than 1000000 bytes"):
        decompress(bomb, flag, 1_000_000)
    assert decompress(bomb, flag, 1_000_001) == bytes(1_000_001)
    assert len(compress(bytes(INFLATED_BYTES_MAX), 0, format)[0]) < 300_000
    with pytest.raises(UnreadableBody, match=f"longer than {INFLATED_BYTES_MAX}"):
        decompress(compress(bytes(INFLATED_BYTES_MAX + 1), 0, format)[0], flag)


def test_a_frame_that_wants_more_memory_than_a_body_may_have_is_refused() -> None:
    # Magic, descriptor without content size, window of 2^31 bytes, then one raw block of one byte.
    window = (31 - 10) << 3
    frame = struct.pack("<IBB", 0xFD2FB528, 0, window) + b"\x09\x00\x00x"
    with pytest.raises(UnreadableBody, match="zstd: it is damaged"):
        decompress(frame, FLAGS["zstd"])
    small = struct.pack("<IBB", 0xFD2FB528, 0, 0) + b"\x09\x00\x00x"
    assert decompress(small, FLAGS["zstd"]) == b"x"


@pytest.mark.parametrize("bits", range(4, 8))
def test_an_unknown_format(bits: int) -> None:
    with pytest.raises(UnreadableBody, match=f"format {bits}"):
        decompress(b"hello", COMPRESSED | bits << 8)


def test_the_native_functions_know_three_names() -> None:
    for name in ("", "ZLIB", "gzip"):
        with pytest.raises(ValueError, match="no compression"):
            _core.compress(name, b"x")
        with pytest.raises(ValueError, match="no compression"):
            _core.decompress(name, b"x", 1)
