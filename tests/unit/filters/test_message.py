"""What a filter function sees of a message."""

from __future__ import annotations

import zlib

import pytest

from metaq.filters import FilterMessage
from metaq.filters.message import BODY_BYTES_MAX


def test_tags_and_keys() -> None:
    message = FilterMessage("t", b"x", {"TAGS": "red", "KEYS": "a  b"})
    assert (message.tags, message.keys, message.body) == ("red", ("a", "b"), b"x")
    assert (FilterMessage("t").tags, FilterMessage("t").keys) == (None, ())


@pytest.mark.parametrize("flag", [0x1, 0x301])
def test_zlib_bodies_are_decompressed(flag: int) -> None:
    message = FilterMessage("t", zlib.compress(b"hello" * 100), system_flag=flag)
    assert (message.body, message.compression) == (b"hello" * 100, None)


@pytest.mark.parametrize(("flag", "kind"), [(0x101, "lz4"), (0x201, "zstd"), (0x501, "kind 5")])
def test_others_are_left_and_named(flag: int, kind: str) -> None:
    message = FilterMessage("t", b"raw", system_flag=flag)
    assert (message.body, message.compression) == (b"raw", kind)


def test_what_cannot_be_decompressed() -> None:
    with pytest.raises(ValueError, match="is not"):
        _ = FilterMessage("t", b"no zlib", system_flag=1).body
    with pytest.raises(ValueError, match="cut short"):
        _ = FilterMessage("t", zlib.compress(b"hello" * 100)[:-6], system_flag=1).body
    bomb = zlib.compress(bytes(BODY_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="more than"):
        _ = FilterMessage("t", bomb, system_flag=1).body
