"""Sequence numbers sort as text in the order of their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.binlog_sync.coordinates import Coordinates
from metaq.pipelines.binlog_sync.errors import BinlogError
from metaq.pipelines.binlog_sync.sequence import ChangeCounter, reading_begun, sequence_number

NUMBERS = st.tuples(*[st.integers(0, 2**32 - 1)] * 4)


@given(NUMBERS, NUMBERS)
def test_order(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    def text(numbers: tuple[int, ...]) -> str:
        era, file, position, row = numbers
        return sequence_number(era, Coordinates(f"binlog.{file:06d}", position), row)

    assert (text(one) < text(other)) == (one < other)
    assert len(text(one)) == len(text(other)) == 35


def test_rows_that_are_read_again_are_newer_and_older_than_the_next_transaction() -> None:
    here, next_one = Coordinates("binlog.000001", 400), Coordinates("binlog.000001", 401)
    counter = ChangeCounter(5, here)
    numbers = [counter.current]
    for reading in (1, 2**40):
        counter.begin(5, here, reading)
        numbers += [counter.current]
        assert counter.current == reading_begun(5, here, reading)
    counter.begin(5, here)
    numbers += [counter.next(), counter.current, reading_begun(5, next_one, 1)]
    assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers) - 1
    # Mirrors in databases have room for this much.
    assert max(map(len, numbers)) <= 64


@pytest.mark.parametrize("file", ["binlog", "binlog.", "binlog.x", "", "binlog.99999999999"])
def test_invalid_file_names(file: str) -> None:
    with pytest.raises(BinlogError):
        sequence_number(1, Coordinates(file, 4), 0)


@pytest.mark.parametrize(("era", "position", "row"), [(-1, 4, 0), (1, 2**32, 0), (1, 4, 2**32)])
def test_limits(era: int, position: int, row: int) -> None:
    with pytest.raises(BinlogError):
        sequence_number(era, Coordinates("binlog.000001", position), row)
