"""Topics, as administrators and tools see them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from metaq._core import BrokerPlane, Store
from metaq.broker.requests.consumption import LINE_BYTES
from metaq.broker.requests.paging import attributes_bytes, page_of
from metaq.broker.requests.spaced_work import in_turns, letting_others_run
from metaq.broker.state.attributes import parsed
from metaq.broker.state.groups import Groups, check_dead_letters
from metaq.broker.state.offset_removal import remove_offsets_of_topic
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import (
    TopicConfig,
    TopicConfigList,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.topics import (
    CleanUnusedTopic,
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    TopicPage,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.java_json import MessageQueue
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

LIST_MAX = 10_000
CONFIG_BYTES = 160
"""About the size of a topic in a table, without its name and attributes."""
LOGGED_MAX = 16


class TopicRequests:
    """Creates, changes, deletes and describes topics."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        store: Store,
        plane: BrokerPlane,
        broker_name: str,
        address: str,
        pools: WorkPools,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._store = store
        self._plane = plane
        self._broker_name = broker_name
        self._address = address
        self._pools = pools

    @handles(UpdateAndCreateTopic)
    async def update_and_create_topic(self, command: UpdateAndCreateTopic, request: Request) -> None:
        wanted = TopicConfig(
            topic_name=command.topic,
            read_queue_nums=command.read_queue_nums,
            write_queue_nums=command.write_queue_nums,
            perm=command.perm,
            topic_filter_type=command.topic_filter_type,
            topic_sys_flag=command.topic_sys_flag,
            order=command.order,
        )
        self._check(command.topic)
        if self._topics.update(wanted, parsed(command.attributes)):
            peer_log.write(
                _log,
                logging.INFO,
                request.remote,
                "topic %s created or changed by %s",
                command.topic,
                request.remote,
            )
        await self._topics.publish([command.topic])

    @handles(UpdateAndCreateTopicList)
    async def update_and_create_topic_list(self, command: UpdateAndCreateTopicList, request: Request) -> None:
        wanted = await self._apart(request, lambda: TopicConfigList.decode(request.body).topic_config_list)
        if len(wanted) > LIST_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"{len(wanted)} topics in one list, the limit is {LIST_MAX}"
            )
        # A topic that is repeated counts once, as the list says last.
        wanted = list({config.topic_name: config for config in wanted}.values())
        async for part in in_turns(wanted):
            for config in part:
                self._check(config.topic_name)
        await self._topics.update_all(wanted)
        peer_log.write(
            _log,
            logging.INFO,
            request.remote,
            "%d topics created or changed by %s",
            len(wanted),
            request.remote,
        )
        await self._topics.publish([config.topic_name for config in wanted])

    async def _apart(self, request: Request, work: Callable[[], _T]) -> _T:
        return await self._pools.administration.run(request, work)

    async def _delete(self, topic: str, request: Request) -> None:
        await self._apart(request, lambda: self._store.delete_topic(topic))

    def _check(self, topic: str) -> None:
        self._topics.check_changeable(topic)
        if topic not in self._topics:
            check_dead_letters(topic, self._groups)

    @handles(DeleteTopicInBroker)
    async def delete_topic_in_broker(self, command: DeleteTopicInBroker, request: Request) -> None:
        self._topics.check_changeable(command.topic)
        doomed = await self._apart(request, lambda: [command.topic, *self._retry_topics(command.topic)])
        for topic in doomed:
            await self._apart(request, partial(remove_offsets_of_topic, self._plane, topic))
            self._topics.remove(topic)
            self._plane.remove_topic(topic)
            # Only those that were committed meanwhile.
            self._plane.remove_offsets(topic=topic)
            await self._delete(topic, request)
        peer_log.write(
            _log, logging.INFO, request.remote, "topic %s deleted by %s", command.topic, request.remote
        )
        await self._topics.publish(doomed)

    def _retry_topics(self, topic: str) -> Iterator[str]:
        """A group that pops keeps one retry topic per topic, under either of two spellings."""
        for group in letting_others_run(self._plane.groups_of_topic(topic)):
            for joint in ("_", "+"):
                retry_topic = f"{names.RETRY_PREFIX}{group}{joint}{topic}"
                if retry_topic in self._topics:
                    yield retry_topic

    @handles(CleanUnusedTopic)
    async def clean_unused_topic(self, command: CleanUnusedTopic, request: Request) -> None:
        stored = await self._apart(request, self._store.topics)
        unused = [topic for topic in stored if topic not in self._topics]
        for topic in unused:
            if topic not in self._topics:  # It may have come back while another topic was deleted.
                await self._delete(topic, request)
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "queues of %d topics that are gone deleted by %s: %s",
            len(unused),
            request.remote,
            unused[:LOGGED_MAX],
        )

    @handles(GetAllTopicConfig)
    async def get_all_topic_config(self, command: GetAllTopicConfig, request: Request) -> Response:
        table = self._topics.table()
        # A copy, because the table changes on the event loop.
        configs = table.topic_config_table = dict(table.topic_config_table)

        def collect() -> bytes:
            answer = BoundedAnswer(GetAllTopicConfig)
            if command.topic_seq is not None or command.max_topic_num is not None:
                page = page_of(
                    configs,
                    first=command.topic_seq,
                    count=command.max_topic_num,
                    version=table.data_version,
                    version_seen=command.data_version,
                )
                table.topic_config_table = {name: configs[name] for name in page}
            for name, config in table.topic_config_table.items():
                answer.add(CONFIG_BYTES + len(name) + attributes_bytes(config.attributes))
            return answer.encoded(table)

        body = await self._pools.look_ups.run(request, collect)
        return Response(fields=TopicPage(total_topic_num=len(configs)), body=body)

    @handles(GetTopicConfig)
    def get_topic_config(self, command: GetTopicConfig, request: Request) -> Response:
        return Response(body=self._existing(command.topic).encode())

    @handles(GetSystemTopicListFromBroker)
    def get_system_topic_list_from_broker(
        self, command: GetSystemTopicListFromBroker, request: Request
    ) -> Response:
        topics = TopicList(broker_addr=self._address, topic_list=self._topics.system_names())
        return Response(body=topics.encode())

    @handles(GetTopicStatsInfo)
    async def get_topic_stats_info(self, command: GetTopicStatsInfo, request: Request) -> Response:
        config = self._existing(command.topic)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        body = await self._pools.look_ups.run(request, lambda: self._queue_offsets(command.topic, queues))
        return Response(body=body)

    def _queue_offsets(self, topic: str, queues: int) -> bytes:
        answer, table = BoundedAnswer(GetTopicStatsInfo), TopicStatsTable()
        answer.add(queues * (LINE_BYTES + len(topic) + len(self._broker_name)), lines=queues)
        for queue_id in answer.stepwise(range(queues)):
            max_offset = self._store.max_offset(topic, queue_id)
            stored_ms = self._store.store_time_ms(topic, queue_id, max_offset - 1) if max_offset > 0 else 0
            queue = MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)
            table.offset_table[queue] = TopicOffset(
                min_offset=self._store.min_offset(topic, queue_id),
                max_offset=max_offset,
                last_update_timestamp=max(stored_ms, 0),
            )
        return answer.encoded(table)

    def _existing(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic[:128]} does not exist on this broker")
        return config
