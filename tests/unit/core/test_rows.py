"""The data plane reads rows in Arrow's layout, and refuses invalid buffers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq._core import Network, SendBuffer, UnsentBatch
from metaq.client.producer.arrow_rows import Numbers, Pairs, Rows, Texts
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.unique_ids import unique_ids
from metaq.settings import NetworkSettings


def texts(*values: bytes | None) -> Texts:
    offsets, at = [0], 0
    for value in values:
        at += len(value or b"")
        offsets.append(at)
    bits = sum(1 << place for place, value in enumerate(values) if value is not None)
    return Texts(
        b"".join(value or b"" for value in values),
        struct.pack(f"<{len(offsets)}i", *offsets),
        bits.to_bytes(len(values) // 8 + 1, "little"),
    )


def numbers(*values: int | None) -> Numbers:
    bits = sum(1 << place for place, value in enumerate(values) if value is not None)
    packed = struct.pack(f"<{len(values)}q", *(value or 0 for value in values))
    return Numbers(packed, bits.to_bytes(len(values) // 8 + 1, "little"))


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network(NetworkSettings())
    yield network
    network.close()


def buffer(network: Network, **options: object) -> SendBuffer:
    given = ProducerOptions("g", compression=None, **options)  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    loop.close()  # Nobody waits for it here.
    made = SendBuffer(network, unique_ids("127.0.0.1"), given, loop)
    made.set_route("t", [("a", "127.0.0.1:1", 0), ("a", "127.0.0.1:1", 1), ("b", "127.0.0.1:2", 0)], False)
    return made


def put(made: SendBuffer, rows: Rows) -> list[tuple[bytes, dict[str, str], tuple[str, int] | None]]:
    """Returns body, properties and queue of each message that a broker would receive."""
    assert made.put_rows(rows, 1.0)
    made.flush()
    left = made.close()
    found = [message for batch in left for message in messages(batch)]
    for batch in left:
        batch.failed(RuntimeError("not sent"))
    return found


def messages(batch: UnsentBatch) -> Iterator[tuple[bytes, dict[str, str], tuple[str, int] | None]]:
    if batch.alone is not None and "METAQ_HALF_BATCH" not in batch.alone[0]:
        yield batch.body, properties(batch.alone[0]), batch.queue
        return
    rest = batch.body
    while rest:
        (size,) = struct.unpack_from(">i", rest)
        (length,) = struct.unpack_from(">i", rest, 16)
        text = rest[20 + length + 2 : size].decode()
        yield rest[20 : 20 + length], properties(text), batch.queue
        rest = rest[size:]


def properties(text: str) -> dict[str, str]:
    pairs = dict(entry.split("\x01") for entry in text.split("\x02") if entry)
    assert pairs.pop("UNIQ_KEY")
    return pairs


def test_columns_become_messages(network: Network) -> None:
    rows = Rows(
        count=3,
        topic="t",
        bodies=texts(b"one", b"", b"three"),
        tags=texts(b"a", b"", None),
        keys=texts(b"k1 k2", None, b""),
        properties=Pairs(struct.pack("<4i", 0, 2, 2, 3), texts(b"x", b"y", b"z"), texts(b"1", b"2", b"3")),
        queue_ids=numbers(1, None, 0),
        brokers=texts(None, None, b"b"),
        delay_levels=numbers(None, 0, 3),
    )
    found = sorted(put(buffer(network), rows))
    assert found == sorted(
        [
            (b"one", {"x": "1", "y": "2", "TAGS": "a", "KEYS": "k1 k2"}, ("a", 1)),
            (b"", {}, None),
            (b"three", {"z": "3", "DELAY": "3"}, ("b", 0)),
        ],
        key=lambda message: message[0],
    )


def test_slices_begin_where_their_offsets_say(network: Network) -> None:
    bodies = Texts(b"bcd", struct.pack("<3i", 10, 11, 13), b"\x18", first_bit=3)
    assert [body for body, _, _ in put(buffer(network), Rows(2, bodies, topic="t"))] == [b"b", b"cd"]


def test_rows_that_would_go_alone_become_half_messages(network: Network) -> None:
    made = buffer(network, half_properties="TRAN_MSG\x01true\x02", batch_bytes_max=1024)
    rows = Rows(3, texts(b"a", b"x" * 2000, b"c"), topic="t", delay_levels=numbers(2, None, None))
    assert made.put_rows(rows, 1.0)
    made.flush()
    left = made.close()
    assert [batch.count for batch in left] == [1, 1, 1]
    assert all(batch.alone is not None and batch.alone[1] == 4 for batch in left)
    for batch in left:
        batch.failed(RuntimeError("not sent"))


GOOD = Rows(2, texts(b"a", b"b"), topic="t")


@pytest.mark.parametrize(
    "rows, row, what",
    [
        (replace(GOOD, bodies=texts(b"a", None)), 1, "body is null"),
        (replace(GOOD, bodies=texts(b"a", b"x" * 101)), 1, "101 bytes"),
        (replace(GOOD, topic=None), 0, "topic is null"),
        (replace(GOOD, topic=None, topics=texts(b"t", None)), 1, "topic is null"),
        (replace(GOOD, tags=texts(b"a||b", None)), 0, "||"),
        (replace(GOOD, tags=texts(None, b"a\x01b")), 1, "character 1"),
        (replace(GOOD, keys=texts(None, b"\xff")), 1, "UTF-8"),
        (replace(GOOD, keys=texts(b"k" * 40_000, None)), 0, "more than 32767"),
        (replace(GOOD, queue_ids=numbers(0, None)), 0, "several brokers"),
        (replace(GOOD, queue_ids=numbers(None, 7)), 1, "queueId is 7"),
        (replace(GOOD, brokers=texts(b"a", None)), 0, "without queueId"),
        (replace(GOOD, queue_ids=numbers(1, 1), sharding_keys=texts(None, b"k")), 1, "both"),
        (replace(GOOD, topic="unknown", sharding_keys=texts(b"k", None)), 0, "route"),
        (replace(GOOD, delay_levels=numbers(-1, 0)), 0, "delayLevel"),
        (replace(GOOD, delay_levels=numbers(1, 1), deliver_ms=numbers(None, 5)), 1, "both"),
    ],
)
def test_the_first_wrong_row_is_named(network: Network, rows: Rows, row: int, what: str) -> None:
    made = buffer(network, body_bytes_max=100)
    with pytest.raises(ValueError) as error:
        made.put_rows(rows, 1.0)
    assert error.value.args[0] == row and what in error.value.args[1]
    for batch in made.close():
        batch.failed(RuntimeError("not sent"))


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=40),
    offsets=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 40), max_size=6),
    validity=st.none() | st.binary(max_size=2),
    count=st.integers(0, 6),
    first_bit=st.integers(0, 2**40),
)
def test_another_layout_than_arrows_is_an_error(
    data: bytes, offsets: Sequence[int], validity: bytes | None, count: int, first_bit: int
) -> None:
    wild = Texts(data, struct.pack(f"<{len(offsets)}i", *offsets), validity, first_bit)
    network = Network(NetworkSettings())
    try:
        made = buffer(network)
        for rows in (
            Rows(count, wild, topic="t"),
            Rows(
                count, texts(*[b"x"] * count), topic="t", properties=Pairs(wild.offsets, wild, wild, validity)
            ),
            Rows(count, texts(*[b"x"] * count), topic="t", queue_ids=Numbers(data, validity, first_bit)),
        ):
            try:
                made.put_rows(rows, 1.0)
            except ValueError as error:
                assert isinstance(error.args[1], str)
        for batch in made.close():
            batch.failed(RuntimeError("not sent"))
    finally:
        network.close()
