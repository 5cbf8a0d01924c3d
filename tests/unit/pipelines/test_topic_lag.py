"""The lag of a query: true or unknown, also within a batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from metaq.admin.offsets import Bounds, QueuePart
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.pipelines import Progress, topic_lag
from metaq.pipelines.binlog_mirror.apply import Applied
from metaq.pipelines.binlog_mirror.pipeline import update_progress
from metaq.pipelines.topic_lag import (
    LagWatch,
    TopicLag,
    WatchedTopics,
    ended_offsets,
    lag_update,
    measure,
    offsets_of_sources,
    total,
)
from metaq.spark.source.options import Subscribed
from metaq.spark.source.stream_offset import QueuePosition, dump

ONE, TWO = Queue("changes", "a", 0), Queue("changes", "a", 1)
CHANGES = WatchedTopics("h:1", Subscribed(topics=("changes",)))


class FakeCluster:
    """A topic with two queues."""

    def __init__(
        self,
        ends: dict[Queue, int],
        delays_ms: dict[Queue, int | None] | None = None,
        firsts: dict[Queue, int] | None = None,
    ) -> None:
        self._ends = ends
        self._delays_ms = delays_ms or {}
        self._firsts = firsts or {}
        self.is_away = False

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(self, subscribed: object, *, strict: bool) -> list[Queue]:
        if self.is_away:
            raise MetaqError("no name server answers")
        return list(self._ends)

    def ends(self, queues: list[Queue]) -> dict[Queue, int]:
        return self._ends

    def bounds(self, queues: list[Queue]) -> dict[Queue, Bounds]:
        return {queue: Bounds(self._firsts.get(queue, 0), self._ends[queue]) for queue in queues}

    def measure(self, parts: dict[Queue, tuple[int, int]], sizes: dict[Queue, int]) -> dict[Queue, QueuePart]:
        return {
            queue: QueuePart(first, 0, None, self._delays_ms[queue]) for queue, (first, _) in parts.items()
        }


def lag(cluster: FakeCluster, done: dict[Queue, int], watched: WatchedTopics = CHANGES) -> TopicLag | None:
    anything: Any = cluster
    return measure(anything, watched, done)


def test_the_lag_is_measured_from_the_last_batch_that_is_done() -> None:
    cluster = FakeCluster({ONE: 10, TWO: 5}, {ONE: 1500, TWO: 7250})
    assert lag(cluster, {ONE: 10, TWO: 5}) == TopicLag(0, 0.0)
    assert lag(cluster, {ONE: 7, TWO: 5}) == TopicLag(3, 1.5)
    # Nothing is done before the end of the first batch.
    assert lag(cluster, {}) == TopicLag(15, 7.25)


def test_a_lag_that_is_not_known_is_not_zero() -> None:
    # Apache's brokers do not tell how long messages wait.
    assert lag(FakeCluster({ONE: 10}, {ONE: None}), {}) == TopicLag(10, None)
    assert lag(FakeCluster({}), {}) == TopicLag(0, None)


def test_messages_that_retention_has_deleted_do_not_wait() -> None:
    cluster = FakeCluster({ONE: 10, TWO: 5}, {ONE: 1500, TWO: 7250}, firsts={ONE: 8})
    assert lag(cluster, {TWO: 5}) == TopicLag(2, 1.5)


def test_a_first_batch_that_begins_at_the_end_has_no_known_lag() -> None:
    cluster, latest = FakeCluster({ONE: 10, TWO: 5}, {TWO: 7250}), replace(CHANGES, start="latest")
    assert lag(cluster, {}, latest) is None
    # A queue that was added later is read from its beginning.
    assert lag(cluster, {ONE: 10}, latest) == TopicLag(5, 7.25)


def test_the_lags_of_several_sources() -> None:
    assert total([TopicLag(3, 1.5), TopicLag(4, 7.0)]) == TopicLag(7, 7.0)
    assert total([TopicLag(3, 1.5), TopicLag(4, None)]) == TopicLag(7, None)
    assert total([TopicLag(3, 1.5), None]) is None


def test_of_two_sources_with_the_same_queue_the_slower_one_counts() -> None:
    fast, slow = dump({ONE: QueuePosition(9), TWO: QueuePosition(5)}), dump({ONE: QueuePosition(4)})
    assert offsets_of_sources([json.dumps(fast), slow]) == {ONE: 4, TWO: 5}
    sources = [{"endOffset": fast}, {"endOffset": slow}]
    assert ended_offsets({"sources": sources}) == {ONE: 4, TWO: 5}
    assert ended_offsets({"sources": [*sources, {"endOffset": None}]}) is None


class Query:
    """A query that runs, and Spark's report of its last batch."""

    isActive = True

    def __init__(self, done: dict[Queue, int] | None) -> None:
        places = {queue: QueuePosition(offset) for queue, offset in (done or {}).items()}
        source = {"endOffset": json.dumps(dump(places)), "latestOffset": None}
        self.lastProgress = None if done is None else {"sources": [source]}


def test_no_false_zero_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({ONE: 10, TWO: 5}, {ONE: 1500, TWO: 7250})
    watch = LagWatch([CHANGES], {ONE: 4})
    update = lag_update(watch)
    progress = Progress()

    def look(query: Any) -> tuple[float | None, object]:
        update(query, progress)
        watch._look({"h:1": cluster})  # type: ignore[dict-item]
        update(query, progress)
        return progress.lag_s, progress.details["messages_left"]

    # Before the first look nothing is known.
    update(Query(None), progress)  # type: ignore[arg-type]
    assert (progress.lag_s, progress.details["messages_left"]) == (None, None)
    # The first batch: its checkpoint says where it began.
    assert look(Query(None)) == (7.25, 11)
    # The last report of Spark is from before this batch.
    assert look(Query({ONE: 8, TWO: 5})) == (1.5, 2)
    assert look(Query({ONE: 10, TWO: 5})) == (0.0, 0)
    cluster.is_away = True
    assert look(Query({ONE: 10, TWO: 5})) == (None, None)
    cluster.is_away = False
    monkeypatch.setattr(topic_lag, "VALID_S", -1.0)
    assert look(Query({ONE: 10, TWO: 5})) == (None, None)


def test_the_end_of_a_batch() -> None:
    assert ended_offsets(Query({ONE: 3}).lastProgress) == {ONE: 3}
    assert ended_offsets({"sources": []}) is None
    assert ended_offsets({"sources": [{"endOffset": None}]}) is None


def test_progress_within_a_batch() -> None:
    applied, progress = Applied(), Progress()
    update_progress(progress, applied)
    assert (progress.details["step"], progress.details["batch_rows"]) == ("waiting", None)
    # An idle mirror that is equal to its source does not look as if it fell behind.
    assert "behind_source_s" not in progress.details and progress.details["newest_commit"] is None
    batch = applied.begin_batch()
    update_progress(progress, applied)
    assert (progress.details["step"], progress.details["batch_rows"]) == ("reading", None)
    batch.rows, batch.rows_done = 400_000, 1000
    batch.begin("shop.orders")
    applied.rows, applied.committed_s = 1000, 1_790_000_000
    update_progress(progress, applied)
    details = progress.details
    assert (progress.rows, details["batch_rows"], details["batch_rows_done"]) == (1000, 400_000, 1000)
    assert (details["step"], details["newest_commit"]) == ("shop.orders", "2026-09-21T14:13:20Z")
    assert all(isinstance(details[name], float) for name in ("batch_s", "step_s"))


def test_any_number_may_be_the_time_of_a_commit() -> None:
    """A stranger may write it into a copy of a message."""
    applied, progress = Applied(committed_s=2**62), Progress()
    update_progress(progress, applied)
    assert progress.details["newest_commit"] == "9999-12-31T23:59:59Z"
