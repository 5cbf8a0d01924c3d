"""Queues that did not exist at the first look count as new."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.group.rebalance import Shares
from metaq.client.consumer.options import consumer_options
from metaq.client.session.routes import Queue
from metaq.errors import NoRoute

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)


class Routes:
    def __init__(self) -> None:
        self.answer: list[Queue] | NoRoute = []

    async def get(self, topic: str) -> Any:
        if isinstance(self.answer, NoRoute):
            raise self.answer
        return SimpleNamespace(readable=self.answer)


def look(*answers: list[Queue] | NoRoute) -> Shares:
    routes = Routes()
    shares = Shares(SimpleNamespace(routes=routes), consumer_options("T", "g", {}))  # type: ignore[arg-type]
    for routes.answer in answers:
        with contextlib.suppress(NoRoute):
            asyncio.run(shares.look("T"))
    return shares


def test_a_queue_that_leaves_the_route_and_comes_back_is_not_new() -> None:
    shares = look([A0, B0], [A0], [A0, A1, B0])
    assert [shares.has_appeared(queue) for queue in (A0, A1, B0)] == [False, True, False]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_topic_that_was_not_there_is_new_unless_its_broker_was_away(is_away: bool) -> None:
    missing = NoRoute("none", retriable=is_away)
    assert look(missing, [A0]).has_appeared(A0) is not is_away
    assert look([A0], missing, [A0]).has_appeared(A0) is not is_away
