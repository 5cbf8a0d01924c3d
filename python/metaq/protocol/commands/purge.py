"""Purges: readers no longer get messages, although the log still has them. RocketMQ has no such request."""

from __future__ import annotations

from typing import Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import FewEntries, Int32, Int64, Name


class QueuePlaces(msgspec.Struct, frozen=True):
    """Queue id → queue offset."""

    places: FewEntries[Int32, Int64]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)


class PurgeTopic(
    Command,
    code=30_352,
    permission="admin",
    resources={"topic": "topic"},
    answer_max=AnswerMax(),
    ends_with_connection=False,
):
    """Body: QueuePlaces, the first queue offset that stays in each queue. Body of the answer: QueuePlaces
    with the queues that start later now."""

    topic: Name
