"""A page of dead letters, with brokers that answer late or not at all."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from metaq.admin.messages import letter_pages
from metaq.admin.messages.letter_pages import DeadLetterPage, newest_letters
from metaq.admin.messages.newest_messages import NewestQuery
from metaq.admin.results import BrokerFailure, NewestMessages
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.protocol.errors import Unreachable

TOPIC = "%DLQ%billing"
A, B = Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-b", 0)


class Calls:
    async def from_each(self, brokers: Any, ask: Any) -> tuple[dict[str, Any], tuple[BrokerFailure, ...]]:
        return {"broker-a": await ask("broker-a")}, (BrokerFailure("broker-b", "away"),)


class Offsets:
    async def committed(self, group: str, queues: list[Queue]) -> dict[Queue, int | None]:
        return dict.fromkeys(queues, 7)


def page(monkeypatch: pytest.MonkeyPatch, *, resent: bool = False) -> tuple[DeadLetterPage, NewestQuery]:
    asked: list[NewestQuery] = []

    async def newest(calls: object, offsets: object, query: NewestQuery) -> NewestMessages:
        asked.append(query)
        letters = tuple(Message(TOPIC, b"x", id=str(number), queue=A) for number in range(4))
        return NewestMessages(letters, "place", is_truncated=False, scanned=4, unseen=9, ends={})

    async def has_copy(calls: object, group: str, letter: Message) -> bool:
        if letter.id == "2":
            await asyncio.Event().wait()
        if letter.id == "3":
            raise Unreachable("broker-a is away")
        return letter.id == "1"

    monkeypatch.setattr(letter_pages, "newest", newest)
    monkeypatch.setattr(letter_pages, "has_copy", has_copy)
    monkeypatch.setattr(letter_pages, "CHECK_SECONDS_MAX", 0.05)
    calls, offsets = cast("Any", Calls()), cast("Any", Offsets())
    found = asyncio.run(
        newest_letters(calls, offsets, "billing", (A, B), resent=resent, limit=4, before=None)
    )
    return found, asked[0]


def test_letters_that_were_sent_again_are_left_out_as_far_as_brokers_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, query = page(monkeypatch)
    assert [letter.message.id for letter in found.letters] == ["0", "2", "3"]
    assert (found.resent, found.unchecked, found.before) == (1, 2, "place")
    assert [failure.broker for failure in found.failures] == ["broker-b"]
    assert (query.after, query.queues) == ({A: 7}, (A,))


def test_all_letters_need_no_question_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found, query = page(monkeypatch, resent=True)
    assert len(found.letters) == 4
    assert (found.resent, found.unchecked, query.after) == (0, 0, None)
