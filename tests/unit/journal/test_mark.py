"""The mark beside a journal shows what is missing, and never more than was written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metaq.journal.journal import Change, Journal, Point, Snapshot
from metaq.journal.mark import Found, Mark, mark_beside


def put(key: str) -> Change:
    return "topics", key, b"x"


def found_after(directory: Path, work: Callable[[Journal], Awaitable[object]] | None = None) -> Found:
    """Opens the journal, does something with it, and returns what it found."""

    async def scenario() -> Found:
        journal = Journal.open(directory, mark=Mark(mark_beside(directory)))
        if work is not None:
            await journal.accept_mark()
            await work(journal)
        await journal.close()
        return journal.found

    return asyncio.run(scenario())


async def write_three(journal: Journal) -> None:
    for key in "abc":
        await journal.write([put(key)])


def test_it_follows_the_journal(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    assert found_after(directory, write_three) == Found(Point(0, 0), None)
    found = found_after(directory)
    assert (found, found.is_behind) == (Found(Point(1, 3), Point(1, 3)), False)


def test_it_shows_entries_that_were_cut_off_until_it_is_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    found_after(directory, write_three)
    [log] = directory.glob("*.log")
    log.write_bytes(log.read_bytes()[:-4])
    for _ in range(2):
        found = found_after(directory)
        assert (found, found.is_behind) == (Found(Point(1, 2), Point(1, 3)), True)

    async def nothing(journal: Journal) -> None:
        pass

    found_after(directory, nothing)
    assert not found_after(directory).is_behind


def test_it_falls_back_with_a_journal_that_is_replaced(tmp_path: Path) -> None:
    """A new master may never have had the last entries of the old one."""
    directory = tmp_path / "journal"
    found_after(directory, write_three)
    found_after(directory, lambda journal: journal.reset(Snapshot(Point(1, 2), [])))
    assert found_after(directory) == Found(Point(1, 2), Point(1, 2))


@pytest.mark.parametrize("length", [0, 1, 20, 23, 25])
def test_a_mark_of_another_length_cannot_be_read(tmp_path: Path, length: int) -> None:
    mark = Mark(tmp_path / "journal.mark")
    mark.accept(Point(5, 7))
    mark.close()
    mark.path.write_bytes(mark.path.read_bytes()[:length].ljust(length, b"\0"))
    assert mark.read() is None


def test_every_flipped_bit_of_a_mark_is_noticed(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "journal.mark")
    mark.accept(Point(5, 7))
    mark.close()
    whole = mark.path.read_bytes()
    assert mark.read() == Point(5, 7)
    for place in range(len(whole)):
        mark.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert mark.read() is None


def test_a_loss_is_noted_even_if_there_was_no_mark(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "journal.mark")
    mark.note_loss()
    assert Found(Point(10**9, 10**9), mark.read()).is_behind
    mark.accept(Point(5, 7))
    mark.close()
    mark.note_loss()
    assert mark.read() == Point(5, 7)
