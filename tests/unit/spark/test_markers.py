"""Markers of batches, and messages in their topics that are none."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest

from metaq.spark.sink.markers import PLACES_FROM, Chain, Marker, StoredMarker, winner

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


def marker_of(places: int, chains: int = 1) -> bytes:
    """Returns a marker, not compressed, that lists places of three bytes each."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(MARKER, chains=[]))
    chain = b"\x93\xa1b\xc2\xdd" + places.to_bytes(4, "big") + b"\x92\x00\x00" * places
    packed = b"\xdd" + chains.to_bytes(4, "big") + chain * chains
    assert head.count(b"\xa6chains\x90") == 1
    return head.replace(b"\xa6chains\x90", b"\xa6chains" + packed)


def test_bytes_behind_a_marker_do_not_raise_its_limits() -> None:
    """They turned 187 KB into 145 MB."""
    body = zlib.compress(marker_of(1_000_000), 9) + bytes(187_000)
    for decode in (Marker.decode, lambda body: StoredMarker.decode(body, "q")):
        with pytest.raises(ValueError, match="too large"):
            decode(body[:2_000])
        with pytest.raises(ValueError, match="something follows"):
            decode(body)


@pytest.mark.parametrize(("places", "chains"), [(PLACES_FROM, 1), (100, 1_000), (0, PLACES_FROM + 1)])
def test_places_are_counted_before_they_are_made(places: int, chains: int) -> None:
    plain = marker_of(places, chains)
    # Empty blocks within the stream raise the limit of its size, but not this one.
    packing = zlib.compressobj(9)
    body = packing.compress(plain)
    while len(body) * 32 < len(plain):
        body += packing.flush(zlib.Z_FULL_FLUSH) + packing.compress(b"")
    body += packing.flush()
    assert len(body) < PLACES_FROM
    with pytest.raises(ValueError, match="half messages and chains"):
        Marker.decode(body)
    fewer = zlib.compress(marker_of(PLACES_FROM - 1), 0)
    assert len(Marker.decode(fewer).chains[0].places) == PLACES_FROM - 1


def test_only_the_marker_that_counts_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can write to the topic, under this name or another one."""
    plain = msgspec.msgpack.encode(msgspec.structs.replace(MARKER, chains=[]))
    bad = zlib.compress(plain.replace(b"\xa6chains\x90", b"\xa6chains\xc0"))
    others = [msgspec.structs.replace(MARKER, name=name).encode() for name in ("other", "q", "q")]
    read = [StoredMarker.decode(body, "q") for body in (bad, *others)]
    assert [bool(marker.body) for marker in read] == [True, False, True, True]
    decoded: list[bytes] = []
    decode = Marker.decode
    monkeypatch.setattr(Marker, "decode", lambda body: decoded.append(body) or decode(body))
    assert winner(read[:1] + read[2:], 1) == MARKER
    assert decoded == [bad, others[1]]
    assert read[2].is_of(MARKER) and not read[1].is_of(MARKER)
