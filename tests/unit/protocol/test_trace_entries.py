"""Trace entries: round trips, the forms of older clients, and bytes that nobody should have written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from metaq.protocol.trace_entries import (
    ENTRY_BYTES_MAX,
    TIME_MS_MAX,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceEntry,
    decode,
    encode,
    select,
)

TIMES = some.integers(0, TIME_MS_MAX)
COUNTS = some.integers(0, 2**31 - 1)
WORDS = some.text(
    some.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
).filter(lambda word: word != "null")
MAYBE = some.none() | WORDS
FLAGS = some.booleans()
TYPES = some.integers(0, 5)
ENTRIES: some.SearchStrategy[TraceEntry] = some.one_of(
    some.builds(
        PubTrace,
        *(TIMES, MAYBE, MAYBE, WORDS, WORDS, MAYBE, MAYBE, MAYBE, COUNTS, COUNTS, TYPES, MAYBE, FLAGS, MAYBE),
    ),
    some.builds(SubBeforeTrace, TIMES, MAYBE, MAYBE, WORDS, WORDS, COUNTS, MAYBE),
    some.builds(SubAfterTrace, WORDS, WORDS, COUNTS, FLAGS, MAYBE, some.integers(0, 4), TIMES, MAYBE),
    some.builds(
        EndTransactionTrace,
        *(TIMES, MAYBE, MAYBE, MAYBE, WORDS, MAYBE, MAYBE, MAYBE, TYPES, MAYBE, WORDS, FLAGS),
    ),
    some.builds(RecallTrace, TIMES, MAYBE, MAYBE, WORDS, WORDS, FLAGS),
)


@given(some.lists(ENTRIES))
def test_entries_are_read_as_they_were_written(entries: list[TraceEntry]) -> None:
    body = "".join(map(encode, entries)).encode()
    assert decode(body) == (entries, 0)


@given(
    some.binary() | some.lists(ENTRIES).map(lambda entries: "".join(map(encode, entries)).encode()),
    some.data(),
)
@example(b"Pub\x01" + b"9" * 5000 + b"\x02", None)
@example("Pub\x01\u0661\x02".encode(), None)
def test_hostile_bytes_are_skipped_and_counted(body: bytes, data: Any) -> None:
    if data is not None and body:
        # Cut it and change one byte.
        end = data.draw(some.integers(1, len(body)))
        place = data.draw(some.integers(0, end - 1))
        body = body[:place] + data.draw(some.binary(max_size=3)) + body[place + 1 : end]
    found = decode(body)
    lines = [line for line in body.decode(errors="replace").split("\x02") if line]
    assert len(found.entries) + found.skipped == len(lines)


def fields(*texts: str) -> bytes:
    return ("\x01".join(texts) + "\x02").encode()


PUB = ("Pub", "1000", "R", "g", "t", "ID", "tag", "k1 k2", "h:1", "12", "3", "0")


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (
            fields(*PUB, "true"),
            PubTrace(1000, "R", "g", "t", "ID", "tag", "k1 k2", "h:1", 12, 3, 0, None, True),
        ),
        (
            fields(*PUB, "OFFSET", "false"),
            PubTrace(1000, "R", "g", "t", "ID", "tag", "k1 k2", "h:1", 12, 3, 0, "OFFSET", False),
        ),
        (
            fields(*PUB, "OFFSET", "true", "10.0.0.7"),
            PubTrace(1000, "R", "g", "t", "ID", "tag", "k1 k2", "h:1", 12, 3, 0, "OFFSET", True, "10.0.0.7"),
        ),
        (
            fields("SubBefore", "1000", "null", "g", "Q", "ID", "2", ""),
            SubBeforeTrace(1000, None, "g", "Q", "ID", 2, None),
        ),
        (fields("SubAfter", "Q", "ID", "-5", "true", "k"), SubAfterTrace("Q", "ID", 0, True, "k")),
        (fields("SubAfter", "Q", "ID", "5", "true", "k", "0", ""), SubAfterTrace("Q", "ID", 5, True, "k", 0)),
        (
            fields("SubAfter", "Q", "ID", "5", "false", "k", "4", "1005"),
            SubAfterTrace("Q", "ID", 5, False, "k", 4, 1005),
        ),
        (
            fields("Recall", "1000", "R", "g", "t", "ID", "true"),
            RecallTrace(1000, "R", "g", "t", "ID", True),
        ),
    ],
)
def test_the_forms_of_all_clients(line: bytes, entry: TraceEntry) -> None:
    assert decode(line) == ([entry], 0)


@given(some.lists(ENTRIES), some.sampled_from(["ID", "1", "x"]))
def test_entries_of_one_message(entries: list[TraceEntry], id: str) -> None:
    """The same as if all entries had been read."""
    entries = [entry._replace(id=id) if number % 2 else entry for number, entry in enumerate(entries)]
    body = "".join(map(encode, entries)).encode()
    wanted = [entry for entry in entries if entry.id == id]
    found = select(body, id, len(entries))
    assert (found.entries, found.skipped, found.is_whole) == (wanted, 0, True)
    if wanted:
        assert select(body, id, 0) == ([], 0, 0, False)


def test_a_huge_entry_is_not_read() -> None:
    entry = SubBeforeTrace(1, None, None, "r", "ID", 0, None)
    huge = b"ID" + b"\x01" * ENTRY_BYTES_MAX + b"\x02"
    assert select(huge + encode(entry).encode() + huge, "ID", 9) == ([entry], 2, 3, True)


@pytest.mark.parametrize(
    "line",
    [
        fields(*PUB),
        fields(*PUB, "perhaps"),
        fields("Pub", str(TIME_MS_MAX + 1), *PUB[2:], "true"),
        fields("Pub", "-1", *PUB[2:], "true"),
        fields("Pub", "1_0", *PUB[2:], "true"),
        fields("SubBefore", "1000", "R", "g", "Q", "null", "2", "k"),
        fields("Forged", "1"),
    ],
)
def test_an_entry_that_cannot_be_read_does_not_hide_the_next(line: bytes) -> None:
    good = SubAfterTrace("Q", "ID", 5, True, "k", 0, 1005, "g")
    assert decode(line + encode(good).encode()) == ([good], 1)
