"""Purges topics: moves the place at which each queue starts for readers."""

from __future__ import annotations

import logging

from metaq.broker.state.queue_starts import QueueStarts
from metaq.broker.state.topics import Topics
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.purge import PurgeTopic, QueuePlaces
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log

_log = logging.getLogger(__name__)


class PurgeRequests:
    """Answers of a master."""

    def __init__(self, topics: Topics, starts: QueueStarts) -> None:
        self._topics = topics
        self._starts = starts

    @handles(PurgeTopic)
    async def purge_topic(self, command: PurgeTopic, request: Request) -> Response:
        self._topics.check_changeable(command.topic)
        config = self._topics.get(command.topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {command.topic} does not exist")
        places = QueuePlaces.decode(request.body).places
        queues = max(config.read_queue_nums, config.write_queue_nums)
        for queue_id, queue_offset in places.items():
            if not 0 <= queue_id < queues or queue_offset < 0:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {command.topic} has no queue {queue_id} with offset {queue_offset}: "
                    f"it has {queues} queues",
                )
        moved = (await self._starts.advance({command.topic: places})).get(command.topic, {})
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "topic %s purged by %s: %d queues start later now",
            command.topic,
            request.remote,
            len(moved),
        )
        return Response(body=QueuePlaces(moved).encode())
