"""Markers of batches, and messages in their topics that are none."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest

from metaq.spark.sink.markers import Chain, Marker

MARKER = Marker("q", 1, "d" * 32, True, "g", ["t"], [Chain("b", False, [(1, 2)])], 1)


@pytest.mark.parametrize("chains", [1, 2000, 20_000])
def test_markers_survive_however_well_they_compress(chains: int) -> None:
    marker = msgspec.structs.replace(MARKER, chains=MARKER.chains * chains)
    assert Marker.decode(marker.encode()) == marker


def test_a_message_that_is_nested_deep_is_not_a_marker() -> None:
    deep = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(ValueError, match="recursion"):
        Marker.decode(zlib.compress(deep, 0))


def test_a_small_message_does_not_fill_the_memory() -> None:
    count = 1_000_000
    plain = msgspec.msgpack.encode(MARKER).replace(
        b"\x91\x92\x01\x02", b"\xdd" + count.to_bytes(4, "big") + b"\x92\x00\x00" * count
    )
    body = zlib.compress(plain, 9)
    assert len(body) < 4096 and len(plain) > 3_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too large"):
            Marker.decode(body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
