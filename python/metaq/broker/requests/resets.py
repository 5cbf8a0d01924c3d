"""Resets of a group: back in time, past its backlog, or to the offsets of another group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from metaq._core import BrokerPlane, Store
from metaq.broker.requests.consumption import LINE_BYTES
from metaq.broker.state.broker_own import check_group, check_topic
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup
from metaq.broker.state.groups import Groups, missing_group
from metaq.broker.state.offsets import Offsets
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.stats import Statistics
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import ListedOffset, ResetOffsetBody, ResetOffsetList, TopicConfig
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import ResetConsumerClientOffset
from metaq.protocol.commands.offsets import CloneGroupOffset, ResetConsumerOffset
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

LOGGED_MAX = 16
"""Queues whose new offsets are in a log line."""
NOTICE_BYTES = 512
"""About the size of a notice to a consumer, without its queues."""
SENT_AT_ONCE_BYTES = 256 * 1024
"""Bytes of notices that are sent before other requests have their turn."""
CPP = 1
"""The number of that language in a header."""
UNDERSTOOD_SINCE = 29
"""Clients before 3.0.7 do not know what a reset is."""

Tell = Callable[[int, Command, bytes], object]
"""Sends a client a command that it does not answer."""


@dataclass(frozen=True, slots=True)
class ResetParts:
    """The parts that a reset reads and changes."""

    plane: BrokerPlane
    store: Store
    topics: Topics
    groups: Groups
    clients: Clients
    offsets: Offsets
    statistics: Statistics
    switches: Switches
    broker_name: str
    notices_bytes_max: int
    """For all consumers that one reset tells of it."""
    tell: Tell
    pools: WorkPools


class Resets:
    """Resets and copies committed offsets of groups, running or not."""

    def __init__(self, parts: ResetParts) -> None:
        self._parts = parts

    @handles(ResetConsumerOffset)
    async def reset_consumer_offset(self, command: ResetConsumerOffset, request: Request) -> Response:
        check_group(command.group)
        check_topic(command.topic)
        topic = self._parts.topics.get(command.topic)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {command.topic[:128]} does not exist on this broker"
            )
        if self._parts.groups.get(command.group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.group))
        wanted = await self._parts.pools.look_ups.run(request, lambda: self._wanted(command, topic))
        live = self._parts.clients.consumer_group(command.group)
        # Consumers in broadcast mode keep their own offsets, so the broker can only notify them.
        if not self._parts.switches.server_side_reset or (live is not None and live.broadcasting):
            await self._tell(command, request, live, wanted)
        else:
            await self._put(request, command.group, {command.topic: wanted})
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "group %s on topic %s reset by %s: %s",
            command.group,
            command.topic,
            request.remote,
            wanted if len(wanted) <= LOGGED_MAX else f"{len(wanted)} queues",
        )
        body = await self._parts.pools.look_ups.run(
            request,
            lambda: BoundedAnswer(ResetConsumerOffset).encoded(
                ResetOffsetBody(offset_table=self._by_queue(command.topic, wanted))
            ),
        )
        return Response(body=body)

    def _wanted(self, command: ResetConsumerOffset, topic: TopicConfig) -> dict[int, int]:
        """Queue → the offset to continue from."""
        queue_id = -1 if command.queue_id is None else command.queue_id
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        if queue_id >= queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} is outside topic {command.topic}, which has {queues} queues",
            )
        if queue_id >= 0 and command.queue_offset not in (None, -1):
            return {queue_id: self._within(command.topic, queue_id, command.queue_offset or 0)}
        chosen = range(topic.read_queue_nums) if queue_id < 0 else (queue_id,)
        answer = BoundedAnswer(ResetConsumerOffset)
        # Counted before anything is reset: whatever is done can be answered.
        answer.add(len(chosen) * self._line_bytes(command.topic), lines=len(chosen))
        committed = self._parts.plane.offsets_of(command.group, command.topic)
        wanted: dict[int, int] = {}
        for queue in answer.stepwise(chosen):
            found = self._at(command.topic, queue, command.timestamp)
            # Without force a group only ever moves back: it skips nothing that it has not read.
            wanted[queue] = found if command.is_force else min(found, committed.get(queue, found))
        return wanted

    def _at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return self._parts.store.max_offset(topic, queue_id)
        return self._parts.store.search_offset(topic, queue_id, timestamp_ms)

    def _within(self, topic: str, queue_id: int, queue_offset: int) -> int:
        first = self._parts.store.min_offset(topic, queue_id)
        end = self._parts.store.max_offset(topic, queue_id)
        if not first <= queue_offset <= end:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"queue offset {queue_offset} is not between {first} and {end}, "
                f"which is what queue {queue_id} of topic {topic} holds",
            )
        return queue_offset

    async def _put(self, request: Request, group: str, wanted: dict[str, dict[int, int]]) -> None:
        """Resets a group in some topics, and writes that down once."""

        def reset() -> None:
            # On the only thread of this pool, so no other reset takes the room in between.
            self._parts.offsets.check_room(group, wanted)
            for topic, queues in wanted.items():
                for queue_id, queue_offset in queues.items():
                    self._parts.plane.reset_offset(group, topic, queue_id, queue_offset)

        await self._parts.pools.administration.run(request, reset)
        for topic, queues in wanted.items():
            self._parts.statistics.moved(topic, group, queues)
        # The answer promises that the reset survives a crash.
        await self._parts.offsets.persist()

    async def _tell(
        self,
        command: ResetConsumerOffset,
        request: Request,
        live: ConsumerGroup | None,
        wanted: dict[int, int],
    ) -> None:
        members = [] if live is None else live.present()
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {command.group} is connected, so none can follow a reset",
            )
        for member in members:
            if member.version < UNDERSTOOD_SINCE:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"client {member.client_id} is too old to follow a reset: update it",
                )
        self._check_notices(command, len(members), len(wanted))
        order = ResetConsumerClientOffset(
            topic=command.topic, group=command.group, timestamp=command.timestamp, is_force=command.is_force
        )

        def encode() -> tuple[bytes, bytes]:
            by_queue = self._by_queue(command.topic, wanted)
            return as_map(by_queue), as_list(by_queue)

        # Encoded once, however many members there are.
        mapped, listed = await self._parts.pools.look_ups.run(request, encode)
        sent_bytes = 0
        for member in members:
            body = listed if CPP in (request.language, member.language) else mapped
            self._parts.tell(member.connection, order, body)
            sent_bytes += NOTICE_BYTES + len(body)
            if sent_bytes > SENT_AT_ONCE_BYTES:
                sent_bytes = 0
                await asyncio.sleep(0)

    def _check_notices(self, command: ResetConsumerOffset, members: int, queues: int) -> None:
        """Raises Refused if the reset would send too much to these members."""
        limit = self._parts.notices_bytes_max
        size_bytes = members * (NOTICE_BYTES + queues * self._line_bytes(command.topic))
        if size_bytes > limit:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"a reset of {queues} queues would send about {size_bytes} bytes to {members} consumers of "
                f"group {command.group}, the limit is {limit} (reset_notices_bytes_max): reset one queue at "
                "a time, or when fewer consumers run",
            )

    def _line_bytes(self, topic: str) -> int:
        return LINE_BYTES + len(topic) + len(self._parts.broker_name)

    def _by_queue(self, topic: str, wanted: dict[int, int]) -> dict[MessageQueue, int]:
        name = self._parts.broker_name
        return {MessageQueue(name, queue_id, topic): place for queue_id, place in wanted.items()}

    @handles(CloneGroupOffset)
    async def clone_group_offset(self, command: CloneGroupOffset, request: Request) -> None:
        check_group(command.src_group)
        check_group(command.dest_group)
        if command.topic:
            check_topic(command.topic)
        fault = names.group_fault(command.dest_group)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        if self._parts.groups.find_or_create(command.dest_group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.dest_group))
        await self._parts.groups.publish([command.dest_group])
        source = self._parts.clients.consumer_group(command.src_group)
        subscribed = None if source is None or command.offline else frozenset(source.subscriptions)
        wanted = await self._parts.pools.look_ups.run(request, lambda: self._copied(command, subscribed))
        await self._put(request, command.dest_group, wanted)
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "offsets of group %s copied to %s by %s",
            command.src_group,
            command.dest_group,
            request.remote,
        )

    def _copied(
        self, command: CloneGroupOffset, subscribed: frozenset[str] | None
    ) -> dict[str, dict[int, int]]:
        """Topic → queue → offset, of the topics to copy."""
        plane, answer = self._parts.plane, BoundedAnswer(CloneGroupOffset)
        topics = [command.topic] if command.topic else plane.topics_of_group(command.src_group)
        wanted: dict[str, dict[int, int]] = {}
        for topic in answer.stepwise(topics):
            # A live group does not consume a topic that it no longer subscribes to.
            if topic not in self._parts.topics or (subscribed and topic not in subscribed):
                continue
            queues = wanted[topic] = plane.offsets_of(command.src_group, topic)
            answer.add(lines=len(queues))
        return wanted


def as_map(by_queue: dict[MessageQueue, int]) -> bytes:
    """The body that all clients read, except for those in C++."""
    return ResetOffsetBody(offset_table=by_queue).encode()


def as_list(by_queue: dict[MessageQueue, int]) -> bytes:
    listed = [
        ListedOffset(queue.broker_name, queue_offset, queue.queue_id, queue.topic)
        for queue, queue_offset in by_queue.items()
    ]
    return ResetOffsetList(offset_table=listed).encode()
