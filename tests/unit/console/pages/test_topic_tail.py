"""The live view of a topic: a bounded number of them, and only messages that are new."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metaq.admin.results import BrokerFailure, NewestMessages
from metaq.client.session.routes import Queue
from metaq.console.console import console_of
from metaq.console.pages import topic_tail
from metaq.console.pages.message_search import MessageQuery
from metaq.console.pages.topic_tail import INTERVAL_S, PER_SECOND_MAX, TAILS_MAX, OpenTails
from tests.support.console_pages import Viewed
from tests.support.waiting import run


def test_there_is_a_place_for_a_bounded_number_of_tails() -> None:
    tails = OpenTails()
    with ExitStack() as stack:
        assert all(stack.enter_context(tails.one_more()) for _ in range(TAILS_MAX))
        with tails.one_more() as is_allowed:
            assert not is_allowed
        assert tails.count == TAILS_MAX
    assert tails.count == 0
    with tails.one_more() as is_allowed:
        assert is_allowed


def test_a_question_returns_a_whole_number_of_messages() -> None:
    assert PER_SECOND_MAX * INTERVAL_S == 25


A, B = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 0)


class Brokers:
    """Broker b does not answer the first question. All its messages are old but one."""

    def __init__(self) -> None:
        self.messages = self
        self.asked: list[Mapping[Queue, int] | None] = []

    async def newest(self, topic: str, **query: Any) -> NewestMessages:
        after = query["after"]
        self.asked.append(after)
        number = len(self.asked)
        ends = {A: 10 + number} if number == 1 else {A: 10 + number, B: 500 + number}
        found = [f"{queue.broker} {end}" for queue, end in ends.items() for _ in range(1)]
        failures = (BrokerFailure("broker-b", "no answer"),) if number == 1 else ()
        return _Found(found, ends, failures)  # type: ignore[return-value]


class _Found:
    def __init__(self, messages: list[str], ends: Mapping[Queue, int], failures: Any) -> None:
        self.messages, self.ends, self.failures, self.unseen = messages, ends, failures, 0


def test_a_broker_that_answers_late_shows_no_old_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers, shown = Brokers(), []
    monkeypatch.setattr(topic_tail, "INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_tail, "PER_SECOND_MAX", 50)
    monkeypatch.setattr(topic_tail, "_parts", lambda request, found, reader: [found.messages])

    async def scenario() -> None:
        request = Viewed(tmp_path, brokers).request("/topics/orders/tail")
        stream = topic_tail._events(request, console_of(request), MessageQuery("orders"))
        async for part in stream:
            if isinstance(part, list):
                shown.append(part)
            if len(brokers.asked) == 4:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    run(scenario)
    assert brokers.asked[:4] == [None, {A: 11}, {A: 11, B: 502}, {A: 13, B: 503}]
    assert shown[0] == ["broker-a 13", "broker-b 503"], "the second answer had only old messages of b"
