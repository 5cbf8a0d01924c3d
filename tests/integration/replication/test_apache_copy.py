"""A broker behind an Apache master. A broker of ours plays that master, over Apache's protocol."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metaq._core import Clock
from metaq.broker import Broker
from metaq.broker.replication import apache_move
from metaq.broker.replication.apache_source import ApacheSource, MasterFacts
from metaq.broker.replication.apache_start import FILE_NAME, read_mark
from metaq.errors import CommandError, ConfigError
from metaq.metadata import MetadataDamaged
from metaq.protocol.bodies import ClusterInfo, HaStatus
from metaq.protocol.commands.admin import GetBrokerHaStatus
from metaq.protocol.commands.offsets import QueryConsumerOffset, QueueOffset, UpdateConsumerOffset
from metaq.protocol.commands.replication import GetGroupStatus, GroupStatus, SwitchMaster
from metaq.protocol.commands.routes import GetBrokerClusterInfo
from metaq.protocol.commands.topics import GetAllTopicConfig
from metaq.protocol.errors import Refused
from metaq.settings import MIB
from tests.support.broker_cluster import (
    broker_options,
    connected,
    small_store,
    started_broker,
    started_nameserver,
)
from tests.support.processes import free_port
from tests.support.waiting import run, until

FILE_BYTES = MIB


def store(directory: Path) -> dict[str, object]:
    return {"store": dataclasses.replace(small_store(directory), commit_log_file_bytes=FILE_BYTES)}


@pytest.fixture(autouse=True)
def shortly_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apache_move, "QUIET_S", 0.3)
    monkeypatch.setattr(apache_move, "LOOK_INTERVAL_S", 0.1)


@asynccontextmanager
async def apache_master(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Starts the master. Only its settings are those of an Apache broker."""
    listen = f"127.0.0.1:{free_port()}"

    async def facts(source: ApacheSource) -> MasterFacts:
        await source.log_range()
        return MasterFacts("broker-a", "DefaultCluster", listen, FILE_BYTES, 4 * MIB, "")

    monkeypatch.setattr(ApacheSource, "facts", facts)
    options = broker_options(directory, apache_ha_listen=listen)
    async with started_broker(dataclasses.replace(options, **store(directory))) as broker:  # type: ignore[arg-type]
        yield broker


def copying(directory: Path, master: str | None, *nameservers: str) -> Broker:
    options = broker_options(directory, *nameservers, apache_master=master)
    return Broker(dataclasses.replace(options, **store(directory)), Clock())  # type: ignore[arg-type]


async def fill(address: str, count: int) -> None:
    async with connected(address) as client:
        for number in range(count):
            await client.send("Orders", b"%d" % (number % 10) * 20_000)
        await client.heartbeat("billing", "Orders")
        commit = UpdateConsumerOffset(consumer_group="billing", topic="Orders", queue_id=0, commit_offset=1)
        (await client.connection.call(commit)).check()


async def status(address: str) -> GroupStatus:
    async with connected(address) as ask:
        return GroupStatus.decode((await ask.connection.call(GetGroupStatus())).check().body)


async def switch(address: str, *, target: int = 0, force: bool = False) -> None:
    async with connected(address) as ask:
        (await ask.connection.call(SwitchMaster(target=target, force=force), timeout=60)).check()


async def is_in_sync(address: str) -> bool:
    own = (await status(address)).node(1)
    return own is not None and (own.state, own.lag_bytes) == ("in sync", 0)


def test_a_copy_serves_nobody_until_it_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = tmp_path / "ours"

    async def while_the_master_runs(copy: Broker, master: Broker) -> None:
        await until(lambda: is_in_sync(copy.address), what="in sync")
        found = await status(copy.address)
        assert [(node.id, node.address, node.role) for node in found.nodes] == [
            (0, master.address, "master"),
            (1, copy.address, "replica"),
        ]
        assert (found.name, found.master, found.epoch) == ("broker-a", 0, 0)
        async with connected(copy.address) as client:
            with pytest.raises(Refused, match=r"\[ROLE\].*code 14"):
                await client.send("Orders", b"too early")
            with pytest.raises(Refused, match=r"\[ROLE\] this broker copies the Apache master.*code 14"):
                (await client.connection.call(GetAllTopicConfig())).check()
            reply = (await client.connection.call(GetBrokerHaStatus())).check()
            source = HaStatus.decode(reply.body).ha_client_runtime_info
            assert source is not None and (source.master_addr, source.activated) == (master.address, True)
        with pytest.raises(Refused, match="can only take its place"):
            await switch(copy.address, target=2)
        await until(lambda: refused(copy.address, "still runs"), what="refused")
        assert await refused(copy.address, "still runs", force=True)
        assert await is_in_sync(copy.address), "it goes on"

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            async with apache_master(tmp_path / "theirs", monkeypatch) as master:
                await fill(master.address, 100)
                copy = copying(ours, master.address, nameserver.address)
                await copy.start()
                await while_the_master_runs(copy, master)
                assert await registered(nameserver.address) == [], "it is not registered"
                theirs = master.address
            await until(lambda: master_is_gone(copy.address), what="noticed")
            await switch(copy.address)
            assert copy.is_master and copy.apache is not None and copy.apache.master_address is None
            assert await registered(nameserver.address) == [copy.address]
            await has_everything(copy, 100)
            await copy.stop()
            with caplog.at_level(logging.WARNING):
                again = copying(ours, theirs)
                await again.start()
            assert f"apache_master={theirs} has no effect any more" in caplog.text
            await has_everything(again, 101)
            await again.stop()

    run(scenario)


async def registered(nameserver: str) -> list[str]:
    async with connected(nameserver) as ask:
        info = ClusterInfo.decode((await ask.connection.call(GetBrokerClusterInfo())).check().body)
        return [address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()]


async def refused(address: str, reason: str, *, force: bool = False) -> bool:
    try:
        await switch(address, force=force)
    except Refused as error:
        return reason in error.remark
    raise AssertionError("it took over")


async def master_is_gone(address: str) -> bool:
    master = (await status(address)).node(0)
    return master is not None and master.state == "gone"


async def has_everything(broker: Broker, count: int) -> None:
    """Reads all messages and the committed offset, and stores one more."""
    async with connected(broker.address) as client:
        await client.heartbeat("billing", "Orders")
        assert len(await client.bodies("billing", "Orders")) == count
        query = QueryConsumerOffset(consumer_group="billing", topic="Orders", queue_id=0)
        assert (await client.connection.call(query)).check().header(QueueOffset).queue_offset == 1
        assert (await client.send("Orders", b"new")).queue_offset == count


def test_a_copy_begins_where_the_masters_log_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with apache_master(tmp_path / "theirs", monkeypatch) as master:
            await fill(master.address, 120)
        # Apache's broker deletes old files without a word to anybody.
        min((tmp_path / "theirs" / "commitlog").glob("0*")).unlink()
        (tmp_path / "theirs" / "log_start").unlink()
        async with apache_master(tmp_path / "theirs", monkeypatch) as master:
            copy = copying(tmp_path / "ours", master.address)
            await copy.start()
            await until(lambda: is_in_sync(copy.address), what="in sync")
            assert copy.store.start_offset() == FILE_BYTES
            assert copy.store.end_offset() == master.store.end_offset()
            await until(lambda: refused(copy.address, "still runs"), what="complete")
        await switch(copy.address)
        async with connected(copy.address) as client:
            assert (await client.send("Orders", b"new")).queue_offset == 120
        await copy.stop()

    run(scenario)


def test_a_copy_whose_master_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "ours"

    async def scenario() -> None:
        async with apache_master(tmp_path / "theirs", monkeypatch) as master:
            await fill(master.address, 10)
            theirs = master.address
            copy = copying(ours, theirs)
            await copy.start()
            await until(lambda: is_in_sync(copy.address), what="in sync")
            await copy.stop()
        with pytest.raises(ConfigError, match="is an unfinished copy of the Apache master"):
            await copying(ours, None).start()

        # It starts without its master, because that may be lost for good.
        copy = copying(ours, theirs)
        await copy.start()
        own = (await status(copy.address)).node(1)
        assert own is not None and (own.state, own.lag_bytes) == ("waiting", None)
        assert await refused(copy.address, "an unknown number of bytes behind")
        await switch(copy.address, force=True)
        await has_everything(copy, 10)
        await copy.stop()
        assert (mark := read_mark(ours)) is not None and mark.taken_over
        broker = copying(ours, None)
        await broker.start()
        await has_everything(broker, 11)
        await broker.stop()

    run(scenario)


def test_a_take_over_that_fails_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that makes it final cannot be written the first time."""
    obstacle = tmp_path / "ours" / f"{FILE_NAME}.tmp"

    async def scenario() -> None:
        async with apache_master(tmp_path / "theirs", monkeypatch) as master:
            await fill(master.address, 10)
            copy = copying(tmp_path / "ours", master.address)
            await copy.start()
            await until(lambda: refused(copy.address, "still runs"), what="complete")
        obstacle.mkdir()
        with pytest.raises(Refused, match="IsADirectoryError"):
            await switch(copy.address)
        assert not copy.is_master
        async with connected(copy.address) as client:
            with pytest.raises(Refused, match=r"\[ROLE\]"):
                await client.send("Orders", b"too early")
        obstacle.rmdir()
        await switch(copy.address)
        await has_everything(copy, 10)
        await copy.stop()

    run(scenario)


def test_starts_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        nowhere = f"127.0.0.1:{free_port()}"
        with pytest.raises(CommandError, match=f"the Apache master {nowhere} cannot be reached"):
            await copying(tmp_path / "ours", nowhere).start()
        assert not (tmp_path / "ours").exists(), "nothing is left"
        async with apache_master(tmp_path / "theirs", monkeypatch) as master:
            await fill(master.address, 1)
            address = master.address
            await copying_other_name(tmp_path / "ours", address)
        with pytest.raises(ConfigError, match="commitlog has files already"):
            await copying(tmp_path / "theirs", address).start()
        (tmp_path / "theirs" / FILE_NAME).write_text('{"version":2}')
        with pytest.raises(MetadataDamaged, match="cannot be read"):
            await copying(tmp_path / "theirs", None).start()

    run(scenario)


async def copying_other_name(directory: Path, master: str) -> None:
    broker = copying(directory, master)
    named = dataclasses.replace(broker.options.broker, name="broker-b")
    broker.options = dataclasses.replace(broker.options, broker=named)
    with pytest.raises(ConfigError, match="name=broker-b differs from 'broker-a'"):
        await broker.start()
