"""The message that a filter function gets."""

from __future__ import annotations

import zlib

import pytest

from metaq.client.compression import FORMATS, compress
from metaq.filters import FilterMessage
from metaq.filters.message import BODY_BYTES_MAX


def test_tags_and_keys() -> None:
    message = FilterMessage("t", b"x", {"TAGS": "red", "KEYS": "a  b"})
    assert (message.tags, message.keys, message.body) == ("red", ("a", "b"), b"x")
    assert (FilterMessage("t").tags, FilterMessage("t").keys) == (None, ())


@pytest.mark.parametrize("format", FORMATS)
def test_bodies_are_decompressed(format: str) -> None:
    compressed, flag = compress(b"hello" * 100, 0, format)
    assert compressed != b"hello" * 100
    assert FilterMessage("t", compressed, system_flag=flag).body == b"hello" * 100


def test_clients_before_the_formats_had_names_mean_zlib() -> None:
    assert FilterMessage("t", zlib.compress(b"hello"), system_flag=1).body == b"hello"


def test_a_body_that_cannot_be_decompressed() -> None:
    with pytest.raises(ValueError, match="format 5"):
        _ = FilterMessage("t", b"raw", system_flag=0x501).body
    with pytest.raises(ValueError, match="damaged"):
        _ = FilterMessage("t", b"no zlib", system_flag=1).body
    with pytest.raises(ValueError, match="cut off"):
        _ = FilterMessage("t", zlib.compress(b"hello" * 100)[:-6], system_flag=1).body
    bomb = zlib.compress(bytes(BODY_BYTES_MAX + 1))
    with pytest.raises(ValueError, match=f"{BODY_BYTES_MAX} bytes"):
        _ = FilterMessage("t", bomb, system_flag=1).body
