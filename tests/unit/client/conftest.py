"""A broker whose answers a test writes down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.written_broker import Answer, WrittenBroker


@pytest.fixture
def broker() -> Iterator[Callable[[Callable[[int], Answer]], WrittenBroker]]:
    made: list[WrittenBroker] = []

    def make(answer: Callable[[int], Answer]) -> WrittenBroker:
        made.append(WrittenBroker(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()
