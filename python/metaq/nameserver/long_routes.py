"""Routes with many brokers.

Everybody may register brokers with any topic, so its route may become as long as the table of brokers. Long
routes are written on a thread, where addresses take turns, and the last ones are kept until something
changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from metaq.nameserver.route_table import RouteTable
from metaq.protocol.bodies import TopicRouteData
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from metaq.protocol.dispatch import Request
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.names import MASTER_ID
from metaq.settings import MIB
from metaq.work_pools import WorkPool

BROKERS_MAX: Final = 64
"""The route of a topic with more broker names than this is long. To write a shorter one takes a fraction of a
millisecond."""
KEPT_BYTES_MAX: Final = 16 * MIB
WAITING_MAX: Final = 256
"""Questions of one address that may wait for the thread."""
BROKER_BYTES: Final = 300
"""About the size of a broker and its queues in a route, without their names."""


class Question(NamedTuple):
    """Everything that a route depends on, apart from the table."""

    topic: str
    acting_master: bool
    order_conf: str | None
    zone: str | None
    is_standard: bool
    """False for old clients, which read broker ids without quotes."""


class LongRoutes:
    """Writes long routes."""

    def __init__(self, routes: RouteTable, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._routes = routes
        self._kept_bytes_max = kept_bytes_max
        self._pool = WorkPool("routes", 1, WAITING_MAX, is_by_address=True)
        self._kept: OrderedDict[Question, tuple[int, bytes]] = OrderedDict()
        """Routes with the state of the table that they show, the oldest first."""
        self._kept_bytes = 0

    def kept(self, question: Question) -> bytes | None:
        """The route, if nothing has changed since it was written."""
        changes, body = self._kept.get(question, (-1, b""))
        return body if changes == self._routes.changes else None

    async def body(self, question: Question, request: Request) -> bytes | None:
        """The encoded route, or None if there is none any more. Raises Refused if too much of this address
        waits."""

        def write() -> tuple[int, bytes | None]:
            changes = self._routes.changes
            kept = self.kept(question)
            return changes, self._written(question) if kept is None else kept

        changes, body = await self._pool.run(request, write)
        if body is not None:
            self._keep(question, changes, body)
        return body

    def _written(self, question: Question) -> bytes | None:
        answer = BoundedAnswer(GetRouteInfoByTopic)
        route = self._routes.route(
            question.topic, acting_master=question.acting_master, stepwise=answer.stepwise
        )
        if route is None:
            return None
        route.order_topic_conf = question.order_conf
        if question.zone is not None:
            route = keep_zone(route, question.zone)
        for data in route.broker_datas:
            answer.add(BROKER_BYTES + 2 * len(data.broker_name), lines=1 + len(data.broker_addrs))
        if not question.is_standard:
            # Broker by broker, because this takes a hundred times as long as standard JSON.
            written: list[Any] = [
                msgspec.Raw(data.encode(bare_integer_keys=True))
                for data in answer.stepwise(route.broker_datas)
            ]
            route.broker_datas = written
        return answer.encoded(route)

    def _keep(self, question: Question, changes: int, body: bytes) -> None:
        former = self._kept.pop(question, None)
        self._kept[question] = (changes, body)
        self._kept_bytes += len(body) - (0 if former is None else len(former[1]))
        while self._kept_bytes > self._kept_bytes_max:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)


def keep_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Keeps only the brokers of one zone, and brokers without a master in any zone."""
    kept = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    ]
    left_out = {data.broker_name for data in route.broker_datas} - {data.broker_name for data in kept}
    queues = [data for data in route.queue_datas if data.broker_name not in left_out]
    return TopicRouteData(kept, route.filter_server_table, route.order_topic_conf, queues)
