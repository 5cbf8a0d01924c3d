"""Answers about routes: from clients, from tools, and to brokers that register."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from metaq._core import Clock
from metaq.nameserver.brokers import Broker, Registration
from metaq.nameserver.key_values import ORDER_TOPIC_CONFIG, KeyValues
from metaq.nameserver.long_routes import BROKERS_MAX, LongRoutes, Question, keep_zone
from metaq.nameserver.options import Options
from metaq.nameserver.registration_body import QUEUES_MAX, check_name, is_small, read_topics
from metaq.nameserver.route_table import LongRoute, RouteTable
from metaq.protocol import names
from metaq.protocol.bodies import (
    BrokerData,
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    DataVersion,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.cluster import (
    BrokerHeartbeat,
    BrokerRegistered,
    DataVersionCompared,
    GetBrokerMemberGroup,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
)
from metaq.protocol.commands.routes import (
    AddWritePermissionOfBroker,
    DeleteTopicInNameServer,
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnUnitTopicList,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNameServer,
    GetTopicsByCluster,
    GetUnitTopicList,
    RegisterTopicInNameServer,
    WipeWritePermissionOfBroker,
    WritePermissionsAdded,
    WritePermissionsWiped,
)
from metaq.protocol.dispatch import RESPONDED, Request, Response, handles
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.operator_requests import OperatorSources, is_welcome
from metaq.remoting import check_endpoint
from metaq.work_pools import WorkPool

STANDARD_JSON_SINCE: Final = 401
"""Clients before this version (4.9.4) get broker ids without quotes."""
REGISTRATIONS_WAITING_MAX: Final = 512
"""Large registrations of one address that may wait for the thread that reads them. A connection has one."""
LISTS_WAITING_MAX: Final = 128
"""Lists that one address may wait for. Together with long routes and registrations, an address does not fill
all slots of the server."""
KEY_CHARACTERS_MIN: Final = 16
KEY_CHARACTERS_MAX: Final = 128
BROKER_BYTES: Final = 160
"""About the size of a broker in a table, without its name."""
UNIT_FLAG: Final = 1
UNIT_SUBSCRIPTION_FLAG: Final = 2


@dataclass(slots=True)
class _Turns:
    """The requests of one connection about its broker, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class BrokerRequests:
    """Requests of brokers."""

    def __init__(self, routes: RouteTable, key_values: KeyValues, options: Options, clock: Clock) -> None:
        self._routes = routes
        self._key_values = key_values
        self._options = options
        self._clock = clock
        self._reading = WorkPool("registrations", 1, REGISTRATIONS_WAITING_MAX, is_by_address=True)
        self._large: dict[int, _Turns] = {}
        """By connection, while a large registration is under way. Its other requests about brokers wait."""
        self._waiting: Counter[int] = Counter()
        """Connection → its requests that wait for that."""

    def connection_closed(self, connection: int) -> None:
        """Large registrations of this connection that are still being read have no effect."""
        self._waiting.pop(connection, None)

    @handles(RegisterBroker)
    def register_broker(self, command: RegisterBroker, request: Request) -> Response | Awaitable[Response]:
        check_name("clusterName", command.cluster_name)
        check_name("brokerName", command.broker_name)
        _check_address("brokerAddr", command.broker_addr)
        if command.ha_server_addr:
            _check_address("haServerAddr", command.ha_server_addr)
        _check_key(command.registration_key)
        if request.connection in self._large or not is_small(command, request.body):
            self._routes.check_claim(
                _registration(command, request, TopicConfigTable()), self._clock.now_ms()
            )
            return self._in_turn(request, lambda: self._register_apart(command, request))
        master = self._routes.register(
            _registration(command, request, self._read(command, request)),
            self._clock.now_ms(),
            drop_missing_topics=self._drops_missing_topics,
        )
        return self._registered(master)

    async def _register_apart(self, command: RegisterBroker, request: Request) -> Response:
        """Reads the body in a thread, and takes the topics in small steps."""
        topics = await self._reading.run(request, lambda: self._read(command, request))
        if request.connection not in self._waiting:
            return RESPONDED
        steps = self._routes.register_in_steps(
            _registration(command, request, topics),
            self._clock.now_ms(),
            drop_missing_topics=self._drops_missing_topics,
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return self._registered(end.value)
            await asyncio.sleep(0)

    def _read(self, command: RegisterBroker, request: Request) -> TopicConfigTable:
        topics_max = self._routes.broker_topics_max
        return read_topics(command, request.version, request.body, topics_max, request.remote)

    @property
    def _drops_missing_topics(self) -> bool:
        return self._options.switches.delete_topic_with_broker_registration

    def _registered(self, master: Broker | None) -> Response:
        known = BrokerRegistered() if master is None else BrokerRegistered(master.ha_address, master.address)
        return Response(fields=known, body=self._key_values.encoded(ORDER_TOPIC_CONFIG))

    def _in_turn(self, request: Request, work: Callable[[], Awaitable[Response]]) -> Awaitable[Response]:
        """Does something about a broker after the large registrations over the same connection."""
        turns = self._large.setdefault(request.connection, _Turns())
        turns.waiting += 1
        self._waiting[request.connection] += 1
        return self._finish_in_turn(turns, request.connection, work)

    async def _finish_in_turn(
        self, turns: _Turns, connection: int, work: Callable[[], Awaitable[Response]]
    ) -> Response:
        try:
            async with turns.lock:
                return await work() if connection in self._waiting else RESPONDED
        finally:
            turns.waiting -= 1
            if turns.waiting == 0:
                del self._large[connection]
            if connection in self._waiting:
                self._waiting[connection] -= 1
                if self._waiting[connection] == 0:
                    del self._waiting[connection]

    @handles(UnregisterBroker)
    def unregister_broker(
        self, command: UnregisterBroker, request: Request
    ) -> Response | Awaitable[Response]:
        async def unregister() -> Response:
            self._unregister(command, request)
            return Response()

        if request.connection in self._large:
            return self._in_turn(request, unregister)
        self._unregister(command, request)
        return Response()

    def _unregister(self, command: UnregisterBroker, request: Request) -> None:
        now_ms = self._clock.now_ms()
        connection = request.connection
        self._routes.unregister(command.cluster_name, command.broker_addr, now_ms, connection=connection)

    @handles(QueryDataVersion)
    def query_data_version(self, command: QueryDataVersion, request: Request) -> Response:
        theirs = DataVersion.decode(request.body or b"{}")
        ours = self._routes.version_of(
            command.cluster_name, command.broker_addr, command.broker_name, command.broker_id
        )
        # Whatever its version: 5.x brokers that may act as masters send this every second as a heartbeat. A
        # broker that has connected again registers again, so that its heartbeats count.
        is_own = self._routes.touch(
            command.cluster_name, command.broker_addr, request.connection, self._clock.now_ms()
        )
        return Response(
            fields=DataVersionCompared(not is_own or ours != theirs),
            body=b"" if ours is None else ours.encode(),
        )

    @handles(BrokerHeartbeat)
    def broker_heartbeat(self, command: BrokerHeartbeat, request: Request) -> None:
        self._routes.touch(
            command.cluster_name,
            command.broker_addr,
            request.connection,
            self._clock.now_ms(),
            command.heartbeat_timeout_millis,
        )

    @handles(GetBrokerMemberGroup)
    def get_broker_member_group(self, command: GetBrokerMemberGroup, request: Request) -> Response:
        addresses = self._routes.members(command.broker_name)
        group = BrokerMemberGroup(addresses, command.broker_name, command.cluster_name)
        return Response(body=BrokerMemberGroupBody(group).encode())


class RouteRequests:
    """Requests of clients and tools."""

    def __init__(
        self,
        routes: RouteTable,
        key_values: KeyValues,
        options: Options,
        operators: OperatorSources = "local",
        clock: Clock | None = None,
    ) -> None:
        self._routes = routes
        self._key_values = key_values
        self._options = options
        self._operators: OperatorSources = operators
        self._clock = clock or Clock()
        self._lists = WorkPool("lists", 1, LISTS_WAITING_MAX, is_by_address=True)
        self._long_routes = LongRoutes(routes)

    @handles(GetRouteInfoByTopic)
    def get_route_info_by_topic(
        self, command: GetRouteInfoByTopic, request: Request
    ) -> Response | Awaitable[Response]:
        switches = self._options.switches
        try:
            route = self._routes.route(
                command.topic, acting_master=switches.support_acting_master, brokers_max=BROKERS_MAX
            )
        except LongRoute:
            return self._long_route(command, request)
        if route is None:
            raise _no_route(command)
        if switches.order_message_enable:
            route.order_topic_conf = self._key_values.get(ORDER_TOPIC_CONFIG, command.topic)
        if command.zone_name and (command.zone_mode or "").lower() == "true":
            route = keep_zone(route, command.zone_name)
        standard = command.accept_standard_json_only or request.version >= STANDARD_JSON_SINCE
        return Response(body=route.encode(bare_integer_keys=not standard))

    def _long_route(self, command: GetRouteInfoByTopic, request: Request) -> Response | Awaitable[Response]:
        switches, topic = self._options.switches, command.topic
        by_zone = command.zone_name and (command.zone_mode or "").lower() == "true"
        question = Question(
            topic,
            acting_master=switches.support_acting_master,
            order_conf=self._key_values.get(ORDER_TOPIC_CONFIG, topic)
            if switches.order_message_enable
            else None,
            zone=command.zone_name if by_zone else None,
            is_standard=command.accept_standard_json_only or request.version >= STANDARD_JSON_SINCE,
        )
        kept = self._long_routes.kept(question)
        if kept is not None:
            return Response(body=kept)

        async def write() -> Response:
            body = await self._long_routes.body(question, request)
            if body is None:
                raise _no_route(command)
            return Response(body=body)

        return write()

    @handles(GetBrokerClusterInfo)
    async def get_broker_cluster_info(self, command: GetBrokerClusterInfo, request: Request) -> Response:
        def collect() -> bytes:
            answer = BoundedAnswer(GetBrokerClusterInfo)

            def note(data: BrokerData) -> None:
                answer.add(BROKER_BYTES + 3 * len(data.broker_name), lines=1 + len(data.broker_addrs))

            return answer.encoded(self._routes.cluster_info(note))

        return Response(body=await self._lists.run(request, collect))

    async def _listed(
        self, request: Request, command: type[Command], topics: Callable[[], list[str]]
    ) -> Response:
        """Lists topics on a thread: there may be a million of them."""

        def collect() -> bytes:
            answer, found = BoundedAnswer(command), topics()
            answer.add(sum(map(len, found)) + 3 * len(found), lines=len(found))
            return answer.encoded(TopicList(None, found))

        return Response(body=await self._lists.run(request, collect))

    @handles(GetAllTopicListFromNameServer)
    async def get_all_topic_list(self, command: GetAllTopicListFromNameServer, request: Request) -> Response:
        return await self._listed(request, GetAllTopicListFromNameServer, lambda: self._routes.topics())

    @handles(GetTopicsByCluster)
    async def get_topics_by_cluster(self, command: GetTopicsByCluster, request: Request) -> Response:
        return await self._listed(request, GetTopicsByCluster, lambda: self._routes.topics(command.cluster))

    @handles(GetSystemTopicListFromNameServer)
    async def get_system_topic_list(
        self, command: GetSystemTopicListFromNameServer, request: Request
    ) -> Response:
        def collect() -> bytes:
            answer = BoundedAnswer(GetSystemTopicListFromNameServer)
            # Every broker has a topic with its own name and one with its cluster's name.
            clusters = self._routes.clusters()
            topics = [*clusters, *(name for names in clusters.values() for name in names)]
            answer.add(sum(map(len, topics)) + 3 * len(topics), lines=len(topics))
            return answer.encoded(TopicList(self._routes.any_address(), topics))

        return Response(body=await self._lists.run(request, collect))

    @handles(GetUnitTopicList)
    async def get_unit_topic_list(self, command: GetUnitTopicList, request: Request) -> Response:
        return await self._listed(
            request, GetUnitTopicList, lambda: self._routes.topics_by_flag(having=UNIT_FLAG)
        )

    @handles(GetHasUnitSubTopicList)
    async def get_has_unit_sub_topic_list(
        self, command: GetHasUnitSubTopicList, request: Request
    ) -> Response:
        return await self._listed(
            request,
            GetHasUnitSubTopicList,
            lambda: self._routes.topics_by_flag(having=UNIT_SUBSCRIPTION_FLAG),
        )

    @handles(GetHasUnitSubUnUnitTopicList)
    async def get_has_unit_sub_un_unit_topic_list(
        self, command: GetHasUnitSubUnUnitTopicList, request: Request
    ) -> Response:
        return await self._listed(
            request,
            GetHasUnitSubUnUnitTopicList,
            lambda: self._routes.topics_by_flag(having=UNIT_SUBSCRIPTION_FLAG, lacking=UNIT_FLAG),
        )

    @handles(WipeWritePermissionOfBroker)
    def wipe_write_permission_of_broker(
        self, command: WipeWritePermissionOfBroker, request: Request
    ) -> Response:
        return Response(fields=WritePermissionsWiped(self._routes.wipe_write_permission(command.broker_name)))

    @handles(AddWritePermissionOfBroker)
    def add_write_permission_of_broker(
        self, command: AddWritePermissionOfBroker, request: Request
    ) -> Response:
        return Response(fields=WritePermissionsAdded(self._routes.add_write_permission(command.broker_name)))

    @handles(DeleteTopicInNameServer)
    def delete_topic_in_name_server(self, command: DeleteTopicInNameServer, request: Request) -> None:
        if not names.is_client_writable(command.topic) or self._routes.is_broker_or_cluster(command.topic):
            # Without the template topic, for example, no producer could begin with a new topic.
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{command.topic} is a system topic; only its broker can take it out of the routes",
            )
        cluster = command.cluster_name or None
        if not is_welcome(self._operators, request.remote):
            # Tools ask after the brokers have deleted and announced it. Then nothing is left to do.
            if self._routes.has_topic(command.topic, cluster):
                raise Refused(
                    ResponseCode.NO_PERMISSION,
                    f"brokers still have the topic {command.topic[:255]!r}: delete it on them, or ask from "
                    "the machine of this name server (nameserver_operator_requests)",
                )
            return
        self._routes.delete_topic(command.topic, cluster)

    @handles(RegisterTopicInNameServer)
    def register_topic_in_name_server(self, command: RegisterTopicInNameServer, request: Request) -> None:
        check_name("topic", command.topic)
        if not request.body:
            return
        queues = TopicRouteData.decode(request.body).queue_datas
        for data in queues:
            if not (0 <= data.read_queue_nums <= QUEUES_MAX and 0 <= data.write_queue_nums <= QUEUES_MAX):
                raise ProtocolError(f"a topic may have up to {QUEUES_MAX} queues on a broker")
        self._routes.put_queues(command.topic, queues, request.connection, self._clock.now_ms())


def _registration(command: RegisterBroker, request: Request, topics: TopicConfigTable) -> Registration:
    key = command.registration_key
    return Registration(
        cluster=command.cluster_name,
        name=command.broker_name,
        broker_id=command.broker_id,
        address=command.broker_addr,
        topics=topics,
        ha_address=command.ha_server_addr,
        zone=command.zone_name,
        acting_master=command.enable_acting_master,
        expiry_ms=command.heartbeat_timeout_millis,
        connection=request.connection,
        remote=request.remote,
        key=None if key is None else hashlib.sha256(key.encode()).hexdigest(),
    )


def _check_key(key: str | None) -> None:
    if key is not None and not KEY_CHARACTERS_MIN <= len(key) <= KEY_CHARACTERS_MAX:
        raise ProtocolError(
            f"registrationKey has {len(key)} characters, not {KEY_CHARACTERS_MIN} to {KEY_CHARACTERS_MAX}"
        )


def _no_route(command: GetRouteInfoByTopic) -> Refused:
    return Refused(
        ResponseCode.TOPIC_NOT_EXIST, f"no broker has registered the topic {command.topic[:255]!r}"
    )


def _check_address(what: str, address: str) -> None:
    try:
        check_endpoint(address)
    except ValueError as error:
        raise ProtocolError(f"{what}: {error}") from None
