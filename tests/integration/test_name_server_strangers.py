"""A stranger at a real name server, beside a broker with a producer that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metaq._core import Clock
from metaq.broker import Broker
from metaq.nameserver import NameServer, requests
from metaq.protocol.bodies import (
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.commands.cluster import (
    BrokerHeartbeat,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
)
from metaq.protocol.commands.routes import GetRouteInfoByTopic, RegisterTopicInNameServer
from metaq.protocol.commands.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from metaq.settings import NameServerSettings, ServerSettings
from tests.support.broker_cluster import broker_options, connected, started_broker
from tests.support.patient import Connection
from tests.support.waiting import run

NAME, CLUSTER, TOPIC = "broker-a", "DefaultCluster", "Orders"
SYSTEM_TOPICS = ("TBW102", NAME, CLUSTER)
FAKE = "127.0.0.1:666"


@dataclass
class Scene:
    """A name server and a healthy broker with a topic."""

    nameserver: NameServer
    home: Path
    broker: Broker

    async def route(self) -> TopicRouteData | None:
        asking = await Connection.open(self.nameserver.address)
        reply = await asking.call(GetRouteInfoByTopic(TOPIC, accept_standard_json_only=True))
        await asking.close()
        return TopicRouteData.decode(reply.body) if reply.code == 0 else None

    async def check(self) -> None:
        """The route leads to the broker as before, and a producer that follows it sends."""
        route = await self.route()
        assert route is not None
        [address] = [data.broker_addrs.get(0) for data in route.broker_datas if data.broker_name == NAME]
        assert address == self.broker.address
        assert (route.broker_datas[0].zone_name, route.broker_datas[0].enable_acting_master) == (None, False)
        [queues] = [data for data in route.queue_datas if data.broker_name == NAME]
        assert (queues.perm, queues.write_queue_nums) == (6, 8)
        async with connected(address) as producer:
            await producer.send(TOPIC, b"goes on")

    async def restart(self) -> None:
        """Starts the broker again, at another port."""
        self.broker = Broker(broker_options(self.home, self.nameserver.address), Clock())
        await self.broker.start()


@contextlib.asynccontextmanager
async def scene(home: Path, **limits: int) -> AsyncIterator[Scene]:
    settings = NameServerSettings(**limits)
    nameserver = NameServer(ServerSettings(host="127.0.0.1", port=0), Clock(), limits=settings)
    await nameserver.start()
    try:
        async with started_broker(broker_options(home, nameserver.address)) as broker:
            async with connected(broker.address) as producer:
                command = UpdateAndCreateTopic(topic=TOPIC, read_queue_nums=8, write_queue_nums=8)
                (await producer.connection.call(command)).check()
            found = Scene(nameserver, home, broker)
            await found.check()
            yield found
        if found.broker is not broker:
            await found.broker.stop()
    finally:
        await nameserver.stop()


def registration(address: str, broker_id: int, **changes: Any) -> RegisterBroker:
    names = {"broker_name": NAME, "cluster_name": CLUSTER} | changes
    return RegisterBroker(broker_addr=address, broker_id=broker_id, **names)


def body(epoch: int = 0, queues: int = 0, counter: int = 9) -> bytes:
    table = {
        name: TopicConfig(topic_name=name, perm=queues, read_queue_nums=queues, write_queue_nums=queues)
        for name in (*SYSTEM_TOPICS, TOPIC)
    }
    return RegisterBrokerBody([], TopicConfigTable(DataVersion(counter, epoch, 2**62), table)).encode()


@pytest.mark.parametrize("epoch", [0, 1, 2, 1_000])
def test_a_false_replica_does_not_become_master(tmp_path: Path, epoch: int) -> None:
    """It was master in every route at once, for half a minute, as often as it liked."""

    async def scenario() -> None:
        async with scene(tmp_path) as at:
            liar = await Connection.open(at.nameserver.address)
            await liar.call(registration(FAKE, 9, enable_acting_master=True, zone_name="z"), body(epoch))
            for _ in range(3):
                assert (await liar.call(registration(FAKE, 0), body(epoch))).code != 0
                await at.check()
            await liar.close()
            await at.check()

    run(scenario)


def test_a_false_replica_announces_no_topic_of_its_master(tmp_path: Path) -> None:
    """Producers found no queue to write to for 28 s."""

    async def scenario() -> None:
        async with scene(tmp_path) as at:
            liar = await Connection.open(at.nameserver.address)
            (await liar.call(registration(FAKE, 9), body())).check()
            nothing = TopicRouteData(queue_datas=[QueueData(NAME, 0, 0, 0, 0)]).encode()
            await liar.call(RegisterTopicInNameServer(topic=TOPIC), nothing)
            await at.check()
            await liar.close()

    run(scenario)


@pytest.mark.parametrize("broker_id", [0, 7])
def test_nobody_registers_or_ends_a_living_broker_for_it(tmp_path: Path, broker_id: int) -> None:
    """A registration of its address took it over, and the end of that connection removed it."""

    async def scenario() -> None:
        async with scene(tmp_path) as at:
            for name, cluster in ((NAME, CLUSTER), ("evil", CLUSTER), (NAME, "evil")):
                liar = await Connection.open(at.nameserver.address)
                address = at.broker.address
                command = registration(address, broker_id, broker_name=name, cluster_name=cluster)
                assert (await liar.call(command, body(5))).code != 0
                await liar.call(UnregisterBroker(name, address, cluster, broker_id))
                await liar.call(QueryDataVersion(name, address, cluster, broker_id), DataVersion().encode())
                await liar.call(BrokerHeartbeat(cluster, address, name, heartbeat_timeout_millis=1))
                await at.check()
                await liar.close()
                at.nameserver.expire_brokers()
                await at.check()

    run(scenario)


def test_a_broker_takes_its_deleted_topic_out_of_the_routes_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as at:
            async with connected(at.broker.address) as tool:
                (await tool.connection.call(DeleteTopicInBroker(topic=TOPIC))).check()
            assert await at.route() is None

    run(scenario)


def test_one_connection_registers_one_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as at:
            liar = await Connection.open(at.nameserver.address)
            codes = [
                (await liar.call(registration(f"127.0.0.1:{port}", 0, broker_name=f"b{port}"), body())).code
                for port in range(1, 11)
            ]
            assert codes.count(0) == 1
            await liar.close()

    run(scenario)


def test_false_brokers_do_not_keep_a_restarting_one_from_registering(tmp_path: Path) -> None:
    """They took every place of the name server, also the one of the broker while it restarted."""

    async def scenario() -> None:
        async with scene(tmp_path, nameserver_brokers_max=20) as at:
            liars = [await Connection.open(at.nameserver.address) for _ in range(25)]

            async def attack() -> int:
                replies = [
                    await liar.call(registration(f"127.0.0.1:{n}", 0, broker_name=f"fake-{n}"), body())
                    for n, liar in enumerate(liars, start=1)
                ]
                return sum(reply.code == 0 for reply in replies)

            assert await attack() == 19
            await at.broker.stop()
            assert await attack() == 19
            await at.restart()
            await at.check()
            for liar in liars:
                await liar.close()

    run(scenario)


def test_false_topics_do_not_keep_those_of_a_restarting_broker_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, nameserver_topics_max=100) as at:
            liars = [await Connection.open(at.nameserver.address) for _ in range(40)]

            async def attack() -> None:
                for n, liar in enumerate(liars, start=1):
                    await liar.call(registration(f"127.0.0.1:{n}", 0, broker_name=f"fake-{n}"), body())

            await attack()
            await at.broker.stop()
            await attack()
            await at.restart()
            await at.check()
            for liar in liars:
                await liar.close()

    run(scenario)


def test_a_large_registration_of_a_stranger_does_not_delay_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All registrations of one name waited for each other, whoever sent them."""
    is_over, read = threading.Event(), requests.read_topics

    def slowly(*arguments: Any) -> TopicConfigTable:
        if threading.current_thread() is not threading.main_thread():
            is_over.wait(60)
        return read(*arguments)

    monkeypatch.setattr(requests, "read_topics", slowly)

    async def scenario() -> None:
        async with scene(tmp_path) as at:
            liar = await Connection.open(at.nameserver.address)
            compressed = registration(FAKE, 9, compressed=True)
            call = asyncio.create_task(liar.call(compressed, zlib.compress(body()), 60.0))
            await asyncio.sleep(0)
            await at.broker.stop()
            await at.restart()
            await at.check()
            assert not call.done()
            is_over.set()
            await call
            await liar.close()

    try:
        run(scenario)
    finally:
        is_over.set()
