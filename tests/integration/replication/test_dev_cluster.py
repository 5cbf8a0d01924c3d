"""`metaq dev cluster` and the commands for its groups, on real etcd, name servers and brokers."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.admin import Admin
from metaq.cli.exits import UNHEALTHY
from metaq.dev.plan import Size
from metaq.dev.ports import free_base
from metaq.ha.group_record import EPOCHS_PER_ROUND
from tests.support.console_links import console_links
from tests.support.dev_cluster import DevCluster
from tests.support.metaq import COMMAND, Metaq, run
from tests.support.processes import command_lines
from tests.support.visitor import Visitor
from tests.support.waiting import eventually, wait_until

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Three nodes that are started again after a second."""
    home = tmp_path_factory.mktemp("dev")
    with pytest.MonkeyPatch.context() as patched:
        # A drained broker need not wait for Java clients here.
        patched.setenv("METAQ_RELAY_S", "1")
        with DevCluster(home, "--replicas", "3", "--nameservers", "2", "--restart-after", "1") as started:
            yield started


@pytest.fixture
def well(cluster: DevCluster) -> DevCluster:
    """The cluster with all its nodes in sync, whatever the test before did."""
    cluster.wait_in_sync(1, 2, 3)
    return cluster


def other_than(master: int) -> int:
    return next(node_id for node_id in (1, 2, 3) if node_id != master)


def test_the_ready_line_is_kept_in_a_file(cluster: DevCluster) -> None:
    assert list(cluster.ready) == ["nameservers", "register", "nodes"]
    assert (len(cluster.ready["nameservers"]), len(cluster.ready["register"])) == (2, 1)
    assert [(node["group"], node["id"]) for node in cluster.ready["nodes"]] == [
        ("broker-a", 1),
        ("broker-a", 2),
        ("broker-a", 3),
    ]
    assert all(list(node) == ["group", "id", "pid", "address"] for node in cluster.ready["nodes"])
    assert list(cluster.state) == list(cluster.ready)
    assert (cluster.data / "cluster.key").stat().st_mode & 0o777 == 0o600
    assert (cluster.data / "logs" / "broker-a-1.log").exists()


def test_the_status_for_programs_and_for_people(well: DevCluster) -> None:
    status = well.status()
    assert list(status) == ["name", "epoch", "master", "min_in_sync", "in_sync", "nodes"]
    assert (status["in_sync"], status["min_in_sync"]) == ([1, 2, 3], 2)
    assert [list(node) for node in status["nodes"]] == [
        [
            "id",
            "address",
            "role",
            "state",
            "lag_bytes",
            "lag_ms",
            "damaged_at",
            "problem",
            "register_fault",
            "ack_ms",
            "same_id",
        ]
    ] * 3
    assert [node["role"] for node in status["nodes"]].count("master") == 1
    assert [node["address"] for node in status["nodes"]] == [node["address"] for node in well.state["nodes"]]
    waited = well.run("cluster", "status", "--wait-healthy")
    assert waited.returncode == 0, waited.stderr
    table = waited.stdout
    assert table.startswith("Healthy: 3 brokers answer.")
    assert f"node {status['master']}" in table and "in sync" in table
    by_names = run("cluster", "status", "-o", "json", METAQ_NAMESRV=well.nameservers)
    assert json.loads(by_names.stdout)["groups"][0]["in_sync"] == [1, 2, 3], by_names.stderr


def test_a_planned_switch_keeps_every_message(well: DevCluster) -> None:
    before = well.status()
    target = other_than(before["master"])
    assert well.run("send", "Switched", "first").returncode == 0
    done = well.document("cluster", "switch", "broker-a", "--to", str(target))
    assert (done["from"], done["to"]) == (before["master"], target)
    assert done["epoch"] > before["epoch"] and done["took_ms"] > 0
    assert well.status()["master"] == target
    assert well.run("send", "Switched", "second").returncode == 0
    tail = well.run("tail", "Switched", "--from", "earliest", "--count", "2", "-o", "json")
    assert {json.loads(line)["body"] for line in tail.stdout.splitlines()} == {"first", "second"}
    again = well.run("cluster", "switch", "broker-a", "--to", str(target))
    assert again.returncode == 0 and "is master of broker-a already" in again.stdout


def test_the_console_switches_the_master_that_its_preview_showed(well: DevCluster, tmp_path: Path) -> None:
    console = Metaq(
        *("console", "--namesrv", well.nameservers, "--listen", "127.0.0.1:0"),
        *("--state", str(tmp_path / "state")),
        home=tmp_path,
    )
    try:
        visitor = Visitor(console.ready["console"])
        assert visitor.follow(console_links(console.ready).operator).status == 200
        page = eventually(
            lambda: visitor.get("/cluster").text, lambda text: "In sync" in text, TIMEOUT_S, "the first poll"
        )
        assert "3 of 3 nodes; 2 must be in sync" in page
        with Admin(well.nameservers) as admin:
            before = admin.brokers.group("broker-a")
            target = other_than(before.master)
            form = {"broker_group": "broker-a", "node": str(target)}
            preview = _posted(visitor, page, "/actions/switch-master/preview", form)
            assert f"metaq cluster switch broker-a --to {target}" in preview
            [seen] = re.findall(r'name="fingerprint" value="(\w+)"', preview)
            assert admin.brokers.switch("broker-a", target).master == target
            late = _posted(visitor, page, "/actions/switch-master/apply", {**form, "fingerprint": seen})
            assert f"Node {target} of broker-a is master already" in late
            form["node"] = str(before.master)
            preview = _posted(visitor, page, "/actions/switch-master/preview", form)
            [seen] = re.findall(r'name="fingerprint" value="(\w+)"', preview)
            done = _posted(visitor, page, "/actions/switch-master/apply", {**form, "fingerprint": seen})
            assert f"Node {before.master} is master of broker-a now" in done
            after = admin.brokers.group("broker-a")
            assert (after.master, after.epoch) == (before.master, before.epoch + EPOCHS_PER_ROUND)
    finally:
        console.stop()


def _posted(visitor: Visitor, page: str, path: str, form: dict[str, str]) -> str:
    """Sends a form with the token of the session, which is on every page."""
    [csrf] = set(re.findall(r'name="csrf" value="(\w+)"', page))
    return html.unescape(visitor.post(path, {**form, "csrf": csrf}).text)


def test_a_switch_to_a_node_that_does_not_exist(well: DevCluster) -> None:
    outcome = well.run("cluster", "switch", "broker-a", "--to", "9")
    assert outcome.returncode == 1
    assert outcome.stderr == "metaq: broker-a has no node 9; its nodes are 1, 2, 3\n"


def test_a_killed_master_is_replaced_and_started_again(well: DevCluster) -> None:
    master = well.status()["master"]
    killed = well.pid(master)
    assert well.run("send", "Killed", "kept").returncode == 0
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: well.pid(master) != killed, TIMEOUT_S, "a new process in cluster.json")
    status = well.wait_in_sync(1, 2, 3)
    assert status["master"] != master
    tail = well.run("tail", "Killed", "--from", "earliest", "--count", "1", "-o", "json")
    assert json.loads(tail.stdout)["body"] == "kept"
    assert f"broker-a-{master} was killed by SIGKILL; it starts again in 1 s" in well.log()


def test_a_drained_master_hands_over_and_stops(well: DevCluster) -> None:
    master = well.status()["master"]
    drained = well.pid(master)
    done = well.document("broker", "drain", f"broker-a/{master}")
    assert done["master"] != master
    assert done["broker"] == next(node["address"] for node in well.state["nodes"] if node["id"] == master)
    wait_until(lambda: well.pid(master) != drained, TIMEOUT_S, "it has stopped and is started again")
    assert f"broker-a-{master} ended with 0" in well.log()
    well.wait_in_sync(1, 2, 3)


def test_a_cluster_lives_on_in_its_directory(tmp_path: Path) -> None:
    with DevCluster(tmp_path, "--replicas", "2", "--nameservers", "1") as first:
        assert first.run("send", "Kept", "still here").returncode == 0
        second = run("dev", "cluster", "--data", str(first.data))
        assert second.returncode == 1 and "another `metaq dev cluster` runs in" in second.stderr
        master = first.status()["master"]
        os.kill(first.pid(master), signal.SIGKILL)
        dead = f"broker-a-{master} was killed by SIGKILL and stays dead"
        wait_until(lambda: dead in first.log(), TIMEOUT_S, dead)
        gone = eventually(
            first.status, lambda status: status["master"] not in (0, master), TIMEOUT_S, "another master"
        )
        assert {node["id"]: node["state"] for node in gone["nodes"]}[master] == "gone"
        shown = first.run("cluster", "status")
        assert shown.returncode == UNHEALTHY and shown.stdout.startswith("Unhealthy: in broker-a, node ")
        assert "takes no messages" in shown.stdout
        started = first.pids()
        assert len(started) == 3, "etcd, a name server and a broker"
        assert first.process.stop() == 0
        assert first.pids() == []
    with DevCluster(tmp_path, "--replicas", "2", "--nameservers", "1") as again:
        tail = again.run("tail", "Kept", "--from", "earliest", "--count", "1", "-o", "json")
        assert json.loads(tail.stdout)["body"] == "still here"
        assert len(again.pids()) == 4
        again.process.kill()
        wait_until(lambda: again.pids() == [], TIMEOUT_S, "nothing outlives a killed parent")


def test_a_forced_switch_says_what_may_be_lost(tmp_path: Path) -> None:
    with DevCluster(tmp_path, "--replicas", "2", "--nameservers", "1") as cluster:
        before = cluster.status()
        master, other = before["master"], 3 - before["master"]
        os.kill(cluster.pid(other), signal.SIGKILL)
        eventually(
            cluster.status,
            lambda status: status["nodes"][other - 1]["state"] == "gone",
            TIMEOUT_S,
            "the replica is gone",
        )
        order = ("cluster", "switch", "broker-a", "--to", str(other), "--force")
        refused = cluster.run(*order, text="n\n")
        assert refused.returncode == 1
        assert f"Node {master} is master of broker-a and answers" in refused.stderr
        assert f"Node {other} is gone" in refused.stderr
        assert cluster.status()["epoch"] == before["epoch"], "nothing was written"
        forced = cluster.document(*order, "--yes")
        assert forced["to"] == other and forced["epoch"] > before["epoch"]
        after = cluster.status()
        assert (after["master"], after["in_sync"]) == (other, [other])


# Starts that fail


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    base = free_base(Size(1, 1, 1).distances())
    with socket.socket() as taken:
        # A connection of another test may have ended there a moment ago.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", base + 2))
        taken.listen()
        outcome = run(
            *("dev", "cluster", "--data", str(tmp_path / "cluster"), "--port-base", str(base)),
            *("--replicas", "1", "--nameservers", "1"),
        )
    assert outcome.returncode == 1 and outcome.stdout == ""
    assert "nameserver-1 ended with 1 during the start" in outcome.stderr
    assert "the last lines of" in outcome.stderr and "Address already in use" in outcome.stderr
    assert not any(str(tmp_path / "cluster") in line for line in command_lines())


def test_a_signal_during_the_start_stops_everything(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    starting = subprocess.Popen(
        [*COMMAND, "dev", "cluster", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert starting.stderr is not None
    assert starting.stderr.readline().startswith("etcd starts at ")
    starting.terminate()
    out, _ = starting.communicate(timeout=TIMEOUT_S)
    assert (starting.returncode, out) == (0, "")
    assert not any(str(data) in line for line in command_lines())


@pytest.mark.parametrize(
    "address", ["etcd://127.0.0.1:1", "etcd://nobody.invalid:2379"], ids=["refused", "unknown host"]
)
def test_an_unreachable_register_is_named_soon(address: str) -> None:
    outcome = subprocess.run(
        [*COMMAND, "cluster", "status", "--register", address], capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("metaq: the register is unavailable: ")
    assert address.removeprefix("etcd://") in outcome.stderr
