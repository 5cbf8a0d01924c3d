"""Where topics live, as the name servers tell it, kept for as long as the client runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from metaq.errors import MetaqError, NoRoute
from metaq.protocol.bodies import ClusterInfo, QueueData, TopicRouteData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.errors import Unreachable
from metaq.protocol.names import TEMPLATE_TOPIC
from metaq.protocol.reply import Reply
from metaq.protocol.routes import GetBrokerClusterInfo, GetRouteInfoByTopic

_log = logging.getLogger(__name__)

MASTER_ID: Final = 0
_WRITE: Final = 2
_READ: Final = 4
"""Brokers that create topics by themselves have it, so its route says where a new topic may go."""
NEW_TOPIC_QUEUES_MAX: Final = 4
"""As many queues as Java producers ask for when their first message makes the topic."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic; ordered as every member of a group must order them."""

    topic: str
    broker: str
    id: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where one topic lives."""

    topic: str
    brokers: dict[str, dict[int, str]]
    """Broker name → broker id → address; id 0 is the master."""
    writable: list[Queue]
    readable: list[Queue]
    clusters: dict[str, str] = field(default_factory=dict)
    """Broker name → cluster."""
    is_template: bool = False
    """The topic does not exist yet: this is where a first message would make it."""

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, is_template: bool = False) -> Route:
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}

        def count(queues: QueueData, permission: int) -> int:
            number = queues.write_queue_nums if permission == _WRITE else queues.read_queue_nums
            return min(number, NEW_TOPIC_QUEUES_MAX) if is_template else number

        def allowed(permission: int) -> list[Queue]:
            return sorted(
                Queue(topic, queues.broker_name, queue_id)
                for queues in data.queue_datas
                if queues.perm & permission and queues.broker_name in brokers
                for queue_id in range(count(queues, permission))
            )

        return cls(
            topic,
            brokers,
            # Without a master nothing can be written there, while its replicas may still be read.
            [queue for queue in allowed(_WRITE) if MASTER_ID in brokers[queue.broker]],
            [] if is_template else allowed(_READ),
            {broker.broker_name: broker.cluster for broker in data.broker_datas},
            is_template,
        )


AskNameServer = Callable[[Command], Awaitable[Reply]]


class Routes:
    """The routes asked for so far. They are refreshed every so often (`refresh_all`) and on demand."""

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
        """What is known of it now; nothing is asked."""
        return self._known.get(topic)

    async def get(self, topic: str, *, refresh: bool = False, creatable: bool = False) -> Route:
        """The route; raises NoRoute where there is none, Unreachable where no name server answers.

        With `creatable` a topic that does not exist has the route on which a message would create it.
        """
        known = route = self._known.get(topic)
        if route is None or refresh or topic in self._made or (route.is_template and not creatable):
            try:
                route = await self._ask_once(topic)
            except (Unreachable, NoRoute) as error:
                # Brokers work without name servers, and one that is away may come back: what was known may
                # well be true still.
                if known is None or (known.is_template and not creatable) or not error.retriable:
                    raise
                route = known
        if route.is_template and not creatable:
            raise NoRoute(
                f"no route for topic {topic}: the name server answered, the topic does not exist",
                hint=f"the first message makes it, or `metaq topic create {topic}`",
            )
        return route

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """Of a broker by its name; None where no route told of it."""
        return self._brokers.get(broker, {}).get(broker_id)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Every broker that a route told of."""
        return self._brokers

    def made(self, topic: str) -> None:
        """A message has made it: the next `get` asks where it lives."""
        self._made.add(topic)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Called with the name of a topic whenever what is known of its route has changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[str], None]) -> None:
        with contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    async def refresh_all(self) -> None:
        """Asks anew for every known topic; what cannot be asked stays as it was."""
        for topic in list(self._known):
            try:
                await self._ask_once(topic)
            except MetaqError as error:
                _log.info("the route of %s stays as it was: %s", topic, error)

    async def _ask_once(self, topic: str) -> Route:
        """Callers who ask at the same time share one question."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._find(topic), name=f"route {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        # One caller who gives up must not take the answer from the others.
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # Looked at here in case that every caller has given up.

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
        self._known[topic] = route
        self._made.discard(topic)
        if not route.is_template:
            self._seen.add(topic)
        self._collect()
        if known != route:
            self._tell(topic)
        return route

    async def _require_deleted(self, known: Route) -> None:
        """Raises NoRoute, to be tried again, unless all its brokers are there and have the topic no more: one
        that is away may come back with it."""
        info = ClusterInfo.decode((await self._ask(GetBrokerClusterInfo())).check().body)
        if any(broker not in info.broker_addr_table for broker in known.brokers):
            error = NoRoute(
                f"no route for topic {known.topic}: the name server answered, a broker that had it is away",
                hint="is the broker running, and does it know this name server?",
            )
            error.retriable = True
            raise error

    def _forget(self, topic: str) -> None:
        del self._known[topic]
        self._seen.discard(topic)
        self._collect()
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        for watcher in list(self._watchers):
            watcher(topic)

    async def _no_route(self, topic: str) -> NoRoute:
        info = ClusterInfo.decode((await self._ask(GetBrokerClusterInfo())).check().body)
        if not info.broker_addr_table:
            error = NoRoute(
                f"no route for topic {topic}: the name server answered, no broker is registered with it",
                hint="is a broker running, and does it know this name server?",
            )
            error.retriable = True
            return error
        error = NoRoute(
            f"no route for topic {topic}: the name server answered, the topic does not exist"
            " and auto-creation is off",
            hint=f"create it with `metaq topic create {topic}`",
        )
        error.retriable = topic in self._seen | self._made  # Its broker may be on its way back.
        return error

    async def _route_data(self, topic: str) -> TopicRouteData | None:
        reply = await self._ask(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return TopicRouteData.decode(reply.check().body)

    def _collect(self) -> None:
        brokers: dict[str, dict[int, str]] = {}
        for route in self._known.values():
            brokers.update(route.brokers)
        if brokers != self._brokers:
            self._brokers = brokers
            self._on_change()


class NameServers:
    """Asked in turn, beginning with the one that answered last."""

    def __init__(self, addresses: tuple[str, ...], call: Callable[[str, Command], Awaitable[Reply]]) -> None:
        self._addresses = addresses
        self._call = call
        self._first = 0

    async def ask(self, command: Command) -> Reply:
        """Raises Unreachable where none of them answers."""
        failures = []
        for step in range(len(self._addresses)):
            number = (self._first + step) % len(self._addresses)
            try:
                reply = await self._call(self._addresses[number], command)
            except Unreachable as error:
                failures.append(str(error))
                continue
            self._first = number
            return reply
        raise Unreachable(
            f"no name server answers: {'; '.join(failures)}",
            hint="is it running, and is this its address?",
        )
