"""Measures how far a query is behind its topic, also while a batch runs.

Spark reports the lag only at the end of a batch, as it was when the batch was planned. During a long batch
that number says nothing, and before the end of the first one there is none. So the end of the topic is looked
up here, about once in two seconds, and compared with the end of the last batch that is done.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import SparkSession

from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.pipelines.storage import exists, names, text
from metaq.spark.source import stream_offset
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.options import Subscribed

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 2.0
LOOK_TIMEOUT_S: Final = 10.0
VALID_S: Final = 15.0
"""How long a measurement counts. After that the lag is unknown."""

Offsets = Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class TopicLag:
    """How far a query is behind, at some moment."""

    messages: int
    seconds: float | None
    """How long the oldest message has waited; 0 if none waits, None if a broker does not tell."""


def measure(cluster: Cluster, topic: str, done: Offsets) -> TopicLag:
    """Compares the ends of a topic's queues with the offsets that are done; raises MetaqError."""
    ends = cluster.ends(cluster.queues(Subscribed(topics=(topic,)), strict=False))
    # A queue that is not known yet is read from its beginning.
    waiting = {queue: (done.get(queue, 0), end) for queue, end in ends.items() if end > done.get(queue, 0)}
    if not waiting:
        return TopicLag(0, 0.0 if ends else None)
    found = cluster.measure(waiting, dict.fromkeys(waiting, 0)).values()
    delays_ms = [part.delay_ms for part in found if part.delay_ms is not None]
    seconds = max(delays_ms) / 1000 if len(delays_ms) == len(waiting) else None
    return TopicLag(sum(end - first for first, end in waiting.values()), seconds)


def offsets_of_source(stored: Any) -> dict[Queue, int]:
    """Reads the offset of a source, from a checkpoint or a progress report; raises MetaqError, ValueError."""
    document = json.loads(stored) if isinstance(stored, str) else stored
    return {queue: place.queue_offset for queue, place in stream_offset.load(document).items()}


def ended_offsets(progress: Any) -> dict[Queue, int] | None:
    """Returns the end of a batch by Spark's report, for a query with one source; None if it has none."""
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    if not sources:
        return None
    (source,) = sources
    ended = source["endOffset"] if isinstance(source, Mapping) else source.endOffset
    return offsets_of_source(ended) if ended else None


def done_offsets(spark: SparkSession, checkpoint: str) -> dict[Queue, int]:
    """Returns the end of the last batch that a checkpoint records as done; empty if there is none."""
    if not exists(spark, f"{checkpoint}/commits"):
        return {}
    done = [int(name) for name in names(spark, f"{checkpoint}/commits/*") if name.isdecimal()]
    if not done:
        return {}
    # The lines are the version of the format, metadata of the batch, and one offset for each source.
    return offsets_of_source(text(spark, f"{checkpoint}/offsets/{max(done)}").splitlines()[2])


class LagWatch:
    """Looks at the topic in a thread of its own. A context manager."""

    def __init__(self, nameservers: str, topic: str, done: Offsets) -> None:
        self._nameservers = nameservers
        self._topic = topic
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
        with Cluster(self._nameservers, LOOK_TIMEOUT_S) as cluster:
            self._look(cluster)
        return self.lag()

    def _run(self) -> None:
        with Cluster(self._nameservers, LOOK_TIMEOUT_S) as cluster:
            while not self._stop.is_set():
                self._look(cluster)
                self._stop.wait(LOOK_INTERVAL_S)

    def _look(self, cluster: Cluster) -> None:
        begun_s = time.monotonic()
        try:
            self._found = (begun_s, measure(cluster, self._topic, self._done))
        except MetaqError as error:
            self._found = None
            _log.info("the lag is unknown: %s", error)
