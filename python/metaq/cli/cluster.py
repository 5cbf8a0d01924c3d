"""A cluster as the commands see it: found through its name servers, asked over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from metaq.config import load
from metaq.config.kinds import join_endpoint
from metaq.errors import CommandError
from metaq.protocol.bodies import ClusterInfo, QueueData, TopicList, TopicRouteData, TopicStatsTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.messages import SendMessageV2, Sent
from metaq.protocol.names import TEMPLATE_TOPIC
from metaq.protocol.reply import Reply
from metaq.protocol.routes import (
    DeleteTopicInNameServer,
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
)
from metaq.protocol.topics import (
    DeleteTopicInBroker,
    GetSystemTopicListFromBroker,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from metaq.remoting import Connections

Result = TypeVar("Result")

MASTER_ID = 0
WRITE = 2
READ = 4
PRODUCER_GROUP = "TOOLS_PRODUCER"
"""Brokers that create topics by themselves have it, so its route says where a new topic may go."""
SEND_ATTEMPTS_MAX = 3
STATUSES = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
"""Answers after which the message is in the log; all but the first promise less than was asked for."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic and the master that has it."""

    broker: str
    address: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a sent message went."""

    status: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str
    unique_id: str


def ask(namesrv: str | None, question: Callable[[Cluster], Awaitable[Result]]) -> Result:
    """Runs one command against the cluster and leaves it."""

    async def run() -> Result:
        async with Cluster.named(namesrv) as cluster:
            return await question(cluster)

    return asyncio.run(run())


class Cluster:
    """Name servers to ask, and the connections opened so far."""

    def __init__(self, nameservers: Sequence[str]) -> None:
        self._nameservers = nameservers
        self._connections = Connections()

    @classmethod
    def named(cls, namesrv: str | None) -> Self:
        """By the flag, or else by environment and file, or else the name server of a local `metaq serve`."""
        config = load({"namesrv": namesrv})
        return cls(config["namesrv"] or (join_endpoint(config["host"], config["namesrv_port"]),))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.close()

    async def ask_nameserver(self, command: Command) -> Reply:
        """The first name server that answers; they all know the same. Raises CommandError."""
        failures = []
        for address in self._nameservers:
            try:
                return await self._connections.call(address, command)
            except Unreachable as error:
                failures.append(str(error))
        raise CommandError(
            f"no name server answers: {'; '.join(failures)}", hint="start one, or name it with --namesrv"
        )

    async def ask_broker(
        self, address: str, command: Command, timeout: float = 3.0, *, body: bytes = b""
    ) -> Reply:
        return await self._connections.call(address, command, body, timeout=timeout)

    async def route(self, topic: str) -> TopicRouteData | None:
        """None where no broker has the topic."""
        reply = await self.ask_nameserver(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return TopicRouteData.decode(reply.check().body)

    async def route_required(self, topic: str) -> TopicRouteData:
        route = await self.route(topic)
        if route is None:
            raise CommandError(
                f"there is no topic {topic}",
                hint=f"metaq topic create {topic} makes one, metaq topic list lists them",
            )
        return route

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Addresses by broker name, of one cluster or of all. Raises CommandError where there are none."""
        reply = await self.ask_nameserver(GetBrokerClusterInfo())
        info = ClusterInfo.decode(reply.check().body)
        masters = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs and cluster in (None, data.cluster)
        }
        if not masters:
            where = f"cluster {cluster}" if cluster else "the name server"
            raise CommandError(f"no broker is registered with {where}", hint="is a broker running?")
        return masters

    async def topics(self) -> list[str]:
        reply = await self.ask_nameserver(GetAllTopicListFromNameServer())
        return sorted(TopicList.decode(reply.check().body).topic_list)

    async def system_topics(self) -> set[str]:
        """What brokers keep for themselves."""
        names: set[str] = set()
        for address in (await self.masters()).values():
            reply = await self.ask_broker(address, GetSystemTopicListFromBroker())
            names.update(TopicList.decode(reply.check().body).topic_list)
        return names

    async def create_topic(
        self, topic: str, *, queues: int, permission: int, order: bool, cluster: str | None
    ) -> list[str]:
        """Creates or changes it on every broker and returns their names."""
        command = UpdateAndCreateTopic(
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=permission,
            order=order,
        )
        masters = await self.masters(cluster)
        for address in masters.values():
            (await self.ask_broker(address, command)).check()
        return list(masters)

    async def delete_topic(self, topic: str) -> list[str]:
        """Deletes it wherever it is and returns the brokers that had it."""
        route = await self.route_required(topic)
        addresses = master_addresses(route)
        for address in addresses.values():
            (await self.ask_broker(address, DeleteTopicInBroker(topic=topic))).check()
        for address in self._nameservers:
            # One that is down learns of it when it is back, from the brokers.
            with contextlib.suppress(Unreachable):
                await self._connections.call(address, DeleteTopicInNameServer(topic=topic))
        return list(addresses)

    async def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        reply = await self.ask_broker(address, GetTopicStatsInfo(topic=topic))
        return TopicStatsTable.decode(reply.check().body)

    async def send(
        self, topic: str, body: bytes, properties: Mapping[str, str], queue_id: int | None = None
    ) -> Stored:
        """Sends one message; a failure that may pass is tried again, on another broker where there is one."""
        route = await self.route(topic) or await self.route(TEMPLATE_TOPIC)
        if route is None:
            raise CommandError(
                f"there is no topic {topic} and no broker creates it by itself",
                hint=f"metaq topic create {topic}",
            )
        unique_id = secrets.token_hex(16).upper()
        text = write_properties({**properties, "UNIQ_KEY": unique_id, "WAIT": "true"})
        queues = [queue for queue in writable_queues(route) if queue_id in (None, queue.queue_id)]
        if not queues:
            wanted = "" if queue_id is None else f" {queue_id}"
            raise CommandError(f"{topic} has no queue{wanted} that can be written to")
        failure: Exception | None = None
        for queue in _one_per_broker(queues):
            command = SendMessageV2(
                producer_group=PRODUCER_GROUP,
                topic=topic,
                # Counts where this message makes the topic: it gets as many queues as the template has.
                default_topic_queue_nums=sum(other.broker == queue.broker for other in queues),
                queue_id=queue.queue_id,
                born_timestamp=time.time_ns() // 1_000_000,
                properties=text,
                broker_name=queue.broker,
            )
            try:
                reply = await self._connections.call(queue.address, command, body, timeout=10)
                if reply.code not in STATUSES:
                    reply.check()
            except (Unreachable, Refused) as error:
                if not error.retriable:
                    raise
                failure = error
                continue
            sent = reply.header(Sent)
            status = STATUSES[ResponseCode(reply.code)]
            return Stored(
                status, topic, queue.broker, sent.queue_id, sent.queue_offset, sent.msg_id, unique_id
            )
        raise CommandError(f"not sent: {failure}")


def _one_per_broker(queues: Sequence[Queue]) -> list[Queue]:
    """A random queue of each broker, in random order, and round again for the attempts that are left."""
    shuffled = random.sample(queues, len(queues))
    brokers = {queue.broker: queue for queue in shuffled}
    rounds = list(brokers.values()) * SEND_ATTEMPTS_MAX
    return rounds[:SEND_ATTEMPTS_MAX]


def master_addresses(route: TopicRouteData) -> dict[str, str]:
    """By broker name."""
    return {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs
    }


def writable_queues(route: TopicRouteData) -> list[Queue]:
    return _queues(route, WRITE)


def readable_queues(route: TopicRouteData) -> list[Queue]:
    return _queues(route, READ)


def _queues(route: TopicRouteData, permission: int) -> list[Queue]:
    def count(data: QueueData) -> int:
        return data.write_queue_nums if permission == WRITE else data.read_queue_nums

    addresses = master_addresses(route)
    return [
        Queue(data.broker_name, addresses[data.broker_name], queue_id)
        for data in route.queue_datas
        if data.perm & permission and data.broker_name in addresses
        for queue_id in range(count(data))
    ]


def write_properties(properties: Mapping[str, str]) -> str:
    """`name 0x01 value 0x02` for each; neither may hold one of the two. Raises CommandError."""
    for name, value in properties.items():
        if not name or "\x01" in name + value or "\x02" in name + value:
            raise CommandError(f"the property {name!r} has no name or holds a control character")
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
