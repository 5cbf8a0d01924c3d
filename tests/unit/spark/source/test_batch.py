"""Ranges of a batch, and the errors if queues do not hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from metaq.admin import Bounds
from metaq.client.session.routes import Queue
from metaq.spark.errors import DataLost
from metaq.spark.source.batch import batch_ranges
from metaq.spark.source.cluster import is_matched
from metaq.spark.source.offsets import Range
from metaq.spark.source.options import source_options

QUEUE = Queue("t", "b", 0)
NAMED = {"startingOffsets": '{"t": {"b": {"0": 7}}}'}
GROUP = {"startingOffsets": "group", "group": "g"}


class Fake:
    """A cluster of one queue, with a group that is at 7."""

    def __init__(self, end: int) -> None:
        self.end = end

    def bounds(self, queues: Iterable[Queue]) -> dict[Queue, Bounds]:
        return {queue: Bounds(0, self.end) for queue in queues}

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        return dict.fromkeys(queues, 7)


def ranges(told: dict[str, str], end_before: int, end: int) -> list[Range]:
    options = source_options({"subscribe": "t", **told}, streaming=False)
    cluster: Any = Fake(end)
    return batch_ranges(cluster, options, {QUEUE: Bounds(0, end_before)})


@pytest.mark.parametrize("told", [NAMED, GROUP])
def test_a_start_beyond_the_end_is_loud(told: dict[str, str]) -> None:
    what = "the offset of group g" if told is GROUP else "option startingOffsets"
    with pytest.raises(DataLost, match=f"{what} is 7 for t/b/0, but the queue ends at 3"):
        ranges(told, 3, 3)
    (found,) = ranges({**told, "failOnDataLoss": "false"}, 3, 3)
    assert found.length == 0


@pytest.mark.parametrize("told", [NAMED, GROUP])
def test_a_start_at_the_end_or_that_the_queue_has_reached_meanwhile_is_none(told: dict[str, str]) -> None:
    assert [found.length for found in (*ranges(told, 7, 7), *ranges(told, 3, 8))] == [0, 0]
    assert ranges(told, 9, 9) == [Range(QUEUE, 7, 9)]


def test_an_end_beyond_the_end_names_both_offsets() -> None:
    told = {"endingOffsets": '{"t": {"b": {"0": 99999999}}}'}
    with pytest.raises(DataLost, match="endingOffsets is 99999999 for t/b/0, but the queue ends at 3"):
        ranges(told, 3, 3)
    assert ranges({**told, "failOnDataLoss": "false"}, 3, 3) == [Range(QUEUE, 0, 3)]


def test_lost_messages_are_a_range_that_makes_sense() -> None:
    options = source_options({"subscribe": "t", **NAMED}, streaming=False)
    cluster: Any = Fake(20)
    with pytest.raises(DataLost, match=r"t/b/0 \[7, 12\): the queue begins at 12 now"):
        batch_ranges(cluster, options, {QUEUE: Bounds(12, 20)})
    assert str(Range(QUEUE, 9, 9)) == "t/b/0 at 9"


def test_patterns_do_not_match_the_topics_of_the_sink() -> None:
    everything = re.compile(".*")
    assert is_matched(everything, "orders") and is_matched(everything, "METAQ_orders")
    for topic in ("METAQ_SPARK_JOBS", "METAQ_SPARK_0a1b2c3d"):
        assert not is_matched(everything, topic), topic
    assert not is_matched(re.compile("order"), "orders"), "a pattern matches the whole name"
