"""Commits a query's offsets to a consumer group as soon as each batch is done.

The source itself commits when Spark plans the next batch, so a query that is stopped, or has taken all there
was, leaves its last batch uncommitted until it runs again. This listener does not wait.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from metaq.client.message import check_group
from metaq.client.session.routes import Queue
from metaq.errors import MetaqError
from metaq.spark.errors import WrongCheckpoint
from metaq.spark.source import stream_offset
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.options import DEFAULT_NAMESERVERS, Subscribed

_log = logging.getLogger(__name__)


class GroupOffsets(StreamingQueryListener):
    """`spark.streams.addListener(GroupOffsets("billing"))` for all queries, or for those that are named."""

    def __init__(
        self,
        group: str,
        nameservers: str = DEFAULT_NAMESERVERS,
        *,
        query_name: str | None = None,
        is_wanted: Callable[[str], bool] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """If a query has several sources, `is_wanted` tells which topics belong to the group."""
        check_group(group)
        self._group = group
        self._nameservers = nameservers
        self._query_name = query_name
        self._is_wanted = is_wanted
        self._timeout_s = timeout_s

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if self._query_name is None or event.progress.name == self._query_name:
            self.commit(event.progress)

    def commit(self, progress: StreamingQueryProgress) -> None:
        """Commits the offsets of a progress report, such as `query.lastProgress` after the end."""
        for source in progress.sources:
            offsets = _offsets(source.endOffset)
            if self._is_wanted is not None:
                offsets = {queue: at for queue, at in offsets.items() if self._is_wanted(queue.topic)}
            if offsets:
                self._commit(offsets)

    def _commit(self, offsets: dict[Queue, int]) -> None:
        topics = tuple(sorted({queue.topic for queue in offsets}))
        try:
            with Cluster(self._nameservers, self._timeout_s) as cluster:
                cluster.queues(Subscribed(topics=topics))
                cluster.commit(self._group, offsets)
        except MetaqError as error:
            _log.warning("the offsets of group %s are not committed: %s", self._group, error)


def _offsets(text: Any) -> dict[Queue, int]:
    """Returns no offsets if the source is not one of MetaQ."""
    try:
        stored = json.loads(text)
        return {queue: place.queue_offset for queue, place in stream_offset.load(stored).items()}
    except (ValueError, TypeError, AttributeError, WrongCheckpoint):
        return {}
