"""Moving between Apache's broker and ours while both run, over Apache's replication protocol (DefaultHA)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from metaq._core import Clock, Store
from metaq.broker.replication.apache_move import ApacheMove, MovePhase, first_look
from metaq.broker.state.apache_files import open_journal
from metaq.broker.state.offsets import OFFSETS, decode_offsets, offsets_in
from metaq.errors import CommandError
from metaq.journal.journal import Journal
from metaq.protocol.bodies import HaStatus, TopicConfigTable
from metaq.protocol.commands.admin import GetBrokerHaStatus, UpdateBrokerConfig
from metaq.protocol.commands.offsets import (
    GetAllConsumerOffset,
    GetMaxOffset,
    QueueOffset,
    UpdateConsumerOffset,
)
from metaq.protocol.commands.topics import GetAllTopicConfig
from metaq.settings import MIB, StoreSettings
from tests.interop.clients import Clients, bodies, wait_for_bodies
from tests.interop.driver import Driver
from tests.interop.kinds import newest_once
from tests.support import apache
from tests.support.broker_cluster import broker_options, connected, small_store, started_broker
from tests.support.metaq import Metaq
from tests.support.processes import free_port
from tests.support.servers import Cluster, uses_apache
from tests.support.waiting import run, until

pytestmark = pytest.mark.skipif(uses_apache(), reason="these tests start both kinds of servers")
FILE_BYTES = MIB
SMALL = {"mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 20_000}


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache.ApacheServer]:
    server = apache.start_nameserver(tmp_path_factory.mktemp("nameserver"), jvm_flags=apache.SHORT_LIVED)
    yield server
    server.stop()


def store_settings(directory: Path) -> StoreSettings:
    return replace(small_store(directory, "sync"), commit_log_file_bytes=FILE_BYTES)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Store, Journal]]:
    store = await asyncio.to_thread(Store, store_settings(directory), Clock())
    journal = await open_journal(directory)
    try:
        yield store, journal
    finally:
        await journal.close()
        await asyncio.to_thread(store.close)


def log_bytes(directory: Path, end_offset: int) -> bytes:
    """The content of the commit log's files, all of which begin at 0 here."""
    files = sorted((directory / "commitlog").glob("*0*"))
    return b"".join(file.read_bytes() for file in files)[:end_offset]


def large(count: int, prefix: str) -> list[dict[str, Any]]:
    """Messages of 20 kB. Their bodies are short, because the client would compress long ones."""
    padding = {"padding": "x" * 20_000}
    return [{"body": f"{prefix}-{number}", "properties": padding} for number in range(count)]


async def ha_status(address: str) -> HaStatus:
    async with connected(address) as ask:
        return HaStatus.decode((await ask.connection.call(GetBrokerHaStatus())).check().body)


async def configure(address: str, setting: str) -> None:
    async with connected(address) as ask:
        (await ask.connection.call(UpdateBrokerConfig(), setting.encode())).check()


@dataclass(frozen=True)
class WayBack:
    """A master of ours and the Apache slave behind it."""

    master: Metaq
    data: Path
    slave: apache.ApacheServer


@pytest.fixture(scope="module")
def way_back(tmp_path_factory: pytest.TempPathFactory, nameserver: apache.ApacheServer) -> Iterator[WayBack]:
    home = tmp_path_factory.mktemp("back")
    listen, slaves = (f"127.0.0.1:{free_port(neighbours=neighbours)}" for neighbours in ((-2,), ()))
    identity = ("--name", "broker-b", "--listen", listen, "--namesrv", nameserver.address)
    settings = (f"commit_log_file_bytes={FILE_BYTES}", f"apache_ha_listen={slaves}")
    chosen = [part for setting in settings for part in ("--set", setting)]
    master = Metaq("broker", *identity, "--data", str(home / "data"), *chosen, home=home)
    run(lambda: fill(listen))
    slave = apache.start_broker(
        home / "slave",
        [nameserver.address],
        name="broker-b",
        heap="512m",
        jvm_flags=apache.SHORT_LIVED,
        settings={**SMALL, "brokerRole": "SLAVE", "brokerId": 1, "timerWheelEnable": True},
    )
    yield WayBack(master, home / "data", slave)
    slave.stop()
    if master.child.alive:
        assert master.stop() == 0, master.child.tail()


async def fill(address: str) -> None:
    """Writes more than one file of messages and commits an offset."""
    async with connected(address) as client:
        for number in range(200):
            await client.send("Back", b"%d" % number * 3_000, queue_id=number % 2)
        await client.heartbeat("billing", "Back")
        commit = UpdateConsumerOffset(consumer_group="billing", topic="Back", queue_id=0, commit_offset=42)
        (await client.connection.call(commit)).check()


async def queue_ends(address: str) -> list[int]:
    async with connected(address) as ask:
        replies = [
            await ask.connection.call(GetMaxOffset(topic="Back", queue_id=queue_id)) for queue_id in range(2)
        ]
        return [reply.header(QueueOffset).queue_offset if reply.code == 0 else 0 for reply in replies]


def test_an_apache_slave_copies_our_log(way_back: WayBack) -> None:
    ours, theirs = way_back.master.broker, way_back.slave.address

    async def is_same() -> bool:
        end_offset = (await ha_status(ours)).master_commit_log_max_offset
        logs = [log_bytes(home, end_offset) for home in (way_back.data, way_back.slave.home / "store")]
        return len(logs[0]) == end_offset and logs[0] == logs[1]

    async def has_same_queues() -> bool:
        return await queue_ends(ours) == await queue_ends(theirs)

    async def scenario() -> None:
        for queue_id in range(2):
            await until(is_same, what="copied")
            await until(has_same_queues, what="dispatched")
            async with connected(ours) as client:
                await client.send("Back", b"while it follows", queue_id=queue_id)
        await until(is_same, what="copied")
        assert await queue_ends(ours) == [101, 101]

    run(scenario)


@newest_once
def test_a_live_move_from_an_apache_master(
    tmp_path: Path, nameserver: apache.ApacheServer, java_driver: Driver
) -> None:
    settings = {**SMALL, "brokerRole": "SYNC_MASTER", "haSendHeartbeatInterval": 1_000}
    master = apache.start_broker(
        tmp_path / "apache",
        [nameserver.address],
        heap="512m",
        jvm_flags=apache.SHORT_LIVED,
        settings=settings,
    )
    java = Clients(java_driver, Cluster([nameserver], {"broker-a": master}))
    try:
        run(lambda: live_move(tmp_path / "ours", nameserver, master, java))
    finally:
        java.close()
        master.stop()


async def live_move(
    ours: Path, nameserver: apache.ApacheServer, master: apache.ApacheServer, java: Clients
) -> None:
    topic = await asyncio.to_thread(java.topic, queues=2)
    producer = await asyncio.to_thread(java.producer)
    consumer = await asyncio.to_thread(java.push_consumer, topic, group=f"{topic}-billing")
    read = large(120, "read")
    await asyncio.to_thread(producer.send, topic, read)
    await asyncio.to_thread(wait_for_bodies, [consumer], bodies(read))
    await asyncio.to_thread(consumer.stop)
    # Apache writes offsets every 5 s, and this test will kill it.
    kept = master.home / "store" / "config" / "consumerOffset.json"
    group = f"{topic}@{topic}-billing"
    await until(
        lambda: kept.exists() and decode_offsets(kept.read_bytes()).offset_table.get(group) == {0: 60, 1: 60},
        what="written by Apache",
    )
    with pytest.raises(CommandError, match=f"mappedFileSizeCommitLog={FILE_BYTES}"):
        await first_look(master.address, 2 * FILE_BYTES)

    async with opened(ours) as (store, journal):
        move = ApacheMove(master.address, store, journal)
        facts = await move.start()
        assert (facts.broker_name, facts.log_file_bytes) == ("broker-a", FILE_BYTES)
        await until(lambda: move.state.caught_up, what="caught up")
        assert store.end_offset() > 2 * FILE_BYTES

        # The master waits for what this replica reports.
        await configure(master.address, "inSyncReplicas=2\n")
        waiting = large(20, "waiting")
        sent = await asyncio.to_thread(producer.send, topic, waiting)
        assert {each["status"] for each in sent} == {"SEND_OK"}
        slaves = (await ha_status(master.address)).ha_connection_info
        assert [slave.slave_ack_offset for slave in slaves] == [store.held_offset()]

        # It goes on where it was after the master was killed.
        await asyncio.to_thread(master.kill)
        await until(lambda: not move.state.is_master_reachable, what="noticed")
        with pytest.raises(CommandError, match="cannot take over"):
            await move.take_over()
        await asyncio.to_thread(master.restart)
        again = [*large(5, "again"), {"body": "later", "delay_level": 18}]
        await until(lambda: move.state.caught_up, what="caught up again")
        await asyncio.to_thread(producer.send, topic, again)

        await until(lambda: move.state.is_complete, what="complete")
        end_offset = store.end_offset()
        assert log_bytes(ours, end_offset) == log_bytes(master.home / "store", end_offset)
        assert sum(store.max_offset(topic, queue_id) for queue_id in range(2)) == 145
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1
        with pytest.raises(CommandError, match="still runs"):
            await move.take_over()
        await asyncio.to_thread(master.stop)
        final = await move.take_over()
        assert (final.phase, final.bytes_behind) == (MovePhase.ENDED, 0)
        assert offsets_in(journal, OFFSETS)[group] == {0: 60, 1: 60}

    # A broker on that store has the topic, the offsets, and the place for the next message.
    options = replace(broker_options(ours, nameserver.address), store=store_settings(ours))
    async with started_broker(options) as broker:
        assert topic in broker.master.state.topics
        consumer = await asyncio.to_thread(java.push_consumer, topic, group=f"{topic}-billing")
        rest = bodies(waiting) + bodies(again[:-1])
        found = await asyncio.to_thread(wait_for_bodies, [consumer], rest)
        assert sorted(bodies(found)) == sorted(rest), "nothing is read twice"
        await asyncio.to_thread(consumer.stop)
        ends = broker.store.queue_ends()[topic]
        # The old one would look for the new address only 30 s after its last look.
        producer = await asyncio.to_thread(java.producer)
        [new] = await asyncio.to_thread(producer.send, topic, [{"body": "new"}])
        assert new["queue_offset"] == ends[new["queue_id"]]


def test_an_apache_slave_takes_over_from_our_master(way_back: WayBack) -> None:
    """Apache's slaves ask for control state 60 s after their start, so another test comes before this one."""

    async def has_state() -> bool:
        async with connected(slave.address) as ask:
            topics = TopicConfigTable.decode((await ask.connection.call(GetAllTopicConfig())).check().body)
            offsets = decode_offsets((await ask.connection.call(GetAllConsumerOffset())).check().body)
            return "Back" in topics.topic_config_table and offsets.offset_table.get("Back@billing") == {0: 42}

    async def scenario() -> None:
        await until(has_state, timeout_s=120, what="the topic and the committed offset are there")
        ends = await queue_ends(way_back.master.broker)
        assert await asyncio.to_thread(way_back.master.stop) == 0
        await asyncio.to_thread(slave.stop)
        conf = slave.home / "broker.conf"
        conf.write_text(
            conf.read_text()
            .replace("brokerRole=SLAVE", "brokerRole=ASYNC_MASTER")
            .replace("brokerId=1", "brokerId=0")
        )
        await asyncio.to_thread(slave.restart)
        assert await has_state()
        assert await queue_ends(slave.address) == ends
        async with connected(slave.address) as client:
            sent = await client.send("Back", b"on Apache again", queue_id=1)
            assert sent.queue_offset == ends[1]

    slave = way_back.slave
    run(scenario)
