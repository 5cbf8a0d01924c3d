"""Real clients of every language live through kills, planned switches and a rolling restart."""

from __future__ import annotations

import os
import signal
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.replication.streams import AllClients, PythonStream
from tests.support.dev_cluster import DevCluster
from tests.support.rounds import rounds
from tests.support.waiting import wait_until

TOPIC = "clients"


def _switch_target(cluster: DevCluster) -> int:
    status = cluster.wait_in_sync(1, 2, 3)
    return next(node_id for node_id in (1, 2, 3) if node_id != status["master"])


@pytest.mark.parametrize("kills", [rounds(3, 20)])
def test_the_pause_after_a_kill_of_the_master(tmp_path: Path, kills: int) -> None:
    """A client of ours, which asks for a new route when a send fails, and then a planned switch."""
    with DevCluster(tmp_path, "--replicas", "3", "--nameservers", "2", "--restart-after", "1") as cluster:
        assert cluster.run("topic", "create", TOPIC, "--queues", "4").returncode == 0
        stream = PythonStream(cluster.nameservers, TOPIC)
        stream.start()
        pauses = []
        for _ in range(kills):
            master = cluster.wait_in_sync(1, 2, 3)["master"]
            moment = time.monotonic()
            os.kill(cluster.pid(master), signal.SIGKILL)
            pauses.append(stream.pause_after(moment))
            wait_until(lambda old=master: cluster.status()["master"] not in (0, old), 60, "another master")
        assert stream.errors == []
        switches = []
        for _ in range(rounds(2, 10)):
            target = _switch_target(cluster)
            moment = time.monotonic()
            assert cluster.run("cluster", "switch", "broker-a", "--to", str(target)).returncode == 0
            switches.append(stream.pause_after(moment))
        stream.stop()
        assert stream.errors == []
        tail = cluster.run("tail", TOPIC, "--from", "earliest", "--count", str(len(stream.acknowledged)))
        assert tail.returncode == 0
        print(_figures("kill -9 of the master", pauses))
        print(_figures("planned switch", switches))
        assert statistics.median(pauses) < 10 and statistics.median(switches) < 10


def _figures(what: str, pauses: list[float]) -> str:
    ordered = sorted(pauses)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return f"pause, {what}: p50 {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, {len(ordered)} times"


@pytest.mark.soak
def test_all_clients_live_through_a_kill_and_see_no_error_in_a_switch(tmp_path: Path) -> None:
    with (
        DevCluster(tmp_path, "--replicas", "3", "--nameservers", "2", "--restart-after", "1") as cluster,
        ExitStack() as stack,
    ):
        assert cluster.run("topic", "create", TOPIC, "--queues", "4").returncode == 0
        clients = AllClients(cluster.nameservers, TOPIC, tmp_path, stack)
        clients.wait_for_more()
        for _ in range(rounds(2, 3)):
            target = _switch_target(cluster)
            assert cluster.run("cluster", "switch", "broker-a", "--to", str(target)).returncode == 0
            clients.wait_for_more(100)
        assert clients.errors() == {name: [] for name in clients.errors()}, "a planned switch"
        master = cluster.wait_in_sync(1, 2, 3)["master"]
        os.kill(cluster.pid(master), signal.SIGKILL)
        clients.wait_for_more(100)
        print(clients.finish(), {name: len(errors) for name, errors in clients.errors().items()})


@pytest.mark.soak
def test_a_rolling_restart_by_drain_shows_no_error_to_any_client(tmp_path: Path) -> None:
    """With the default of 35 s, because Java clients ask for routes every 30 s."""
    with (
        DevCluster(tmp_path, "--replicas", "3", "--nameservers", "2", "--restart-after", "0") as cluster,
        ExitStack() as stack,
    ):
        assert cluster.run("topic", "create", TOPIC, "--queues", "4").returncode == 0
        clients = AllClients(cluster.nameservers, TOPIC, tmp_path, stack)
        clients.wait_for_more()
        for node_id in (1, 2, 3):
            cluster.wait_in_sync(1, 2, 3)
            before = cluster.pid(node_id)
            drained = cluster.run("broker", "drain", f"broker-a/{node_id}")
            assert drained.returncode == 0, drained.stderr
            wait_until(lambda old=before, at=node_id: cluster.pid(at) != old, 90, "it was started again")
            clients.wait_for_more(50)
        cluster.wait_in_sync(1, 2, 3)
        sent = clients.finish()
        print(sent, {name: len(errors) for name, errors in clients.errors().items()})
        assert clients.errors() == {name: [] for name in sent}
