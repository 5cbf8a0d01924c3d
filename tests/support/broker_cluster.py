"""A name server and brokers in the test's own process, and a client that talks to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from metaq._core import Clock, Frame, Record, decode_records
from metaq.broker import Broker, BrokerOptions
from metaq.nameserver import NameServer
from metaq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from metaq.protocol.commands.clients import HeartBeat
from metaq.protocol.commands.messages import Pulled, PullMessage, SendMessageV2, Sent
from metaq.protocol.commands.offsets import GetMaxOffset, QueueOffset
from metaq.protocol.reply import Reply
from metaq.settings import MIB, BrokerSettings, ServerSettings, StoreSettings
from tests.support.patient import Connection

SUSPEND = 2
SUBSCRIPTION = 4


def copy_living_store(store: Path, to: Path) -> None:
    """Copies the folder as a kill would leave it. Temporary files may vanish while it copies."""
    shutil.copytree(store, to, ignore=shutil.ignore_patterns("*.tmp", "*.new"))


def small_store(directory: Path, flush: Literal["sync", "async"] = "async") -> StoreSettings:
    """Returns settings with files so small that a test starts quickly and fills several of them."""
    return StoreSettings(
        directory=str(directory),
        flush=flush,
        commit_log_file_bytes=4 * MIB,
        consume_queue_file_entries=1_000,
        index_slots=1_000,
        index_entries=4_000,
        allocation_step_bytes=MIB,
    )


def broker_options(directory: Path, *nameservers: str, **changes: object) -> BrokerOptions:
    return BrokerOptions(
        broker=BrokerSettings(cluster="DefaultCluster", name="broker-a", store_host="127.0.0.1:0"),
        server=ServerSettings(host="127.0.0.1", port=0, also_old_port=True),
        store=small_store(directory),
        nameservers=nameservers,
        # However busy the machine is, a name server of the test answers.
        **{"register_wait_s": 60.0, "announce_timeout_s": 60.0} | changes,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def started_nameserver(port: int = 0) -> AsyncIterator[NameServer]:
    nameserver = NameServer(ServerSettings(host="127.0.0.1", port=port), Clock())
    await nameserver.start()
    try:
        yield nameserver
    finally:
        await nameserver.stop()


@asynccontextmanager
async def started_broker(options: BrokerOptions, clock: Clock | None = None) -> AsyncIterator[Broker]:
    broker = Broker(options, clock or Clock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Client:
    """One connection of a producer or a consumer; it keeps the requests that the broker sends."""

    def __init__(self, connection: Connection, client_id: str, told: list[Frame]) -> None:
        self.connection = connection
        self.client_id = client_id
        self.told = told

    async def heartbeat(
        self,
        group: str,
        *topics: str,
        producers: tuple[str, ...] = (),
        expression: str = "*",
        version: int = 1,
    ) -> Reply:
        consumer = ConsumerData(
            group_name=group,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=expression, sub_version=version) for topic in topics
            ],
        )
        data = HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[consumer] if topics else [],
            producer_data_set=[ProducerData(group_name=name) for name in producers],
        )
        return (await self.connection.call(HeartBeat(), data.encode())).check()

    async def send(self, topic: str, body: bytes, queue_id: int = 0, **properties: str) -> Sent:
        command = SendMessageV2(
            producer_group="p",
            topic=topic,
            queue_id=queue_id,
            properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        )
        return (await self.connection.call(command, body)).check().header(Sent)

    async def pull(
        self,
        group: str,
        topic: str,
        queue_offset: int = 0,
        queue_id: int = 0,
        hold_ms: int = 0,
        version: int = 1,
    ) -> tuple[int, list[Record], int]:
        """Returns code, records and the next offset, by the subscription of the group's heartbeat."""
        command = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            sys_flag=SUSPEND if hold_ms else 0,
            suspend_timeout_millis=hold_ms,
            sub_version=version,
        )
        reply = await self.connection.call(command, timeout=hold_ms / 1000 + 60)
        if reply.code not in (0, 19, 20, 21):
            reply.check()
        return reply.code, decode_records(reply.body), reply.header(Pulled).next_begin_offset

    async def bodies(self, group: str, topic: str, queue_id: int = 0) -> list[bytes]:
        """Returns the bodies of everything in a queue."""
        end = (await self.connection.call(GetMaxOffset(topic=topic, queue_id=queue_id))).header(QueueOffset)
        found: list[bytes] = []
        queue_offset = 0
        while queue_offset < end.queue_offset:
            _, records, queue_offset = await self.pull(group, topic, queue_offset, queue_id)
            found += [record.body for record in records]
        return found

    def notified(self, group: str) -> int:
        """Returns how many rebalance notices it received."""
        return sum(frame.code == 40 and frame.fields["consumerGroup"] == group for frame in self.told)


@asynccontextmanager
async def connected(
    address: str, client_id: str = "client", *, binary: bool = False, source: str | None = None
) -> AsyncIterator[Client]:
    """`source` is the loopback address to connect from, such as 127.0.0.9: a machine of its own."""
    told: list[Frame] = []
    if source is None:
        connection = await Connection.open(address, on_request=told.append, binary=binary)
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
        connection = Connection(address, reader, writer, on_request=told.append, binary=binary)
    try:
        yield Client(connection, client_id, told)
    finally:
        await connection.close()
