"""The two ways of docs/from-rocketmq.md to replace Apache's broker by ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaq
from metaq.broker.background import registration_body
from metaq.protocol.bodies import TopicRouteData
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from tests.support import apache
from tests.support.broker_cluster import broker_options, connected, started_broker
from tests.support.metaq import Metaq, run
from tests.support.processes import free_port
from tests.support.servers import uses_apache
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(uses_apache(), reason="these tests start both kinds of servers")
OLD, NEW = "broker-old", "broker-new"


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = apache.start_nameserver(tmp_path_factory.mktemp("nameserver"), jvm_flags=apache.SHORT_LIVED)
    yield server.address
    server.stop()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, nameserver: str) -> Iterator[apache.ApacheServer]:
    broker = apache.start_broker(
        tmp_path_factory.mktemp("old"), [nameserver], name=OLD, heap="512m", jvm_flags=apache.SHORT_LIVED
    )
    yield broker
    broker.stop()


def mqadmin(home: Path, *arguments: str) -> None:
    command = apache.java_command(
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        home,
        *arguments,
        heap="128m",
        jvm_flags=apache.SHORT_LIVED,
    )
    environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
    subprocess.run(command, capture_output=True, timeout=120, check=True, env=environment)


def create_topic(nameserver: str, topic: str) -> None:
    """Creates the topic on every broker and waits: Apache's broker tells its name server a little later."""
    command = ("topic", "create", topic, "--queues", "2", "--namesrv", nameserver)
    eventually(lambda: run(*command).returncode, lambda code: code == 0, 60, "created")
    show = ("topic", "show", topic, "--namesrv", nameserver)
    eventually(lambda: run(*show).returncode, lambda code: code == 0, 60, "in the route")


def brokers_of(nameserver: str, topic: str) -> set[str]:
    """Returns the brokers that store the next messages of a new client."""
    with metaq.Client(nameserver) as client, client.producer("moving") as producer:
        return {producer.send(topic, b"new").queue.broker for _ in range(20)}


def consume(nameserver: str, topic: str) -> list[bytes]:
    with (
        metaq.Client(nameserver) as client,
        client.subscribe(topic, group=f"{topic}-billing", start="earliest", idle_timeout=6) as orders,
    ):
        return [message.body for message in orders]


def test_brokers_beside_each_other(tmp_path: Path, nameserver: str, old: apache.ApacheServer) -> None:
    create_topic(nameserver, "Beside")
    assert brokers_of(nameserver, "Beside") == {OLD}
    listen = f"127.0.0.1:{free_port(neighbours=(-2,))}"
    arguments = ("--name", NEW, "--listen", listen, "--namesrv", nameserver)
    new = Metaq("broker", *arguments, "--data", str(tmp_path / "new"), home=tmp_path)
    try:
        create_topic(nameserver, "Beside")
        eventually(lambda: brokers_of(nameserver, "Beside"), lambda found: found == {OLD, NEW}, 60, "on both")
        mqadmin(tmp_path, "wipeWritePerm", "-n", nameserver, "-b", OLD)
        eventually(
            lambda: brokers_of(nameserver, "Beside"), lambda found: found == {NEW}, 60, "on the new one"
        )
        # Messages on the old broker are still read.
        found = consume(nameserver, "Beside")
        assert len(found) >= 60 and set(found) == {b"new"}
    finally:
        mqadmin(tmp_path, "addWritePerm", "-n", nameserver, "-b", OLD)
        assert new.stop() == 0, new.child.tail()


def test_apaches_name_server_reads_a_compressed_registration(
    tmp_path: Path, nameserver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_body, "PLAIN_BODY_BYTES_MAX", 100)

    async def scenario() -> None:
        options = broker_options(tmp_path, nameserver)
        async with started_broker(options) as broker, connected(nameserver) as ask:
            assert broker.master.registration.registered == {nameserver}
            reply = await ask.connection.call(GetRouteInfoByTopic(topic="broker-a"))
            queues = TopicRouteData.decode(reply.check().body).queue_datas[0]
            assert (queues.broker_name, queues.write_queue_nums, queues.perm) == ("broker-a", 1, 7)

    asyncio.run(scenario())


def test_the_store_of_a_stopped_broker(tmp_path: Path, nameserver: str, old: apache.ApacheServer) -> None:
    create_topic(nameserver, "Store")
    with metaq.Client(nameserver) as client, client.producer("moving") as producer:
        producer.send_many([metaq.Message("Store", b"read") for _ in range(10)])
        assert consume(nameserver, "Store") == [b"read"] * 10
        producer.send_many([metaq.Message("Store", b"waiting") for _ in range(10)])
    old.stop()
    new = Metaq("broker", "--config", str(old.home / "broker.conf"), home=tmp_path)
    try:
        assert consume(nameserver, "Store") == [b"waiting"] * 10
        assert brokers_of(nameserver, "Store") == {OLD}
        create_topic(nameserver, "Made")
        assert brokers_of(nameserver, "Made") == {OLD}
    finally:
        assert new.stop() == 0, new.child.tail()

    # And back: Apache's broker has the topics, the messages and the offsets.
    exported = run("config", "export", "--config", str(old.home / "broker.conf"))
    assert exported.returncode == 0, exported.stderr
    old.restart()
    eventually(lambda: routed(nameserver, "Made"), bool, 60, "in the route")
    assert consume(nameserver, "Store") == [b"new"] * 20
    assert consume(nameserver, "Made") == [b"new"] * 20
    with metaq.Client(nameserver) as client, client.producer("moving") as producer:
        producer.send_many([metaq.Message("Store", b"apache") for _ in range(5)])
    assert consume(nameserver, "Store") == [b"apache"] * 5
    old.stop()

    # A second time: what Apache's broker wrote meanwhile counts.
    new = Metaq("broker", "--config", str(old.home / "broker.conf"), home=tmp_path)
    try:
        assert consume(nameserver, "Store") == []
        assert routed(nameserver, "Made")
    finally:
        assert new.stop() == 0, new.child.tail()


def routed(nameserver: str, topic: str) -> bool:
    return run("topic", "show", topic, "--namesrv", nameserver).returncode == 0
