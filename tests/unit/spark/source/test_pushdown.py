"""Filters that queues and brokers can apply, and those that Spark has to."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.worker.data_source_pushdown_filters import deserializeFilter

from metaq.client.session.routes import Queue
from metaq.spark.source.offsets import Range
from metaq.spark.source.options import source_options
from metaq.spark.source.pushdown import narrow

OPTIONS = source_options({"subscribe": "t"}, streaming=False)
QUEUE = Queue("t", "b", 1)


@pytest.mark.parametrize(
    ("wanted", "cut"),
    [
        (EqualTo(("queueOffset",), 4), (4, 5)),
        (GreaterThan(("queueOffset",), 4), (5, 10)),
        (GreaterThanOrEqual(("queueOffset",), 4), (4, 10)),
        (LessThan(("queueOffset",), 4), (0, 4)),
        (LessThanOrEqual(("queueOffset",), 4), (0, 5)),
        (LessThan(("queueOffset",), -4), (0, 0)),
        (GreaterThan(("queueOffset",), 40), (41, 41)),
    ],
)
def test_offsets_cut_ranges(wanted: Filter, cut: tuple[int, int]) -> None:
    narrowed, left = narrow(OPTIONS, [wanted])
    assert left == []
    assert narrowed.cut(Range(QUEUE, 0, 10)) == Range(QUEUE, *cut)


def test_queues_are_left_out() -> None:
    wanted = [EqualTo(("topic",), "t"), In(("queueId",), (1, 2)), EqualTo(("brokerName",), "b")]
    narrowed, left = narrow(OPTIONS, wanted)
    assert left == []
    assert narrowed.wants(QUEUE)
    assert not narrowed.wants(Queue("t", "b", 3))
    assert not narrowed.wants(Queue("t", "c", 1))


def test_tags_are_the_brokers_unless_it_has_another_filter() -> None:
    wanted = In(("tags",), ("x", "y"))
    narrowed, left = narrow(OPTIONS, [wanted])
    assert left == []
    assert narrowed.filtered(OPTIONS).filter("t").tags == {"x", "y"}
    with_sql = source_options({"subscribe": "t", "sql": "a > 1"}, streaming=False)
    assert narrow(with_sql, [wanted])[1] == [wanted]
    second = EqualTo(("tags",), "x")
    assert narrow(OPTIONS, [wanted, second])[1] == [second]


def test_spark_sends_times_that_are_understood() -> None:
    # A variant of the kind timestamp: microseconds since 1970.
    variant = bytes([12 << 2]) + (3_600_000_000).to_bytes(8, "little")
    value = {"value": b64encode(variant).decode(), "metadata": b64encode(b"\x01\x00\x00").decode()}
    wanted = deserializeFilter(
        {"name": "GreaterThan", "columnPath": ["storeTimestamp"], "value": value, "isNegated": False}
    )
    assert narrow(OPTIONS, [wanted])[0].from_ms == 3_600_000


class Clock:
    """A queue in which one message was stored every second since 1970."""

    def __init__(self, ordered_since_ms: int | None = None) -> None:
        self._ordered_since_ms = ordered_since_ms

    def ordered_since(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        since_ms = self._ordered_since_ms
        return {} if since_ms is None else dict.fromkeys(queues, since_ms)

    def offsets_at(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        return {queue: -(-time_ms // 1000) for queue, time_ms in times_ms.items()}


@pytest.mark.parametrize(
    ("filters", "cut"),
    [
        ([GreaterThan], (3540, 10_000)),
        ([GreaterThanOrEqual], (3540, 10_000)),
        ([LessThan], (0, 3661)),
        ([LessThanOrEqual], (0, 3661)),
        ([EqualTo], (3540, 3661)),
        ([GreaterThan, LessThan], (3540, 3661)),
    ],
)
def test_store_times_cut_ranges_with_a_minute_for_clocks_and_spark_applies_them_too(
    filters: list[Any], cut: tuple[int, int]
) -> None:
    moment = datetime(1970, 1, 1, 1, tzinfo=UTC)
    wanted = [kind(("storeTimestamp",), moment) for kind in filters]
    narrowed, left = narrow(OPTIONS, wanted)
    assert left == wanted
    assert narrowed.cut_times(Clock(), [Range(QUEUE, 0, 10_000)]) == [Range(QUEUE, *cut)]
    assert narrowed.cut_times(Clock(), [Range(QUEUE, 5_000, 5_000)]) == [Range(QUEUE, 5_000, 5_000)]


@pytest.mark.parametrize(
    ("ordered_since_s", "cut"),
    [
        (0, (3600, 3601)),
        # A clock that was a minute ahead may have stored messages of this time before the queue was in order.
        (3540, (3600, 3601)),
        (3541, (3540, 3661)),
        (None, (3540, 3661)),
    ],
)
def test_queues_in_order_are_cut_at_exactly_the_time(
    ordered_since_s: int | None, cut: tuple[int, int]
) -> None:
    moment = datetime(1970, 1, 1, 1, tzinfo=UTC)
    narrowed, _ = narrow(OPTIONS, [EqualTo(("storeTimestamp",), moment)])
    clock = Clock(None if ordered_since_s is None else ordered_since_s * 1000)
    assert narrowed.cut_times(clock, [Range(QUEUE, 0, 10_000)]) == [Range(QUEUE, *cut)]


@pytest.mark.parametrize(
    "wanted",
    [
        EqualTo(("body",), b"x"),
        GreaterThan(("storeTimestamp",), 5),
        Not(EqualTo(("queueId",), 1)),
        IsNotNull(("tags",)),
        EqualTo(("tags",), "a || b"),
        EqualTo(("tags",), "*"),
        EqualTo(("tags",), ""),
        In(("tags",), ()),
        EqualTo(("properties", "tags"), "x"),
        In(("queueOffset",), (1, 2)),
    ],
)
def test_all_else_is_left_to_spark(wanted: Filter) -> None:
    narrowed, left = narrow(OPTIONS, [wanted])
    assert left == [wanted]
    assert narrowed.wants(QUEUE)
    assert narrowed.cut(Range(QUEUE, 0, 10)) == Range(QUEUE, 0, 10)
    assert narrowed.tags is None
