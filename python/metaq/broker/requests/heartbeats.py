"""Heartbeats of clients, and questions about connected clients."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Final

from metaq._core import Clock
from metaq.broker.state.broker_own import check_group
from metaq.broker.state.client_limits import check_subscriptions
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.filters import Filters, size_fault
from metaq.broker.state.groups import Groups
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import (
    CheckClientRequestBody,
    Connection,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import (
    CheckClientConfig,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumerListByGroup,
    GetProducerConnectionList,
    HeartBeat,
    HeartbeatTaken,
    UnregisterClient,
)
from metaq.protocol.dispatch import RESPONDED, Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.body_reading import is_short, read_body
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.peer_log import peer_log
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

HEARTBEAT_BYTES_MAX = 1024 * 1024
CHECK_BYTES_MAX = 256 * 1024
GROUPS_PER_CONNECTION_MAX = 1_000
GROUPS_AT_ONCE = 32
"""Groups of a heartbeat that are taken in one turn of the event loop."""

MEMBERS_AT_ONCE = 256
"""Members of a group that are listed on the event loop. Larger lists are made on a thread."""
MEMBER_BYTES = 128
"""About the size of a member in a list."""

CLIENT_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,31}")
"""A version that is kept and shown. Any other text is ignored, because anybody can send one."""

LANGUAGES = tuple(
    "JAVA,CPP,DOTNET,PYTHON,DELPHI,ERLANG,RUBY,OTHER,HTTP,GO,PHP,OMS,RUST,NODE_JS".split(",")  # noqa: SIM905
)
"""The names of the languages, in the order of their numbers in a header."""


@dataclass(slots=True)
class _Made:
    """The groups and retry topics that a heartbeat has created, and whether the next one must be full."""

    subscriptions_wanted: bool
    groups: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)


class Heartbeats:
    """Keeps the table of live clients up to date."""

    def __init__(
        self,
        clients: Clients,
        groups: Groups,
        topics: Topics,
        clock: Clock,
        filters: Filters,
        pools: WorkPools,
    ) -> None:
        self._clients = clients
        self._filters = filters
        self._groups = groups
        self._topics = topics
        self._clock = clock
        self._pools = pools

    @handles(HeartBeat)
    def heart_beat(self, command: HeartBeat, request: Request) -> Response | Awaitable[Response]:
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise _refused(f"the heartbeat has {len(request.body)} bytes, the limit is {HEARTBEAT_BYTES_MAX}")
        if not is_short(request.body):
            return self._read_and_take(request)
        return self._taken(HeartbeatData.decode(request.body), request)

    async def _read_and_take(self, request: Request) -> Response:
        self._clients.expect(request.connection)
        try:
            heartbeat = await read_body(self._pools.reading, request, request.body, HeartbeatData)
        finally:
            is_still_here = self._clients.is_still_here(request.connection)
        if not is_still_here:
            return RESPONDED
        taken = self._taken(heartbeat, request)
        return taken if isinstance(taken, Response) else await taken

    def _taken(self, heartbeat: HeartbeatData, request: Request) -> Response | Awaitable[Response]:
        self._check_size(heartbeat)
        _drop_repeated(heartbeat)
        _check(heartbeat)
        new = [entry for entry in _filters(heartbeat) if not self._is_compiled(entry)]
        return self._compile_and_take(heartbeat, new, request) if new else self._take(heartbeat, request)

    async def _compile_and_take(
        self, heartbeat: HeartbeatData, new: list[SubscriptionData], request: Request
    ) -> Response:
        self._clients.expect(request.connection)
        try:
            await self._filters.compile_all_apart(request, new)
        finally:
            is_still_here = self._clients.is_still_here(request.connection)
        if not is_still_here:
            return RESPONDED
        taken = self._take(heartbeat, request)
        return taken if isinstance(taken, Response) else await taken

    def _is_compiled(self, entry: SubscriptionData) -> bool:
        return self._filters.is_compiled(entry.expression_type, entry.sub_string)

    def _take(self, heartbeat: HeartbeatData, request: Request) -> Response | Awaitable[Response]:
        made = _Made(subscriptions_wanted=heartbeat.heartbeat_fingerprint == 0)
        steps = self._take_groups(heartbeat, request, made)
        groups = len(heartbeat.consumer_data_set) + len(heartbeat.producer_data_set)
        if groups + self._clients.groups_to_leave(request.connection, heartbeat.client_id) > GROUPS_AT_ONCE:
            return self._take_in_steps(steps, request, made)
        for _ in steps:
            pass
        return self._answer(request, made)

    async def _take_in_steps(self, steps: Iterator[None], request: Request, made: _Made) -> Response:
        try:
            for _ in steps:
                self._clients.expect(request.connection)
                try:
                    await asyncio.sleep(0)
                finally:
                    is_still_here = self._clients.is_still_here(request.connection)
                if not is_still_here:
                    await self._publish(made)
                    return RESPONDED
        except Refused:
            # The groups before it stay, so their consumers and producers must find them.
            await self._publish(made)
            raise
        answer = self._answer(request, made)
        return answer if isinstance(answer, Response) else await answer

    def _take_groups(self, heartbeat: HeartbeatData, request: Request, made: _Made) -> Iterator[None]:
        """Takes the groups of a heartbeat; yields when other requests should have their turn."""
        yield from self._clients.identify_in_steps(request.connection, heartbeat.client_id)
        self._check_room(heartbeat, request.connection)
        for number, data in enumerate(heartbeat.consumer_data_set, 1):
            if number % GROUPS_AT_ONCE == 0:
                yield
            is_known = self._groups.get(data.group_name) is not None
            if not heartbeat.without_sub:
                self._clients.check_room(data, request.connection, request.remote)
            group = self._find_or_create(data.group_name)
            if group is None:
                continue  # The answers to its pulls explain the problem to the client.
            if not is_known:
                made.groups.append(data.group_name)
            is_ordered = None if heartbeat.without_sub else self._is_ordered(data)
            if self._ensure_retry_topic(group, is_ordered, request):
                made.topics.append(names.retry_topic(data.group_name))
            made.subscriptions_wanted |= self._take_consumer(data, heartbeat, request)
        for number, producer in enumerate(heartbeat.producer_data_set, 1):
            if number % GROUPS_AT_ONCE == 0:
                yield
            self._clients.put_producer(producer.group_name, self._member(heartbeat, request))

    def _answer(self, request: Request, made: _Made) -> Response | Awaitable[Response]:
        taken = HeartbeatTaken(is_sub_change=made.subscriptions_wanted)
        if made.groups or made.topics:
            # Answered before anything is written: a client that waits for this answer cannot send the
            # heartbeat after its first rebalance, and without that one its pulls count as out of date.
            request.respond(fields=taken.to_fields())
            return self._publish(made)
        return Response(fields=taken)

    def _find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        try:
            return self._groups.find_or_create(name)
        except Refused:
            return None  # There are too many groups. The other groups of the client go on.

    def _ensure_retry_topic(
        self, group: SubscriptionGroupConfig, is_ordered: bool | None, request: Request
    ) -> bool:
        """Whether the group's retry topic was made or changed. Without room for it, the client is taken all
        the same, and each of its heartbeats tries again."""
        name, queues = group.group_name, max(group.retry_queue_nums, 1)
        try:
            return self._topics.ensure_retry_topic(name, queues, order=is_ordered) is not None
        except Refused as error:
            # Once for a member: its next heartbeats say nothing new.
            if name not in self._clients.groups_of(request.connection)[0]:
                peer_log.write(
                    _log,
                    logging.WARNING,
                    request.remote,
                    "group %s of the client at %s has no retry topic: %s",
                    name,
                    request.remote,
                    error.remark,
                )
            return False

    def _take_consumer(self, data: ConsumerData, heartbeat: HeartbeatData, request: Request) -> bool:
        """True if the client's next heartbeat must be a full one."""
        print_known = self._clients.fingerprint(data.group_name, request.connection)
        member = self._member(heartbeat, request)
        member.fingerprint = heartbeat.heartbeat_fingerprint
        self._clients.put_consumer(data, member, without_subscriptions=heartbeat.without_sub)
        return heartbeat.without_sub and print_known != heartbeat.heartbeat_fingerprint

    async def _publish(self, made: _Made) -> Response:
        try:
            if made.groups:
                await self._groups.publish(made.groups)
            if made.topics:
                await self._topics.publish(made.topics)
        except OSError as error:
            _log.error("new groups or retry topics are not written yet: %s", error)
        return RESPONDED

    @handles(UnregisterClient)
    def unregister_client(self, command: UnregisterClient, request: Request) -> None:
        if command.producer_group is not None:
            self._clients.remove_producer(command.producer_group, request.connection)
        if command.consumer_group is not None:
            self._clients.remove_consumer(command.consumer_group, request.connection)

    @handles(CheckClientConfig)
    async def check_client_config(self, command: CheckClientConfig, request: Request) -> None:
        if len(request.body) > CHECK_BYTES_MAX:
            raise _refused(f"the check has {len(request.body)} bytes, the limit is {CHECK_BYTES_MAX}")
        check = await read_body(self._pools.reading, request, request.body, CheckClientRequestBody)
        subscription = check.subscription_data
        await self._filters.compile_apart(request, subscription.expression_type, subscription.sub_string)

    @handles(GetConsumerListByGroup)
    def get_consumer_list_by_group(
        self, command: GetConsumerListByGroup, request: Request
    ) -> Response | Awaitable[Response]:
        group = self._clients.consumer_group(command.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no consumer of group {command.consumer_group[:128]} is connected"
            )
        client_ids = group.client_ids()
        if len(client_ids) <= MEMBERS_AT_ONCE:
            return Response(body=ConsumerList(consumer_id_list=client_ids).encode())
        return self._encode_consumer_list(client_ids, request)

    async def _encode_consumer_list(self, client_ids: list[str], request: Request) -> Response:
        def collect() -> bytes:
            answer = BoundedAnswer(GetConsumerListByGroup)
            for client_id in client_ids:
                answer.add(len(client_id) + 3)
            return answer.encoded(ConsumerList(consumer_id_list=client_ids))

        return Response(body=await self._pools.look_ups.run(request, collect))

    @handles(GetConsumerConnectionList)
    async def get_consumer_connection_list(
        self, command: GetConsumerConnectionList, request: Request
    ) -> Response:
        group = self._clients.consumer_group(command.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {command.consumer_group[:128]} is connected",
            )
        body = ConsumerConnection(
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        members = group.present()

        def encode() -> bytes:
            answer = BoundedAnswer(GetConsumerConnectionList)
            for topic, entry in body.subscription_table.items():
                answer.add(MEMBER_BYTES + len(topic) + 2 * len(entry.sub_string))
            body.connection_set = [_connection(member) for member in answer.counted(members, MEMBER_BYTES)]
            return answer.encoded(body)

        return Response(body=await self._pools.look_ups.run(request, encode))

    @handles(GetProducerConnectionList)
    async def get_producer_connection_list(
        self, command: GetProducerConnectionList, request: Request
    ) -> Response:
        members = self._clients.producers(command.producer_group)
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no producer of group {command.producer_group[:128]} is connected"
            )

        def encode() -> bytes:
            answer = BoundedAnswer(GetProducerConnectionList)
            found = [_connection(member) for member in answer.counted(members, MEMBER_BYTES)]
            return answer.encoded(ProducerConnection(connection_set=found))

        return Response(body=await self._pools.look_ups.run(request, encode))

    @handles(GetAllProducerInfo)
    async def get_all_producer_info(self, command: GetAllProducerInfo, request: Request) -> Response:
        clients = self._clients

        def encode() -> bytes:
            groups, members = clients.producer_lines()
            # Refused before anything is copied. What is collected counts again: the table may grow meanwhile.
            BoundedAnswer(GetAllProducerInfo).add(members * MEMBER_BYTES, lines=groups + members)
            answer = BoundedAnswer(GetAllProducerInfo)
            data = {
                group: [
                    _producer(member) for member in answer.counted(clients.producers(group), MEMBER_BYTES)
                ]
                for group in answer.counted(clients.producer_groups())
            }
            return answer.encoded(ProducerTable(data=data))

        return Response(body=await self._pools.administration.run(request, encode))

    def _member(self, heartbeat: HeartbeatData, request: Request) -> Member:
        return Member(
            connection=request.connection,
            client_id=heartbeat.client_id,
            language=request.language,
            version=request.version,
            remote=request.remote,
            seen_ms=self._clock.now_ms(),
            client_version=_shown_version(heartbeat.client_version),
        )

    def _is_ordered(self, data: ConsumerData) -> bool:
        subscribed = (self._topics.get(entry.topic) for entry in data.subscription_data_set)
        return any(topic.order for topic in subscribed if topic is not None)

    def _check_size(self, heartbeat: HeartbeatData) -> None:
        """Raises Refused for more than one client may have. What is repeated counts too, because each entry
        takes time on the event loop."""
        groups = len(heartbeat.consumer_data_set) + len(heartbeat.producer_data_set)
        if groups > GROUPS_PER_CONNECTION_MAX:
            raise _refused(f"{groups} groups in one heartbeat, the limit is {GROUPS_PER_CONNECTION_MAX}")
        subscriptions = sum(len(data.subscription_data_set) for data in heartbeat.consumer_data_set)
        limit = self._clients.budget.limits.subscriptions_per_client_max
        if subscriptions > limit:
            raise _refused(
                f"{subscriptions} subscriptions in one heartbeat, the limit is {limit} "
                "(subscriptions_per_client_max)"
            )

    def _check_room(self, heartbeat: HeartbeatData, connection: int) -> None:
        consuming, producing = self._clients.groups_of(connection)
        consuming = consuming.union(data.group_name for data in heartbeat.consumer_data_set)
        producing = producing.union(data.group_name for data in heartbeat.producer_data_set)
        groups = len(consuming) + len(producing)
        if groups > GROUPS_PER_CONNECTION_MAX:
            raise _refused(f"{groups} groups on one connection, the limit is {GROUPS_PER_CONNECTION_MAX}")


def _drop_repeated(heartbeat: HeartbeatData) -> None:
    """Leaves each group in the heartbeat once, as its last entry says. Clients name each group once."""
    consumers = {data.group_name: data for data in heartbeat.consumer_data_set}
    heartbeat.consumer_data_set = list(consumers.values())
    producers = {data.group_name: data for data in heartbeat.producer_data_set}
    heartbeat.producer_data_set = list(producers.values())


def _check(heartbeat: HeartbeatData) -> None:
    """Raises Refused for names and sizes that no honest client sends."""
    fault = names.client_id_fault(heartbeat.client_id)
    for producer in heartbeat.producer_data_set:
        fault = fault or names.group_fault(producer.group_name)
    for consumer in heartbeat.consumer_data_set:
        check_group(consumer.group_name)
        fault = fault or names.group_fault(consumer.group_name)
        check_subscriptions(consumer)
    fault = fault or size_fault(_filters(heartbeat))
    if fault is not None:
        raise _refused(fault)


def _filters(heartbeat: HeartbeatData) -> Iterator[SubscriptionData]:
    for consumer in heartbeat.consumer_data_set:
        yield from consumer.subscription_data_set


def _shown_version(told: str | None) -> str | None:
    """Returns one text for all clients of a version, or None if nobody should see it."""
    return sys.intern(told) if told is not None and CLIENT_VERSION.fullmatch(told) else None


def _connection(member: Member) -> Connection:
    return Connection(
        client_addr=member.remote,
        client_id=member.client_id,
        language=language_name(member.language),
        version=member.version,
        client_version=member.client_version,
    )


def _producer(member: Member) -> ProducerInfo:
    return ProducerInfo(
        client_id=member.client_id,
        remote_ip=member.remote,
        language=language_name(member.language),
        version=member.version,
        last_update_timestamp=member.seen_ms,
        client_version=member.client_version,
    )


def language_name(number: int) -> str:
    """The name of the language with this number in a header."""
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else "OTHER"


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)
