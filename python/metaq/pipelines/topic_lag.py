"""Measures how far a query is behind its topics, also while a batch runs.

Spark reports the lag only at the end of a batch, as it was when the batch was planned. During a long batch
that number says nothing, and before the end of the first one there is none. So the ends of the topics are
looked up here, about once in two seconds, and compared with the end of the last batch that is done.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.pipelines import Progress
from metaq.pipelines.spark_runtime import LagUpdate
from metaq.pipelines.storage import exists, names, text
from metaq.spark.source import stream_offset
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.options import Subscribed

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 2.0
LOOK_TIMEOUT_S: Final = 10.0
VALID_S: Final = 15.0
"""How long a measurement counts. After that the lag is unknown."""
EARLIEST: Final = "earliest"
NO_OFFSET: Final = "-"
"""Spark's mark in a checkpoint for a source without an offset."""

Offsets = Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class WatchedTopics:
    """The topics of one source of a query."""

    nameservers: str
    subscribed: Subscribed
    start: str = EARLIEST
    """The start of the first batch: `earliest` or `latest`."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far a query is behind, at some moment."""

    messages: int
    seconds: float | None
    """How long the oldest message has waited; 0 if none waits, None if a broker does not tell."""


def measure(cluster: Cluster, watched: WatchedTopics, done: Offsets) -> TopicLag | None:
    """Compares the ends of the queues with the offsets that are done; raises MetaqError.

    Returns None if it is not known where the first batch begins.
    """
    if not done and watched.start != EARLIEST:
        return None
    ends = cluster.ends(cluster.queues(watched.subscribed, strict=False))
    # A queue that is not known yet is read from its beginning.
    unknown = [queue for queue in ends if queue not in done]
    firsts = {**done, **{queue: bounds.first for queue, bounds in cluster.bounds(unknown).items()}}
    waiting = {queue: (firsts[queue], end) for queue, end in ends.items() if end > firsts[queue]}
    if not waiting:
        return TopicLag(0, 0.0 if ends else None)
    found = cluster.measure(waiting, dict.fromkeys(waiting, 0)).values()
    delays_ms = [part.delay_ms for part in found if part.delay_ms is not None]
    seconds = max(delays_ms) / 1000 if len(delays_ms) == len(waiting) else None
    return TopicLag(sum(end - first for first, end in waiting.values()), seconds)


def total(lags: Sequence[TopicLag | None]) -> TopicLag | None:
    """Adds up the lags of all sources; None if one is unknown."""
    known = [lag for lag in lags if lag is not None]
    if len(known) < len(lags):
        return None
    seconds = [lag.seconds for lag in known if lag.seconds is not None]
    longest_s = max(seconds) if seconds and len(seconds) == len(known) else None
    return TopicLag(sum(lag.messages for lag in known), longest_s)


def offsets_of_sources(stored: Iterable[Any]) -> dict[Queue, int]:
    """Reads the offsets of sources, from a checkpoint or a progress report; raises MetaqError, ValueError.

    If two sources read the same queue, the one that is further behind counts.
    """
    done: dict[Queue, int] = {}
    for offset in stored:
        document = json.loads(offset) if isinstance(offset, str) else offset
        for queue, place in stream_offset.load(document).items():
            done[queue] = min(place.queue_offset, done.get(queue, place.queue_offset))
    return done


def ended_offsets(progress: Any) -> dict[Queue, int] | None:
    """Returns the end of a batch by Spark's report; None if it has none."""
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    ended = [source["endOffset"] if isinstance(source, Mapping) else source.endOffset for source in sources]
    return offsets_of_sources(ended) if ended and all(ended) else None


def done_offsets(spark: SparkSession, checkpoint: str) -> dict[Queue, int]:
    """Returns the end of the last batch that a checkpoint records as done; empty if there is none."""
    if not exists(spark, f"{checkpoint}/commits"):
        return {}
    done = [int(name) for name in names(spark, f"{checkpoint}/commits/*") if name.isdecimal()]
    if not done:
        return {}
    # The lines are the version of the format, metadata of the batch, and one offset for each source.
    lines = text(spark, f"{checkpoint}/offsets/{max(done)}").splitlines()[2:]
    return offsets_of_sources(line for line in lines if line != NO_OFFSET)


class LagWatch:
    """Looks at the topics in a thread of its own. A context manager."""

    def __init__(self, watched: Sequence[WatchedTopics], done: Offsets) -> None:
        self._watched = watched
        self._done = done
        self._found: tuple[float, TopicLag] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic lag", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(LOOK_TIMEOUT_S)

    def set_done(self, done: Offsets) -> None:
        """Sets the end of the last batch that is done. Until the next look, the lag is at most too large."""
        self._done = done

    def lag(self) -> TopicLag | None:
        """Returns the last measurement; None if the last look failed, or if it is too long ago."""
        found = self._found
        return None if found is None or time.monotonic() - found[0] > VALID_S else found[1]

    def look_now(self) -> TopicLag | None:
        """Measures at once, for the last report of a run."""
        self._stop.set()
        self._thread.join(LOOK_TIMEOUT_S)
        with ExitStack() as stack:
            self._look(self._clusters(stack))
        return self.lag()

    def _run(self) -> None:
        with ExitStack() as stack:
            clusters = self._clusters(stack)
            while not self._stop.is_set():
                self._look(clusters)
                self._stop.wait(LOOK_INTERVAL_S)

    def _clusters(self, stack: ExitStack) -> dict[str, Cluster]:
        """Returns a cluster for each list of name servers."""
        return {
            nameservers: stack.enter_context(Cluster(nameservers, LOOK_TIMEOUT_S))
            for nameservers in {watched.nameservers for watched in self._watched}
        }

    def _look(self, clusters: Mapping[str, Cluster]) -> None:
        begun_s, done = time.monotonic(), self._done
        try:
            found = total(
                [measure(clusters[watched.nameservers], watched, done) for watched in self._watched]
            )
        except MetaqError as error:
            self._found = None
            _log.info("the lag is unknown: %s", error)
        else:
            self._found = None if found is None else (begun_s, found)


def lag_update(watch: LagWatch) -> LagUpdate:
    """Returns a function that reports the lag behind the topics; unknown rather than wrong."""

    def update(query: StreamingQuery, progress: Progress) -> None:
        last = query.lastProgress
        done = None if last is None else ended_offsets(last)
        if done is not None:
            watch.set_done(done)
        found = watch.lag() if query.isActive else watch.look_now()
        progress.lag_s = None if found is None else found.seconds
        progress.details["messages_left"] = None if found is None else found.messages

    return update
