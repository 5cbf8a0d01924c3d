"""The progress of consumer groups: who consumes what, and how far behind, in messages and in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from metaq._core import BrokerPlane, Clock, Store
from metaq.broker.state.broker_own import check_topic
from metaq.broker.state.clients import Clients
from metaq.broker.state.groups import Groups
from metaq.broker.state.policy import wanted_tag_codes
from metaq.broker.state.stats import GROUP_GET, Statistics
from metaq.broker.state.topics import Topics
from metaq.protocol.bodies import (
    ConsumeQueueLine,
    ConsumeQueueLines,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    OffsetWrapper,
    QueueTimeSpan,
    SubscriptionAnswer,
    SubscriptionData,
    TopicConfig,
    TopicList,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.groups import (
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from metaq.protocol.commands.messages import MeasureQueue, QueryConsumeQueue, QueueMeasured
from metaq.protocol.commands.offsets import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer, listed_once
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools

_T = TypeVar("_T")

LINES_MAX = 1_000
LINE_BYTES = 160
"""About the size of a line about a queue, without the names of topic and broker."""
NAME_BYTES = 32
"""About the size of a name in a list."""
NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConsumptionParts:
    """The parts that are read; none of them is changed."""

    broker_name: str
    clock: Clock
    plane: BrokerPlane
    store: Store
    topics: Topics
    groups: Groups
    clients: Clients
    statistics: Statistics
    address: str
    pools: WorkPools


class Consumption:
    """Answers about the groups of this broker."""

    def __init__(self, parts: ConsumptionParts) -> None:
        self._parts = parts
        # A log may begin with records of an Apache broker, whose clock may have been set back. Those that a
        # master of MetaQ appends are in order.
        self._ordered_since_ms = parts.clock.now_ms()

    @handles(QueryTopicConsumeByWho)
    async def query_topic_consume_by_who(self, command: QueryTopicConsumeByWho, request: Request) -> Response:
        def collect() -> bytes:
            answer = BoundedAnswer(QueryTopicConsumeByWho)
            subscribing = self._parts.clients.groups_subscribing(command.topic)
            groups = {*self._parts.plane.groups_of_topic(command.topic), *subscribing}
            return answer.encoded(GroupList(group_list=sorted(answer.counted(groups, NAME_BYTES))))

        return Response(body=await self._look_up(request, collect))

    @handles(QueryTopicsByConsumer)
    async def query_topics_by_consumer(self, command: QueryTopicsByConsumer, request: Request) -> Response:
        def collect() -> bytes:
            answer = BoundedAnswer(QueryTopicsByConsumer)
            topics = list(answer.counted(self._parts.plane.topics_of_group(command.group), NAME_BYTES))
            return answer.encoded(TopicList(broker_addr=self._parts.address, topic_list=topics))

        return Response(body=await self._look_up(request, collect))

    @handles(QuerySubscriptionByConsumer)
    def query_subscription_by_consumer(
        self, command: QuerySubscriptionByConsumer, request: Request
    ) -> Response:
        answer = SubscriptionAnswer(
            group=command.group,
            topic=command.topic,
            subscription_data=self._subscription(command.group, command.topic),
        )
        return Response(body=answer.encode())

    def _subscription(self, group: str, topic: str) -> SubscriptionData | None:
        live = self._parts.clients.consumer_group(group)
        return live.subscriptions.get(topic) if live is not None else None

    async def _look_up(self, request: Request, work: Callable[[], _T]) -> _T:
        return await self._parts.pools.look_ups.run(request, work)

    # Backlog in messages

    @handles(GetConsumeStats)
    async def get_consume_stats(self, command: GetConsumeStats, request: Request) -> Response:
        return Response(body=await self._look_up(request, lambda: self._consume_stats(command)))

    def _consume_stats(self, command: GetConsumeStats) -> bytes:
        answer, stats = BoundedAnswer(GetConsumeStats), ConsumeStats()
        for name in answer.stepwise(self._topics_asked(command)):
            topic = self._parts.topics.get(name)
            if topic is not None:
                self._add_queues(answer, stats, topic, topic.read_queue_nums, command.consumer_group)
        return answer.encoded(stats)

    def _topics_asked(self, command: GetConsumeStats) -> list[str]:
        if command.topic_list:
            return listed_once(command.topic_list, ";")
        group = command.consumer_group
        topics = [command.topic] if command.topic else self._parts.plane.topics_of_group(group)
        return self._not_given_up(group, topics)

    def _not_given_up(self, group: str, topics: list[str]) -> list[str]:
        live = self._parts.clients.consumer_group(group)
        if live is not None and live.subscriptions:
            # A topic that a live group no longer subscribes to is not backlog.
            return [name for name in topics if name in live.subscriptions]
        return topics

    def _add_queues(
        self, answer: BoundedAnswer, stats: ConsumeStats, topic: TopicConfig, queues: int, group: str
    ) -> None:
        name = topic.topic_name
        answer.add(queues * self._queue_bytes(name), lines=queues)
        committed = self._parts.plane.offsets_of(group, name)
        for queue_id in answer.stepwise(range(queues)):
            committed_offset = committed.get(queue_id, 0)
            stored_ms = 0
            if committed_offset > 0:
                stored_ms = self._parts.store.store_time_ms(name, queue_id, committed_offset - 1)
            # Messages that were deleted or purged are not read any more.
            place = max(committed_offset, self._parts.store.min_offset(name, queue_id))
            stats.offset_table[self._queue(name, queue_id)] = OffsetWrapper(
                broker_offset=self._parts.store.max_offset(name, queue_id),
                consumer_offset=place,
                pull_offset=place,
                last_timestamp=max(stored_ms, 0),
            )
        stats.consume_tps += self._parts.statistics.per_second(GROUP_GET, f"{name}@{group}")

    def _queue_bytes(self, topic: str) -> int:
        """About the size of one queue in an answer."""
        return LINE_BYTES + len(topic) + len(self._parts.broker_name)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(self._parts.broker_name, queue_id, topic)

    @handles(GetBrokerConsumeStats)
    async def get_broker_consume_stats(self, command: GetBrokerConsumeStats, request: Request) -> Response:
        return Response(
            body=await self._look_up(request, lambda: self._broker_consume_stats(command.is_order))
        )

    def _broker_consume_stats(self, only_ordered: bool) -> bytes:
        answer = BoundedAnswer(GetBrokerConsumeStats)
        everything = ConsumeStatsList(broker_addr=self._parts.address)
        for config in answer.counted(self._parts.groups, NAME_BYTES):
            group = config.group_name
            of_group: list[ConsumeStats] = []
            for name in self._not_given_up(group, self._parts.plane.topics_of_group(group)):
                topic = self._parts.topics.get(name)
                if topic is None or (only_ordered and not topic.order):
                    continue
                stats = ConsumeStats()
                self._add_queues(answer, stats, topic, topic.write_queue_nums, group)
                places = stats.offset_table.values()
                everything.total_diff += sum(place.broker_offset - place.consumer_offset for place in places)
                everything.total_inflight_diff += sum(
                    place.pull_offset - place.consumer_offset for place in places
                )
                of_group.append(stats)
            everything.consume_stats_list.append({group: of_group})
        return answer.encoded(everything)

    # Backlog in time

    @handles(QueryConsumeTimeSpan)
    async def query_consume_time_span(self, command: QueryConsumeTimeSpan, request: Request) -> Response:
        topic = self._existing(command.topic)
        return Response(body=await self._look_up(request, lambda: self._time_spans(topic, command.group)))

    def _time_spans(self, topic: TopicConfig, group: str) -> bytes:
        store, name = self._parts.store, topic.topic_name
        answer = BoundedAnswer(QueryConsumeTimeSpan)
        answer.add(topic.write_queue_nums * self._queue_bytes(name), lines=topic.write_queue_nums)
        committed = self._parts.plane.offsets_of(group, name)
        spans = []
        for queue_id in answer.stepwise(range(topic.write_queue_nums)):
            end = store.max_offset(name, queue_id)
            first_ms = store.store_time_ms(name, queue_id, store.min_offset(name, queue_id))
            place = committed.get(queue_id, 0)
            span = QueueTimeSpan(
                message_queue=self._queue(name, queue_id),
                min_time_stamp=first_ms,
                max_time_stamp=store.store_time_ms(name, queue_id, end - 1),
                consume_time_stamp=store.store_time_ms(name, queue_id, place - 1) if place > 0 else first_ms,
            )
            next_ms = store.store_time_ms(name, queue_id, place) if place < end else -1
            if next_ms >= 0:
                span.delay_time = max(self._parts.clock.now_ms() - next_ms, 0)
            spans.append(span)
        return answer.encoded(ConsumeTimeSpans(consume_time_span_set=spans))

    @handles(QueryCorrectionOffset)
    async def query_correction_offset(self, command: QueryCorrectionOffset, request: Request) -> Response:
        return Response(body=await self._look_up(request, lambda: self._lowest(command)))

    def _lowest(self, command: QueryCorrectionOffset) -> bytes:
        plane, answer = self._parts.plane, BoundedAnswer(QueryCorrectionOffset)
        left_out = frozenset(listed_once(command.filter_groups or "", ","))
        lowest: dict[int, int] = {}
        for group in answer.stepwise(plane.groups_of_topic(command.topic)):
            if group in left_out or self._parts.groups.get(group) is None:
                continue
            places = plane.offsets_of(group, command.topic)
            # All of them are looked at, but only the lowest ones are in the answer.
            answer.add(lines=len(places))
            for queue_id, place in answer.stepwise(places.items()):
                lowest[queue_id] = min(place, lowest.get(queue_id, place))
        for queue_id, place in plane.offsets_of(command.compare_group, command.topic).items():
            if lowest.get(queue_id, NEVER) > place:
                lowest[queue_id] = NEVER
        return answer.encoded(CorrectionOffsets(correction_offsets=lowest))

    # The queue itself

    @handles(QueryConsumeQueue)
    async def query_consume_queue(self, command: QueryConsumeQueue, request: Request) -> Response:
        topic = self._readable(command.topic)
        if not 0 <= command.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic {command.topic} has no queue {command.queue_id}")
        return Response(body=await self._look_up(request, lambda: self._lines(command)))

    @handles(MeasureQueue)
    async def measure_queue(self, command: MeasureQueue, request: Request) -> Response:
        topic = self._readable(command.topic)
        if not 0 <= command.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"topic {command.topic} has no queue {command.queue_id}"
            )
        return Response(fields=await self._look_up(request, lambda: self._measure(command)))

    def _measure(self, command: MeasureQueue) -> QueueMeasured:
        store = self._parts.store
        end, size_bytes, before, last = store.measure(
            command.topic,
            command.queue_id,
            command.queue_offset,
            command.end_offset,
            max(command.size_bytes_max, 0),
        )
        stored_ms = store.store_time_ms(command.topic, command.queue_id, end)
        return QueueMeasured(
            end_offset=end,
            size_bytes=size_bytes,
            before_physical_offset=-1 if before is None else before,
            last_physical_offset=-1 if last is None else last,
            delay_ms=max(self._parts.clock.now_ms() - stored_ms, 0) if stored_ms >= 0 else 0,
            ordered_since_ms=self._ordered_since_ms,
        )

    def _lines(self, command: QueryConsumeQueue) -> bytes:
        answer, store = BoundedAnswer(QueryConsumeQueue), self._parts.store
        lines = ConsumeQueueLines(
            min_queue_index=store.min_offset(command.topic, command.queue_id),
            max_queue_index=store.max_offset(command.topic, command.queue_id),
        )
        wanted_tags: Mapping[int, None] | None = None
        if command.consumer_group:
            lines.subscription_data = self._subscription(command.consumer_group, command.topic)
            if lines.subscription_data is None:
                lines.filter_data = f"{command.consumer_group}@{command.topic} is not online"
            else:
                wanted_tags = dict.fromkeys(wanted_tag_codes(lines.subscription_data))
        count = min(max(command.count, 0), LINES_MAX)
        entries = store.queue_entries(command.topic, command.queue_id, max(command.queue_offset, 0), count)
        for physical_offset, size, tag_code in answer.counted(entries, LINE_BYTES):
            is_wanted = wanted_tags is not None and (not wanted_tags or tag_code in wanted_tags)
            lines.queue_data.append(
                ConsumeQueueLine(
                    physic_offset=physical_offset, physic_size=size, tags_code=tag_code, eval=is_wanted
                )
            )
        return answer.encoded(lines)

    def _readable(self, name: str) -> TopicConfig:
        check_topic(name)
        return self._existing(name)

    def _existing(self, name: str) -> TopicConfig:
        topic = self._parts.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:128]} does not exist on this broker")
        return topic
