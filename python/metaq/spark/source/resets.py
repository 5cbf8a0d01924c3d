"""Resets of the group of a stream (`metaq group reset`, mqadmin): the next batch begins at the new offset.

The checkpoint has to record the move before the broker may forget the reset. So a batch is planned that
begins at the new offset. When Spark asks for the batch after it, the new offset is committed, which ends the
reset. Until then brokers ignore the offsets that the stream commits, so nothing undoes the reset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from metaq.client.session.routes import Queue
from metaq.spark.source.cluster import Cluster
from metaq.spark.source.stream_offset import QueuePosition, StreamOffset

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Seconds between looks for resets."""


class GroupResets:
    """Finds resets of a group that no batch has followed, and ends those that one has."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._ended: dict[Queue, int] = {}
        """Which reset of a queue (`QueuePosition.resets`) this process has ended."""

    def follow(
        self, cluster: Cluster, group: str, begun: StreamOffset, ends: Mapping[Queue, int]
    ) -> dict[Queue, int]:
        """Returns the offsets at which queues continue after a reset. Raises MetaqError."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return {}
        self._looked_at = now
        open_resets = cluster.resets(group, ends)
        if not open_resets:
            return {}
        moved: dict[Queue, int] = {}
        followed: dict[Queue, int] = {}
        bounds = cluster.bounds(open_resets)
        for queue, reset_to in open_resets.items():
            place = begun.get(queue)
            target = min(max(reset_to, bounds[queue].first), ends[queue])
            if place is not None and (
                self._is_recorded(queue, place, target) or place.queue_offset == target
            ):
                followed[queue] = reset_to
                self._ended[queue] = place.resets
            else:
                moved[queue] = target
        if followed:
            cluster.commit(group, followed)
        if moved:
            _log.warning("group %s was reset: the next batch begins at %s", group, moved)
        return moved

    def _is_recorded(self, queue: Queue, place: QueuePosition, target: int) -> bool:
        """Returns whether the checkpoint has a batch for this reset, and not for an earlier one."""
        return place.resets > 0 and place.begins == target and self._ended.get(queue) != place.resets
