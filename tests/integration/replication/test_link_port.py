"""The replication port against peers that lie: the link is closed, nothing moves, and the log says why."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from metaq._core import LinkSocket
from metaq.ha.handshake import Identity, LinkRefused, OwnLog, introduce
from metaq.protocol.handling.peer_log import LINES_MAX
from tests.support.broker_cluster import connected
from tests.support.broker_group import KEY, BrokerGroup
from tests.support.waiting import run, until

PAIR = (0, 1)
LOG = OwnLog(0, [], 0)
REFUSES = "the replication port refuses"


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
            await until(lambda: REFUSES in caplog.text, 60, "a line in the log")
            async with connected(master.address) as client:
                assert (await client.send("orders", b"goes on")).queue_offset == 0
            replica = group.running[1]
            await until(lambda: replica.store.confirmed_offset() == master.store.end_offset())

    run(scenario)


def test_a_peer_cannot_fill_the_log_with_refusals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every message announces another length, which the refusal names."""

    def refused(host: str, port: int, length: int) -> None:
        with socket.create_connection((host, port), 10) as stranger:
            stranger.sendall(length.to_bytes(4, "big"))
            assert not stranger.recv(1)

    async def scenario() -> None:
        async with BrokerGroup(tmp_path, ids=PAIR) as group:
            await group.start()
            master = await group.master()
            assert master.group is not None
            host, _, port = master.group.replication_address.rpartition(":")
            for extra in range(3 * LINES_MAX):
                await asyncio.to_thread(refused, host, int(port), 2**31 + extra)
            assert 1 <= caplog.text.count("the peer announced a message of") < 3 * LINES_MAX

    run(scenario)
