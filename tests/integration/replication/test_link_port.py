"""The replication port against peers that lie: the link is closed, nothing moves, and the log says why."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from metaq._core import LinkSocket
from metaq.ha.handshake import Identity, LinkRefused, OwnLog, introduce
from tests.support.broker_cluster import connected
from tests.support.broker_group import KEY, BrokerGroup
from tests.support.waiting import run, until

PAIR = (0, 1)
LOG = OwnLog(0, [], 0)


def peer(group: BrokerGroup, node_id: int = 1, *, cluster: str = "DefaultCluster") -> Identity:
    return Identity(cluster, group.name, node_id, "f" * 32)


@pytest.mark.parametrize(
    ("node_id", "cluster", "key", "reason"),
    [
        (1, "DefaultCluster", b"another key", "does not hold this group's key"),
        (1, "another", KEY, "cluster is 'another'"),
        (9, "DefaultCluster", KEY, "node 9 is not among the replica_ids"),
    ],
)
def test_a_stranger_is_refused_and_the_log_says_why(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    node_id: int,
    cluster: str,
    key: bytes,
    reason: str,
) -> None:
    async def scenario() -> None:
        async with BrokerGroup(tmp_path, ids=PAIR) as group:
            await group.start()
            master = await group.master()
            assert master.group is not None
            link = LinkSocket.connect(master.group.replication_address, 10_000)
            with pytest.raises(LinkRefused):
                await asyncio.to_thread(introduce, link, peer(group, node_id, cluster=cluster), key, LOG)
            link.close()
            await until(lambda: reason in caplog.text, 60, f"{reason!r} in the log")
            async with connected(master.address) as client:
                assert (await client.send("orders", b"goes on")).queue_offset == 0

    run(scenario)


def test_noise_on_the_port_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with BrokerGroup(tmp_path, ids=PAIR) as group:
            await group.start()
            master = await group.master()
            assert master.group is not None
            host, _, port = master.group.replication_address.rpartition(":")
            for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x02{}"):
                with socket.create_connection((host, int(port)), 10) as stranger:
                    stranger.sendall(noise)
            await until(lambda: "the replication port refuses" in caplog.text, 60, "a line in the log")
            async with connected(master.address) as client:
                assert (await client.send("orders", b"goes on")).queue_offset == 0
            replica = group.running[1]
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())

    run(scenario)
