"""Routes: the brokers and queues of each topic, asked from the name servers and cached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from metaq.client.session.answers import read_body
from metaq.client.session.mistaken_address import broker_for_name_server
from metaq.errors import MetaqError, NoRoute
from metaq.protocol.bodies import READ, WRITE, ClusterInfo, QueueData, TopicRouteData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.routes import GetBrokerClusterInfo, GetRouteInfoByTopic
from metaq.protocol.errors import Unreachable
from metaq.protocol.names import MASTER_ID, TEMPLATE_TOPIC
from metaq.protocol.reply import Reply

_log = logging.getLogger(__name__)

NEW_TOPIC_QUEUES_MAX: Final = 4
"""The number of queues that Java producers ask for when their first message creates a topic."""
ROUTE_QUEUES_MAX: Final = 50_000
"""The queues of one topic that a client uses. A broker chooses how many it reports, and a client keeps an
object for each of them."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic. Its sort order is the one that all members of a group must use."""

    topic: str
    broker: str
    id: int


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers and queues of one topic."""

    topic: str
    brokers: dict[str, dict[int, str]]
    """Broker name → broker id → address; id 0 is the master."""
    writable: list[Queue]
    readable: list[Queue]
    clusters: dict[str, str] = field(default_factory=dict)
    """Broker name → cluster."""
    is_template: bool = False
    """The topic does not exist yet, and these are the queues that its first message would create."""
    acting_masters: frozenset[str] = frozenset()
    """Broker names of which a replica is shown as master, without writable queues, while there is none."""
    left_out: frozenset[str] = frozenset()
    """Broker names whose queues are too many, see ROUTE_QUEUES_MAX."""

    def may_lack_master(self, broker: str) -> bool:
        """Whether a broker without writable queues may only wait for a new master."""
        return MASTER_ID not in self.brokers.get(broker, {}) or broker in self.acting_masters

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, is_template: bool = False) -> Route:
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
        used, left_out = _used(data.queue_datas, NEW_TOPIC_QUEUES_MAX if is_template else None)

        def allowed(permission: int) -> list[Queue]:
            return sorted(
                Queue(topic, broker, queue_id)
                for broker, (allows, counts) in used.items()
                if allows & permission and broker in brokers
                for queue_id in range(counts[permission])
            )

        return cls(
            topic,
            brokers,
            # A broker without a master cannot be written to, but its replicas can be read.
            [queue for queue in allowed(WRITE) if MASTER_ID in brokers[queue.broker]],
            [] if is_template else allowed(READ),
            {broker.broker_name: broker.cluster for broker in data.broker_datas},
            is_template,
            frozenset(broker.broker_name for broker in data.broker_datas if broker.enable_acting_master),
            left_out,
        )

    def moved(self, broker: str, addresses: dict[int, str]) -> Route:
        """Returns the same route with other addresses of a broker, which the route of another topic has."""
        writable = self.writable
        if MASTER_ID not in addresses:
            writable = [queue for queue in writable if queue.broker != broker]
        return replace(self, brokers={**self.brokers, broker: addresses}, writable=writable)


def _used(
    datas: Iterable[QueueData], queues_max: int | None
) -> tuple[dict[str, tuple[int, dict[int, int]]], frozenset[str]]:
    """Returns the permission and the numbers of queues of each broker, and the brokers that are left out.

    Brokers with few queues come first: one that claims too many must not take the place of others. All
    members of a group decide the same.
    """
    counts: dict[str, tuple[int, dict[int, int]]] = {}
    for data in datas:
        numbers = {READ: data.read_queue_nums, WRITE: data.write_queue_nums}
        if queues_max is not None:
            numbers = {permission: min(number, queues_max) for permission, number in numbers.items()}
        counts.setdefault(data.broker_name, (data.perm, numbers))
    used: dict[str, tuple[int, dict[int, int]]] = {}
    room = ROUTE_QUEUES_MAX
    for broker, found in sorted(counts.items(), key=lambda item: (max(item[1][1].values()), item[0])):
        room -= max(0, *found[1].values())
        if room < 0:
            break
        used[broker] = found
    return used, frozenset(counts.keys() - used.keys())


AskNameServer = Callable[[Command], Awaitable[Reply]]


class Routes:
    """The routes of all topics that were asked for, refreshed regularly and on demand."""

    def __init__(self, ask: AskNameServer, on_change: Callable[[], None]) -> None:
        self._ask = ask
        self._on_change = on_change
        self._watchers: list[Callable[[str], None]] = []
        self._known: dict[str, Route] = {}
        self._seen: set[str] = set()
        self._made: set[str] = set()
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._brokers: dict[str, dict[int, str]] = {}

    def known(self, topic: str) -> Route | None:
        """Returns the cached route, or None. Asks nobody."""
        return self._known.get(topic)

    async def get(self, topic: str, *, refresh: bool = False, creatable: bool = False) -> Route:
        """Returns the route. Raises NoRoute if there is none, and Unreachable if no name server answers.

        With `creatable`, a missing topic has the route on which its first message would create it.
        """
        known = route = self._known.get(topic)
        if route is None or refresh or topic in self._made or (route.is_template and not creatable):
            try:
                route = await self._ask_once(topic)
            except (Unreachable, NoRoute) as error:
                # Brokers work without name servers, so the cached route is probably still right.
                if known is None or (known.is_template and not creatable) or not error.retriable:
                    raise
                route = known
        if route.is_template and not creatable:
            raise NoRoute(
                f"no route for topic {topic}: the name server answered, but the topic does not exist",
                hint=f"send a message to it, or run `metaq topic create {topic}`",
            )
        return route

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """Returns the address of a broker, or None if no route contains it."""
        return self._brokers.get(broker, {}).get(broker_id)

    def group_address(self, broker: str) -> str | None:
        """Returns the address of the master, or of the replica with the lowest id while there is no master.

        Clients that commit offsets without a master so commit all of them to the same replica.
        """
        addresses = self._brokers.get(broker)
        return addresses[min(addresses)] if addresses else None

    def brokers(self) -> dict[str, dict[int, str]]:
        """Returns all brokers of all routes."""
        return self._brokers

    def made(self, topic: str) -> None:
        """Marks a topic as just created by a message, so the next `get` asks for its route."""
        self._made.add(topic)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Calls the watcher with a topic whenever its route has changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[str], None]) -> None:
        with contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    async def refresh_all(self) -> None:
        """Asks for all known topics again. Routes that cannot be refreshed stay as they are."""
        for topic in list(self._known):
            try:
                await self._ask_once(topic)
            except MetaqError as error:
                _log.info("the route of %s was not refreshed: %s", topic, error)

    async def _ask_once(self, topic: str) -> Route:
        """Asks for a route. Callers at the same time share one request."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._find(topic), name=f"route {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        # A caller that is cancelled must not cancel the request of the others.
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved, in case that all callers were cancelled.

    async def _find(self, topic: str) -> Route:
        data = await self._route_data(topic)
        known = self._known.get(topic)
        if data is not None:
            route = Route.of(topic, data)
        else:
            if known is not None and not known.is_template:
                await self._require_deleted(known)
                self._forget(topic)
            template = await self._route_data(TEMPLATE_TOPIC)
            if template is None:
                raise await self._no_route(topic)
            route = Route.of(topic, template, is_template=True)
        # At the end, because `_collect` takes the addresses of a broker from the newest route.
        self._known.pop(topic, None)
        self._known[topic] = route
        self._made.discard(topic)
        if route.left_out - (frozenset() if known is None else known.left_out):
            _log.warning(
                "topic %s has more than %d queues: those of %s are left out",
                topic,
                ROUTE_QUEUES_MAX,
                ", ".join(sorted(route.left_out)[:10]),
            )
        if not route.is_template:
            self._seen.add(topic)
        moved = self._move_others(route)
        self._collect()
        for changed in [topic, *moved] if known != route else moved:
            self._notify(changed)
        return route

    def _move_others(self, fresh: Route) -> list[str]:
        """Gives the addresses of a new route to the older routes of other topics, and returns those topics.

        After a master switch the first topic that is asked for so finds the new master for all.
        """
        moved: list[str] = []
        for broker, addresses in fresh.brokers.items():
            if self._brokers.get(broker) in (None, addresses):
                continue
            for topic, route in self._known.items():
                if route.brokers.get(broker) not in (None, addresses):
                    if MASTER_ID in addresses and MASTER_ID not in route.brokers[broker]:
                        self._made.add(topic)  # Its queues may be writable again.
                    self._known[topic] = route.moved(broker, addresses)
                    moved.append(topic)
        return list(dict.fromkeys(moved))

    async def _require_deleted(self, known: Route) -> None:
        """Raises a retriable NoRoute if a broker of the topic is away: it may come back and still have it."""
        info = await self._cluster()
        if any(broker not in info.broker_addr_table for broker in known.brokers):
            raise NoRoute(
                f"no route for topic {known.topic}: the name server answered, but one of its brokers is away",
                hint="is the broker running, and does it know this name server?",
                retriable=True,
            )

    def _forget(self, topic: str) -> None:
        del self._known[topic]
        self._seen.discard(topic)
        self._collect()
        self._notify(topic)

    def _notify(self, topic: str) -> None:
        for watcher in list(self._watchers):
            watcher(topic)

    async def _no_route(self, topic: str) -> NoRoute:
        info = await self._cluster()
        if not info.broker_addr_table:
            return NoRoute(
                f"no route for topic {topic}: the name server answered, but no broker is registered with it",
                hint="is a broker running, and does it know this name server?",
                retriable=True,
            )
        return NoRoute(
            f"no route for topic {topic}: the name server answered, but the topic does not exist"
            " and auto-creation is off",
            hint=f"create it with `metaq topic create {topic}`",
            retriable=topic in self._seen | self._made,  # Its broker may come back.
        )

    async def _route_data(self, topic: str) -> TopicRouteData | None:
        reply = await self._ask(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return await self._without_acting(await read_body(TopicRouteData, reply.check().body))

    async def _cluster(self) -> ClusterInfo:
        return await read_body(ClusterInfo, (await self._ask(GetBrokerClusterInfo())).check().body)

    async def _without_acting(self, data: TopicRouteData) -> TopicRouteData:
        """Gives nodes that act as masters their own ids again.

        While a group has no master, a name server may show its lowest replica as one that cannot be written
        to. We know how to use replicas, and must not believe a replica that a queue has moved.
        """
        read_only = {queues.broker_name for queues in data.queue_datas if not queues.perm & WRITE}
        doubtful = [
            broker
            for broker in data.broker_datas
            if broker.enable_acting_master
            and MASTER_ID in broker.broker_addrs
            and broker.broker_name in read_only
        ]
        if doubtful:
            info = await self._cluster()
            for broker in doubtful:
                registered = info.broker_addr_table.get(broker.broker_name)
                if registered is not None:
                    broker.broker_addrs = dict(registered.broker_addrs)
        return data

    def _collect(self) -> None:
        brokers: dict[str, dict[int, str]] = {}
        for route in self._known.values():
            brokers.update(route.brokers)
        if brokers != self._brokers:
            self._brokers = brokers
            self._on_change()


class NameServers:
    """The name servers of a cluster, asked in turn. The one that answered last is asked first."""

    def __init__(self, addresses: tuple[str, ...], call: Callable[[str, Command], Awaitable[Reply]]) -> None:
        self._addresses = addresses
        self._call = call
        self._first = 0

    async def ask(self, command: Command) -> Reply:
        """Returns the first answer. Raises Unreachable if no name server answers, and NotSupported if a
        broker is at the address of one."""
        failures: list[str] = []
        mistaken: MetaqError | None = None
        for step in range(len(self._addresses)):
            number = (self._first + step) % len(self._addresses)
            try:
                reply = await self._call(self._addresses[number], command)
            except Unreachable as error:
                failures.append(str(error))
                continue
            if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                fault = await broker_for_name_server(self._call, self._addresses[number])
                if fault is not None:
                    mistaken = mistaken or fault
                    continue
            self._first = number
            return reply
        if mistaken is not None:
            raise mistaken
        raise Unreachable(
            f"no name server answers: {'; '.join(failures)}",
            hint="is it running, and is this its address?",
        )
