"""Property tests here say nothing about how fast the machine is; and brokers that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests.support.written_broker import Answer, WrittenBroker

hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture
def broker() -> Iterator[Callable[[Callable[[int], Answer]], WrittenBroker]]:
    made: list[WrittenBroker] = []

    def make(answer: Callable[[int], Answer]) -> WrittenBroker:
        made.append(WrittenBroker(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()
