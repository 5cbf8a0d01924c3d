"""Offsets that were committed on a replica while its group had no master go to the next master."""

from __future__ import annotations

import logging

from metaq.errors import MetaqError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.groups import GetSubscriptionGroupConfig
from metaq.protocol.commands.offsets import QueryConsumerOffset, QueueOffset, UpdateConsumerOffset
from metaq.protocol.errors import Refused
from metaq.remoting import Connection

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0

Place = tuple[str, str, int]
"""Group, topic and queue."""


class OffsetMerge:
    """The offsets that a replica keeps for its master. They only ever move a master's offset forward."""

    def __init__(self) -> None:
        self._kept: dict[Place, int] = {}
        self._complaint = ""

    def keep(self, offsets: list[tuple[str, str, int, int]]) -> None:
        """Notes offsets that were committed here: (group, topic, queue, offset)."""
        for group, topic, queue_id, committed_offset in offsets:
            place = (group, topic, queue_id)
            self._kept[place] = max(committed_offset, self._kept.get(place, 0))

    def take(self) -> list[tuple[str, str, int, int]]:
        """Returns everything and keeps nothing: this node has become the master."""
        kept, self._kept = self._kept, {}
        return [(*place, committed_offset) for place, committed_offset in kept.items()]

    def __bool__(self) -> bool:
        return bool(self._kept)

    async def send(self, master_address: str) -> None:
        """Commits everything at the master. What cannot be committed now is kept for the next call."""
        try:
            connection = await Connection.open(master_address, CALL_TIMEOUT_S)
        except (MetaqError, OSError) as error:
            self._complain(str(error))
            return
        try:
            for place, committed_offset in list(self._kept.items()):
                try:
                    await _raise_to(connection, place, committed_offset)
                except Refused as refused:
                    if refused.retriable:
                        raise
                    # The master knows better which queues exist, and how long they are.
                    _log.warning("the master refused an offset that was committed here: %s", refused)
                del self._kept[place]
            self._complaint = ""
        except MetaqError as error:
            self._complain(str(error))
        finally:
            await connection.close()

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("offsets committed here are not at the master yet: %s", complaint)


async def _raise_to(connection: Connection, place: Place, committed_offset: int) -> None:
    group, topic, queue_id = place
    # The group may have begun here. This request creates it, as a consumer would.
    (await connection.call(GetSubscriptionGroupConfig(group=group), b"", CALL_TIMEOUT_S)).check()
    query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
    reply = await connection.call(query, b"", CALL_TIMEOUT_S)
    if reply.code != ResponseCode.QUERY_NOT_FOUND:
        known = reply.check().header(QueueOffset).queue_offset
        if known >= committed_offset:
            return
    update = UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=committed_offset
    )
    (await connection.call(update, b"", CALL_TIMEOUT_S)).check()
