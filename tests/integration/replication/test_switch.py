"""A group with a register: election, planned switch, a master that comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import metaq.aio
from metaq.broker import Broker
from metaq.ha.conducting.conductor import SwitchRefused
from metaq.protocol.errors import Refused
from tests.support.broker_cluster import connected, started_nameserver
from tests.support.broker_group import BrokerGroup
from tests.support.etcd import Etcd
from tests.support.waiting import run, until


def register(etcd: Etcd) -> str:
    return f"etcd://{','.join(member.address for member in etcd.members)}"


async def send_all(broker: Broker, count: int, first: int = 0) -> None:
    async with connected(broker.address) as client:
        for number in range(first, first + count):
            await client.send("orders", b"%d" % number)


async def read_all(broker: Broker, count: int) -> list[int]:
    """Waits until this many messages are confirmed at this node, and returns all that are."""
    async with connected(broker.address) as client:
        await client.heartbeat("g", "orders")

        async def found() -> list[int]:
            bodies = [int(body) for body in await client.bodies("g", "orders")]
            return bodies if len(bodies) >= count else []

        return await until(found, 60, f"{count} messages")


def test_nodes_elect_a_master_and_another_one_after_it_stops(tmp_path: Path, etcd: Etcd) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register(etcd)) as group,
        ):
            await group.start()
            first = await group.master()
            await group.in_sync(1, 2, 3)
            await send_all(first, 20)
            first_id = next(node_id for node_id, broker in group.running.items() if broker is first)
            await group.stop(first_id)
            second = await group.master()
            assert await read_all(second, 20) == list(range(20))
            await send_all(second, 5, first=20)
            await group.start(first_id)
            await group.in_sync(1, 2, 3)
            assert await read_all(group.running[first_id], 25) == list(range(25))

    run(scenario)


def test_a_planned_switch_shows_no_error_to_a_sender(tmp_path: Path, etcd: Etcd) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register(etcd)) as group,
        ):
            await group.start()
            old = await group.master()
            await group.in_sync(1, 2, 3)
            old_id = next(node_id for node_id, broker in group.running.items() if broker is old)
            target = next(node_id for node_id in group.running if node_id != old_id)
            async with connected(old.address) as client:
                await client.send("orders", b"0")
                stop = asyncio.Event()

                async def send_on() -> int:
                    number = 1
                    while not stop.is_set():
                        await client.send("orders", b"%d" % number)
                        number += 1
                    return number

                sending = asyncio.create_task(send_on())
                assert old.group is not None
                await old.group.switch(target)
                new = await group.master()
                assert new is group.running[target]
                await asyncio.sleep(0.5)
                stop.set()
                count = await sending
            assert await read_all(new, count) == list(range(count))

    run(scenario)


def test_a_switch_to_a_node_that_is_not_in_sync_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    async def scenario() -> None:
        async with BrokerGroup(tmp_path, register=register(etcd), ids=(1, 2)) as group:
            await group.start()
            master = await group.master()
            assert master.group is not None
            with pytest.raises(SwitchRefused, match=r"node 9 (is not in sync|did not catch up)"):
                await master.group.switch(9)
            assert await until(lambda: master.is_master)

    run(scenario)


def test_switches_show_no_error_to_senders_at_any_node(tmp_path: Path, etcd: Etcd) -> None:
    """Java clients keep an old route for up to 30 s, and try a message three times without a pause."""

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register(etcd)) as group,
        ):
            await group.start()
            await group.master()
            await group.in_sync(1, 2, 3)
            stop = asyncio.Event()

            async def send_on(address: str) -> int:
                sent = 0
                async with connected(address) as client:
                    while not stop.is_set():
                        for tries_left in (2, 1, 0):
                            try:
                                await client.send("orders", b"x")
                            except Refused:
                                if tries_left == 0:
                                    raise
                            else:
                                break
                        sent += 1
                return sent

            async with connected((await group.master()).address) as client:
                await client.send("orders", b"x")
            sending = [asyncio.create_task(send_on(broker.address)) for broker in group.running.values()]
            for target in (2, 1, 3, 1, 2):
                master = await group.master()
                await group.in_sync(1, 2, 3)
                if master is not group.running[target]:
                    assert master.group is not None
                    await master.group.switch(target)
                assert await group.master() is group.running[target]
                await asyncio.sleep(0.2)
            stop.set()
            assert all(await asyncio.gather(*sending))

    run(scenario)


def test_an_offset_that_was_committed_at_the_next_master_is_kept(tmp_path: Path, etcd: Etcd) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register(etcd), ids=(1, 2)) as group,
        ):
            await group.start()
            old = await group.master()
            await group.in_sync(1, 2)
            replica = next(broker for broker in group.running.values() if broker is not old)
            async with connected(old.address) as client:
                await client.send("orders", b"x")
            assert replica.replica is not None
            # As the data plane does with a commit while there is no master, just before the promotion.
            replica.replica.plane.keep_offset("g", "orders", 0, 1)
            assert old.group is not None and replica.group is not None
            await old.group.switch(replica.group.node_id)
            new = await group.master()
            assert new is replica
            assert new.master.plane.offsets()["orders@g"] == {0: 1}

    run(scenario)


def test_planned_switches_deliver_every_delayed_message_once(tmp_path: Path, etcd: Etcd) -> None:
    """Also when a node becomes master again that has delivered long ago."""
    count = 600

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            BrokerGroup(tmp_path, nameserver.address, register=register(etcd)) as group,
        ):
            await group.start()
            await group.master()
            await group.in_sync(1, 2, 3)
            async with metaq.aio.Client(nameserver.address) as client, client.producer("g") as producer:
                await producer.send("orders", b"-1")
                began = time.monotonic()
                for number in range(count):
                    if number % 10:
                        await producer.send_soon("orders", b"%d" % number, delay=0.1 + number % 80 / 10)
                    else:
                        await producer.send_soon("orders", b"%d" % number, delay_level=1 + number // 10 % 2)
                await producer.flush()
                for target in (2, 1, 3, 1):
                    master = await group.master()
                    await group.in_sync(1, 2, 3)
                    if master is not group.running[target]:
                        assert master.group is not None
                        await master.group.switch(target)
                    await asyncio.sleep(1.5)
                await asyncio.sleep(max(began + 10 - time.monotonic(), 0))
            found: list[int] = []
            async with connected((await group.master()).address) as reader:
                await reader.heartbeat("g", "orders")
                for queue_id in range(4):
                    found += [int(body) for body in await reader.bodies("g", "orders", queue_id)]
            assert sorted(found) == list(range(-1, count))

    run(scenario)
