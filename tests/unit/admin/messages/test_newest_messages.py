"""The bounds of a search inside a block of messages."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from metaq.admin.messages import newest_messages
from metaq.admin.messages.newest_messages import EndOfSearch, NewestQuery, _Search
from metaq.client.message import Message


def block(count: int) -> list[Message]:
    return [Message("orders", b"body", queue_offset=number) for number in range(count)]


def looked_at(query: NewestQuery, count: int = 10, *, is_first: bool = False) -> tuple[list[int], int, bool]:
    async def look() -> tuple[list[int], int, bool]:
        search = _Search(cast("Any", None), query, [])
        found, looked = await search._look(block(count), 0, count, is_first=is_first)
        return [message.queue_offset for message in found], looked, search._is_spent

    return asyncio.run(look())


def test_a_block_is_looked_at_from_its_end() -> None:
    seen: list[int] = []

    def matches(message: Message) -> bool:
        seen.append(message.queue_offset)
        return message.queue_offset % 2 == 0

    found = looked_at(NewestQuery("orders", 50, matches=matches), 5)
    assert found == ([0, 2, 4], 0, False)
    assert seen == [4, 3, 2, 1, 0]


def ends_after(count: int) -> NewestQuery:
    left = iter(range(count))

    def matches(message: Message) -> bool:
        if next(left, None) is None:
            raise EndOfSearch
        return True

    return NewestQuery("orders", 50, matches=matches)


def test_a_search_that_may_read_nothing_more_leaves_no_gap() -> None:
    assert looked_at(ends_after(3)) == ([7, 8, 9], 7, True)
    assert looked_at(ends_after(0)) == ([], 10, True)


def test_the_first_message_of_a_queue_is_always_looked_at() -> None:
    assert looked_at(ends_after(0), 1, is_first=True) == ([0], 0, True)


def test_the_deadline_counts_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_messages, "SECONDS_MAX", -1.0)
    monkeypatch.setattr(newest_messages, "_TURN_S", 0.0)
    assert looked_at(NewestQuery("orders", 50)) == ([9], 9, True)
