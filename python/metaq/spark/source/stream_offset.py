"""The offset of a stream, as Spark stores it in the checkpoint.

    {"metaq": 1, "queues": {"orders": {"broker-a": {"0": [120, 48211], "1": [118, 47603]}}}}

Each queue has the offset of the next message and the physical offset of the message before it: a topic that
was deleted and created again has other messages at the same offsets. A third number is the offset at which
the batch began, if that is not the end of the batch before: messages were lost, or the group was reset. After
a reset, a fourth number counts the resets, so that a second reset to the same offset is another batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.client.session.routes import Queue
from metaq.spark.errors import WrongCheckpoint
from metaq.spark.source.offsets import OFFSET_MAX, nested

VERSION: Final = 1
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """How far one queue was read."""

    queue_offset: int
    physical_offset: int = UNKNOWN
    """The physical offset of the message before; −1 if there is none."""
    begins: int | None = None
    """The offset at which this batch began, if it is not the end of the one before."""
    resets: int = 0
    """How many batches in a row began where the group was reset to, up to this one."""

    def dump(self) -> list[int]:
        place = [self.queue_offset, self.physical_offset]
        if self.begins is None:
            return place
        return [*place, self.begins, self.resets] if self.resets else [*place, self.begins]


StreamOffset = Mapping[Queue, QueuePosition]


def dump(places: StreamOffset) -> dict[str, Any]:
    return {"metaq": VERSION, "queues": nested({queue: place.dump() for queue, place in places.items()})}


def load(stored: Mapping[str, Any]) -> dict[Queue, QueuePosition]:
    """Reads an offset. Raises WrongCheckpoint if this source has not written it."""
    if stored.get("metaq") != VERSION:
        raise WrongCheckpoint(
            f"the checkpoint has offsets of another source or version: {str(stored)[:200]}",
            hint="give the query another checkpointLocation",
        )
    try:
        return {
            Queue(topic, broker, int(number)): _place(place)
            for topic, brokers in stored["queues"].items()
            for broker, queues in brokers.items()
            for number, place in queues.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise WrongCheckpoint(
            f"the offsets in the checkpoint cannot be read: {error!r}",
            hint="give the query another checkpointLocation",
        ) from None


def _place(place: Any) -> QueuePosition:
    if not isinstance(place, list) or len(place) not in (2, 3, 4):
        raise ValueError(f"{place!r} is not a place in a queue")
    for number in place:
        if type(number) is not int or not -1 <= number <= OFFSET_MAX:
            raise ValueError(f"{number!r} is not an offset")
    return QueuePosition(*place)
