"""Filters that clients send are compiled once, and off the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from metaq.broker.functions import call
from metaq.broker.state.filters import Filters
from metaq.protocol.bodies import SubscriptionData
from metaq.protocol.errors import Refused
from tests.support.fake_request import FakeRequest


@pytest.mark.parametrize(("expression_type", "prefix"), [("FUNCTION", ""), ("SQL92", "function:")])
def test_calls_are_parsed_once_and_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, expression_type: str, prefix: str
) -> None:
    threads: list[str] = []
    read = call._Reader.call

    def read_noted(reader: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(reader)

    monkeypatch.setattr(call._Reader, "call", read_noted)
    filters = Filters()
    for text in (f"beaten_apart('{expression_type}')", f"beaten_apart('{expression_type}'"):
        entry = SubscriptionData(topic="t", expression_type=expression_type, sub_string=prefix + text)
        assert not filters.is_compiled(expression_type, prefix + text)
        for _ in range(3):
            asyncio.run(filters.compile_all_apart(FakeRequest(), [entry]))
            with pytest.raises(Refused):
                filters.compile(expression_type, prefix + text)
    assert len(threads) == 2, "the wrong one is known, too"
    assert all(name.startswith("metaq-compilation") for name in threads)


def test_a_call_and_an_expression_of_the_same_text_are_compiled_apart() -> None:
    filters = Filters()

    async def scenario() -> None:
        kinds = ("SQL92", "FUNCTION")
        outcomes = await asyncio.gather(
            *(filters.compile_apart(FakeRequest(), kind, "same_text IS NULL") for kind in kinds),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], tuple) and isinstance(outcomes[1], Refused)

    asyncio.run(scenario())
