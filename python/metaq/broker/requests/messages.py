"""Hot requests that the data plane could not answer alone, and searches for single messages."""

from __future__ import annotations

import asyncio
import logging

from metaq._core import BrokerPlane, Store, StoreFailure
from metaq.broker.background.subscription_inquiry import Inquiry
from metaq.broker.functions.call import Call
from metaq.broker.requests.send_back import ensure_dead_letters
from metaq.broker.state.broker_own import check_topic, check_viewable_topic, viewable_record
from metaq.broker.state.filters import Filters, carried_key
from metaq.broker.state.groups import Groups, check_dead_letters, missing_group
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import (
    QUERY_COUNT_MAX,
    LitePullMessage,
    MessagesFound,
    PullMessage,
    QueryMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    ViewMessageById,
)
from metaq.protocol.commands.offsets import GetEarliestMessageStoreTime, StoreTime
from metaq.protocol.dispatch import RESPONDED, Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

SUBSCRIPTION_GIVEN = 4
"""The bit of a pull's system flag that says: this pull carries its filter."""
UNIQUE_KEY_COUNT = 32
"""A unique key is unique up to resends and retries of the same message."""
KEY_CHARACTERS_MAX = 32_767
VIEWS_MAX = 4
"""Messages that are read for VIEW_MESSAGE at the same time."""


class Messages:
    """Creates topics and groups on first use, if that is allowed, and finds single messages."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        store: Store,
        plane: BrokerPlane,
        filters: Filters,
        inquiry: Inquiry,
        pools: WorkPools,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._store = store
        self._plane = plane
        self._filters = filters
        self._inquiry = inquiry
        self._pools = pools
        self._views = asyncio.Semaphore(VIEWS_MAX)

    @handles(SendMessage, SendMessageV2, SendBatchMessage)
    async def send_message(self, command: SendMessage | SendMessageV2, request: Request) -> Response:
        """Crosses only for a topic that the data plane does not know, such as the dead letters of a group
        whose client has tried a message too often."""
        if command.topic not in self._topics:
            await self._make_topic(command, request)
        await self._topics.publish([command.topic])
        if command.topic.startswith(names.RETRY_PREFIX):
            await self._make_dead_letter_topic(command)
        request.retry()
        return RESPONDED

    async def _make_topic(self, command: SendMessage | SendMessageV2, request: Request) -> None:
        topic = command.topic
        fault = names.topic_fault(topic)
        if fault is not None:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, fault)
        if not names.is_client_writable(topic):
            raise Refused(
                ResponseCode.NO_PERMISSION, f"topic {topic} is the system's own: no client may send to it"
            )
        if topic.startswith(names.RETRY_PREFIX):
            await self._make_retry_topic(topic.removeprefix(names.RETRY_PREFIX))
        else:
            check_dead_letters(topic, self._groups)
            self._topics.create_from_template(topic, command.default_topic, command.default_topic_queue_nums)
        peer_log.write(
            _log,
            logging.INFO,
            request.remote,
            "topic %s created because %s sent to it",
            topic,
            request.remote,
        )

    async def _make_retry_topic(self, group: str) -> None:
        config = self._groups.find_or_create(group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(group))
        await self._groups.publish([group])
        self._topics.ensure_retry_topic(group, max(config.retry_queue_nums, 1))

    async def _make_dead_letter_topic(self, command: SendMessage | SendMessageV2) -> None:
        group = command.topic.removeprefix(names.RETRY_PREFIX)
        if self._plane.retries_exhausted(group, command.reconsume_times, command.max_reconsume_times):
            await ensure_dead_letters(self._topics, group)

    @handles(PullMessage, LitePullMessage)
    async def pull_message(self, command: PullMessage, request: Request) -> Response:
        """Crosses only for a group that the data plane does not know, and for an expression that it does not
        know or that may have changed."""
        if command.sys_flag & SUBSCRIPTION_GIVEN:
            expression = command.subscription or ""
            expression_type = command.expression_type or ""
            compiled = await self._filters.compile_apart(request, expression_type, expression)
            if isinstance(compiled, Call):
                key = carried_key(expression_type, expression)
                self._plane.put_function(key, compiled.function, compiled.text)
            elif compiled is not None:
                self._plane.put_expression(expression, compiled)
        fault = names.group_fault(command.consumer_group)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        if self._groups.find_or_create(command.consumer_group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.consumer_group))
        try:
            await self._groups.publish([command.consumer_group])
        except OSError as error:
            # A full disk must not keep anybody from reading; the group is written once there is room again.
            _log.error("group %s is not on disk yet: %s", command.consumer_group, error)
        if not command.sys_flag & SUBSCRIPTION_GIVEN:
            await self._inquiry.ask(
                request.connection, command.consumer_group, command.topic, command.sub_version
            )
        request.retry()
        return RESPONDED

    @handles(ViewMessageById)
    async def view_message_by_id(self, command: ViewMessageById, request: Request) -> Response:
        # Answered before the next one is read: otherwise threads would read faster than answers can leave.
        async with self._views:
            record = await self._pools.look_ups.run(
                request, lambda: viewable_record(self._store, command.physical_offset)
            )
            if record is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"no message begins at physical offset {command.physical_offset}",
                )
            request.respond(body=record)
        return RESPONDED

    @handles(QueryMessage)
    async def query_message(self, command: QueryMessage, request: Request) -> Response:
        if len(command.key) > KEY_CHARACTERS_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the key has {len(command.key)} characters, the limit is {KEY_CHARACTERS_MAX}",
            )
        # Whoever knows the id of a message may look at it, also while it waits for its time.
        check = check_viewable_topic if command.unique_key else check_topic
        check(command.topic)
        count_max = UNIQUE_KEY_COUNT if command.unique_key else command.max_num

        def search() -> tuple[bytes, int, int, bool]:
            records, stored_ms, physical_offset, is_cut_short = self._store.query(
                command.topic,
                command.key,
                count_max=min(max(count_max, 1), QUERY_COUNT_MAX),
                begin_ms=command.begin_timestamp,
                end_ms=command.end_timestamp,
            )
            return b"".join(records), stored_ms, physical_offset, is_cut_short

        try:
            body, stored_ms, physical_offset, is_cut_short = await self._pools.look_ups.run(request, search)
        except StoreFailure as failure:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(failure)) from failure
        if not body:
            remark = "no message with that key was stored in that span of time"
            if is_cut_short:
                remark = (
                    "no such message among the newest with that key; the search ended at its limit "
                    "(query_entries_max)"
                )
            raise Refused(ResponseCode.QUERY_NOT_FOUND, remark)
        found = MessagesFound(
            index_last_update_timestamp=stored_ms, index_last_update_phyoffset=physical_offset
        )
        return Response(fields=found, body=body)

    @handles(GetEarliestMessageStoreTime)
    async def get_earliest_message_store_time(
        self, command: GetEarliestMessageStoreTime, request: Request
    ) -> Response:
        def read() -> int:
            # The oldest message may have to come from the disk.
            first = self._store.min_offset(command.topic, command.queue_id)
            return self._store.store_time_ms(command.topic, command.queue_id, first)

        stored_ms = await self._pools.look_ups.run(request, read)
        return Response(fields=StoreTime(timestamp=stored_ms))
