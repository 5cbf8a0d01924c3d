"""How far a group is with a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from metaq import Queue
from metaq.admin import Members, Subscription, TimelineEvent
from metaq.admin.traces.group_states import NOT_RECORDED, group_state

QUEUE = Queue("t", "b", 0)
RETRY_QUEUE = Queue("%RETRY%g", "b", 0)
STORED = TimelineEvent("stored", 10, "store", queue=QUEUE, queue_offset=5)
RETURNED = TimelineEvent("returned", 20, "store", group="g")
RETRIED = TimelineEvent("retried", 30, "store", group="g", queue=RETRY_QUEUE, queue_offset=3)
DEAD = TimelineEvent("dead", 40, "store", group="g", reason="no stock")
RESENT = TimelineEvent("resent", 50, "store", group="g", queue=RETRY_QUEUE, queue_offset=4)


def delivered(at_ms: int, result: str | None) -> TimelineEvent:
    return TimelineEvent("delivered", at_ms, "trace", group="g", result=result)


class Committed:
    """The offsets of one group."""

    def __init__(self, offsets: dict[Queue, int]) -> None:
        self._offsets = offsets

    async def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        return {queue: self._offsets.get(queue) for queue in queues}


def state(
    *events: TimelineEvent,
    offset: int | None = None,
    retry_offset: int | None = None,
    expression: str = "*",
    expression_type: str = "TAG",
    broadcasting: bool = False,
) -> tuple[str, str | None]:
    given = {QUEUE: offset, RETRY_QUEUE: retry_offset}
    offsets: Any = Committed({queue: value for queue, value in given.items() if value is not None})
    members = Members("g", (), (Subscription("t", expression, expression_type),), broadcasting)
    found = asyncio.run(group_state(offsets, "g", members, events, "A"))
    return found.state, found.reason


@pytest.mark.parametrize(("offset", "expected"), [(5, ("waiting", None)), (6, ("passed", NOT_RECORDED))])
def test_the_committed_offset_decides_without_traces(offset: int, expected: tuple[str, str | None]) -> None:
    assert state(STORED, offset=offset) == expected


def test_unknown_is_said() -> None:
    assert state(STORED) == ("unknown", "it has not committed an offset in the queue of the message")
    assert state() == ("unknown", "no broker has the message in the topic")
    assert state(STORED, offset=9, broadcasting=True)[0] == "unknown"
    assert state(TimelineEvent("scheduled", 1, "store")) == ("waiting", None)


def test_tags_that_do_not_match_filter() -> None:
    assert state(STORED, offset=6, expression="B || C") == ("filtered", "it consumes B || C")
    assert state(STORED, offset=6, expression="B || A") == ("passed", NOT_RECORDED)
    assert state(STORED, offset=6, expression="a > 1", expression_type="SQL92") == (
        *("passed", "no delivery recorded; its SQL92 filter may have skipped the message"),
    )
    assert state(STORED, delivered(12, None), offset=6, expression="B") == ("consumed", None)


def test_a_success_counts_before_its_offset_is_committed() -> None:
    assert state(STORED, delivered(12, "success"), offset=5) == ("consumed", None)
    assert state(STORED, delivered(12, "failed"), offset=5) == ("waiting", None)
    assert state(STORED, delivered(12, "failed"), offset=6)[0] == "passed"


def test_retries_count_more_than_the_offset() -> None:
    assert state(STORED, RETURNED, offset=6) == ("retrying", None)
    assert state(STORED, RETURNED, RETRIED, offset=6, retry_offset=3) == ("retrying", None)
    assert state(STORED, RETURNED, RETRIED, offset=6, retry_offset=4) == ("passed", NOT_RECORDED)
    assert state(STORED, RETURNED, RETRIED, delivered(35, "failed"), offset=6, retry_offset=4) == (
        *("passed", "its last recorded delivery ended with failed"),
    )
    assert state(STORED, RETURNED, RETRIED, delivered(35, None), offset=6, retry_offset=4)[0] == "consumed"
    assert state(STORED, RETURNED, RETRIED, delivered(35, "success"), offset=6) == ("consumed", None)
    assert state(STORED, delivered(12, "success"), RETURNED, RETRIED, offset=6) == ("retrying", None)
    assert state(STORED, RETURNED, RETRIED, DEAD, offset=6, retry_offset=4) == ("dead", "no stock")
    assert state(STORED, DEAD, RESENT, offset=6, retry_offset=4) == ("retrying", None)
    assert state(STORED, DEAD, RESENT, offset=6, retry_offset=5) == ("passed", NOT_RECORDED)
