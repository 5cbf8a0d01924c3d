"""A plain pair: a fixed master and its replica, without a register."""

from __future__ import annotations

from pathlib import Path

from metaq.broker.replication.offset_merge import FILE_NAME
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.offsets import QueryConsumerOffset, QueueOffset, UpdateConsumerOffset
from tests.support.broker_cluster import connected, started_nameserver
from tests.support.broker_group import BrokerGroup
from tests.support.waiting import run, until

PAIR = (0, 1)


def log_bytes(directory: Path) -> bytes:
    """The commit log without the zeros behind its end."""
    files = sorted((directory / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def test_a_replica_has_the_same_log_and_the_same_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR) as group,
        ):
            await group.start()
            master = await group.master()
            assert master is group.running[0]
            async with connected(master.address) as client:
                for number in range(50):
                    await client.send("orders", b"%d" % number, queue_id=number % 4)
            replica = group.running[1]
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())
            async with connected(replica.address) as reader:
                await reader.heartbeat("g", "orders")
                found = [body for queue in range(4) for body in await reader.bodies("g", "orders", queue)]
            assert sorted(map(int, found)) == list(range(50))
        assert log_bytes(group.directory_of(0)) == log_bytes(group.directory_of(1))

    run(scenario)


def test_readers_go_on_without_the_master_and_their_offsets_reach_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR) as group,
        ):
            await group.start()
            master = await group.master()
            async with connected(master.address) as client:
                for number in range(10):
                    await client.send("orders", b"%d" % number)
            replica = group.running[1]
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())
            await group.stop(0)
            async with connected(replica.address) as reader:
                await reader.heartbeat("g", "orders")
                assert len(await reader.bodies("g", "orders")) == 10
                commit = UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=7)
                (await reader.connection.call(commit)).check()
            await group.start(0)
            master = await group.master()
            query = QueryConsumerOffset(consumer_group="g", topic="orders", queue_id=0)

            async def committed() -> bool:
                async with connected(master.address) as client:
                    reply = await client.connection.call(query)
                    return reply.code == 0 and reply.header(QueueOffset).queue_offset == 7

            await until(committed, 60, "the offset of the replica at the master")

    run(scenario)


def test_an_offset_that_a_replica_took_outlives_its_restart(tmp_path: Path) -> None:
    """The replica has answered with success, and the master has never heard of it."""
    place = {"consumer_group": "g", "topic": "orders", "queue_id": 0}

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR) as group,
        ):
            await group.start()
            master = await group.master()
            async with connected(master.address) as client:
                for number in range(10):
                    await client.send("orders", b"%d" % number)
                await client.heartbeat("g", "orders")
                (await client.connection.call(UpdateConsumerOffset(**place, commit_offset=3))).check()
            replica = group.running[1]
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())
            await group.stop(0)
            async with connected(replica.address) as reader:
                (await reader.connection.call(UpdateConsumerOffset(**place, commit_offset=7))).check()
            await group.stop(1)
            await group.start(1)

            async def has_it(node: int) -> bool:
                async with connected(group.running[node].address) as client:
                    reply = await client.connection.call(QueryConsumerOffset(**place))
                    return reply.code == 0 and reply.header(QueueOffset).queue_offset == 7

            await until(lambda: has_it(1), 60, "the offset at the replica, which has restarted")
            await group.start(0)
            await group.master()
            await until(lambda: has_it(0), 60, "the offset of the replica at the master")
            kept = group.directory_of(1) / "config" / FILE_NAME
            await until(lambda: kept.read_bytes().endswith(b"[]"), 60, "nothing is kept twice")

    run(scenario)


def test_a_master_that_lost_its_disk_fetches_everything_from_its_replica(tmp_path: Path) -> None:
    import shutil

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR) as group,
        ):
            await group.start()
            master = await group.master()
            async with connected(master.address) as client:
                for number in range(20):
                    await client.send("orders", b"%d" % number)
            await until(lambda: group.running[1].store.confirmed_offset() == master.store.end_offset())
            await group.stop(0)
            shutil.rmtree(group.directory_of(0))
            await group.start(0)
            master = await group.master()
            async with connected(master.address) as client:
                await client.heartbeat("g", "orders")
                assert len(await client.bodies("g", "orders")) == 20
                sent = await client.send("orders", b"next")
                assert sent.queue_offset == 20

    run(scenario)


def test_a_replica_deletes_old_files_when_its_master_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, ids=PAIR, flush="async") as group,
        ):
            await group.start()
            master, replica = await group.master(), group.running[1]

            async def fill_files() -> None:
                async with connected(master.address) as client:
                    for _ in range(9):
                        await client.send("orders", bytes(1_000_000))
                await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())

            await fill_files()
            group.clock.advance_ms(100 * 3_600_000)
            await fill_files()
            assert replica.store.clean(force=True) == 0, "its master still has them"
            assert master.store.clean(force=True) > 0

            def same_start() -> bool:
                replica.store.clean()
                return replica.store.start_offset() == master.store.start_offset()

            await until(same_start)

    run(scenario)


def test_a_damaged_master_says_how_to_mend_it_and_its_replica_serves(tmp_path: Path) -> None:
    bodies = [b"body %d " % number * 40 for number in range(5)]

    async def damaged(nameserver: str) -> None:
        async with BrokerGroup(tmp_path, nameserver, ids=PAIR) as group:
            await group.start()
            master, replica = await group.master(), group.running[1]
            async with connected(master.address) as client:
                for body in bodies:
                    await client.send("orders", body)
                await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())
                flip_bit(group.directory_of(0), bodies[2])
                await client.heartbeat("g", "orders")
                assert (await client.pull("g", "orders"))[2] == 2
                code, records, next_offset = await client.pull("g", "orders", 2, hold_ms=100)
                assert (code, records, next_offset) == (ResponseCode.PULL_NOT_FOUND, [], 2)
            async with connected(replica.address) as reader:
                await reader.heartbeat("g", "orders")
                _, records, _ = await reader.pull("g", "orders", 2)
                assert [record.body for record in records] == bodies[2:]
            assert master.group is not None
            status = master.group.status
            await until(lambda: status().nodes[0].state == "damaged")
            assert "make a replica the master" in status().nodes[0].problem

    async def mended(nameserver: str) -> None:
        aside = tmp_path / "aside"
        for source, target in (("node-0", "aside"), ("node-1", "node-0"), ("aside", "node-1")):
            (tmp_path / source).rename(tmp_path / target)
        assert not aside.exists()
        async with BrokerGroup(tmp_path, nameserver, ids=PAIR) as group:
            await group.start()
            master, replica = await group.master(), group.running[1]
            await until(lambda: replica.node.scrubber.record.repaired == 1, 60)
            await until(lambda: not replica.store.known_damage(), 60)
            await group.in_sync(0, 1)
            async with connected(master.address) as client:
                await client.send("orders", b"after")
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())
        assert log_bytes(group.directory_of(0)) == log_bytes(group.directory_of(1))

    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            await damaged(nameserver.address)
            await mended(nameserver.address)

    run(scenario)


def flip_bit(directory: Path, body: bytes) -> None:
    (path,) = (directory / "commitlog").glob("0*0")
    with path.open("r+b") as file:
        at = file.read(1 << 20).index(body) + len(body) - 1
        file.seek(at)
        file.write(bytes([body[-1] ^ 8]))
