"""A broker that answers nonsense fails alone, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from metaq.admin.groups import group_figures
from metaq.admin.messages.queue_reading import QueueCursor, pull_messages
from metaq.admin.messages.stored_messages import messages_of
from metaq.admin.topic_figures import overview
from metaq.client.session.routes import Queue
from metaq.protocol.command import Command
from metaq.protocol.commands.figures import (
    GetGroupFigures,
    GetTopicFigures,
    GroupLine,
    GroupLines,
    TopicLine,
    TopicLines,
)
from metaq.protocol.commands.messages import Pulled
from metaq.protocol.errors import ProtocolError
from metaq.protocol.reply import Reply
from tests.support.scripted_calls import ScriptedCalls


def page(command: Command, names: list[str], *, is_last: bool) -> Reply:
    if isinstance(command, GetTopicFigures):
        topics = TopicLines(topics=[TopicLine(name=name) for name in names], is_last=is_last)
        return Reply(0, None, {}, topics.encode())
    groups = GroupLines(groups=[GroupLine(name=name) for name in names], is_last=is_last)
    return Reply(0, None, {}, groups.encode())


@pytest.mark.parametrize("grows", [False, True], ids=["repeats", "never ends"])
@pytest.mark.parametrize("look", [overview, group_figures.overview], ids=["topics", "groups"])
def test_a_list_without_an_end_is_the_failure_of_its_broker(
    look: Callable[..., Awaitable[object]], grows: bool
) -> None:
    asked = 0

    def answer(broker: str, command: Command) -> Reply:
        nonlocal asked
        if broker == "good":
            return page(command, ["T"], is_last=True)
        asked += 1
        assert asked < 2000, "it asks without end"
        assert isinstance(command, GetTopicFigures | GetGroupFigures)
        return page(command, [f"x{asked:09}" if grows else "x"], is_last=False)

    calls = ScriptedCalls(answer, "bad", "good")
    found = asyncio.run(look(calls, ["bad", "good"], None, None))  # type: ignore[arg-type]
    assert [failure.broker for failure in found.failures] == ["bad"]  # type: ignore[attr-defined]
    assert "does not end" in found.failures[0].reason  # type: ignore[attr-defined]
    assert asked <= 1000


@pytest.mark.parametrize(
    "body", [b"x", b"\0\0\0\x5b" + bytes(87), b"\xff" * 200], ids=["short", "zeros", "ones"]
)
def test_messages_that_are_none_are_an_error_that_names_the_broker(body: bytes) -> None:
    queue = Queue("T", "bad", 0)
    fields = Pulled(suggest_which_broker_id=0, next_begin_offset=1, min_offset=0, max_offset=1).to_fields()
    calls = ScriptedCalls(lambda *_: Reply(0, None, fields, body), "bad")
    with pytest.raises(ProtocolError, match="broker bad sent a malformed message"):
        asyncio.run(pull_messages(calls, QueueCursor(queue, 0, 1)))
    with pytest.raises(ProtocolError, match="broker bad sent a malformed message"):
        messages_of("bad", body)
