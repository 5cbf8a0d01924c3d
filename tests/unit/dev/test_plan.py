"""The processes of a development cluster."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from metaq.config.derive import OLD_PORT_DISTANCE
from metaq.dev import plan as plans
from metaq.dev.child import described_end
from metaq.dev.plan import Plan, Size, environment, find_etcd
from metaq.dev.ports import free_base, is_free
from metaq.dev.readiness import lacks
from metaq.errors import CommandError, ConfigError
from metaq.protocol.commands.replication import GroupStatus, NodeStatus

DATA = Path("/somewhere")


def planned(groups: int = 2, replicas: int = 3, nameservers: int = 2) -> Plan:
    return Plan(Size(groups, replicas, nameservers), DATA, 20_000, "/bin/etcd")


def value(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_nodes_are_named_by_group_and_id() -> None:
    nodes = list(planned().node_processes())
    assert [(node.name, node.group, node.id) for node in nodes] == [
        *(("broker-a-1", "broker-a", 1), ("broker-a-2", "broker-a", 2), ("broker-a-3", "broker-a", 3)),
        *(("broker-b-1", "broker-b", 1), ("broker-b-2", "broker-b", 2), ("broker-b-3", "broker-b", 3)),
    ]
    command = nodes[4].command
    assert command[command.index("broker") :][:5] == ("broker", "--name", "broker-b", "--id", "2")
    assert value(command, "--listen") == nodes[4].address
    assert value(command, "--register") == "etcd://127.0.0.1:20000"
    assert value(command, "--namesrv") == "127.0.0.1:20002;127.0.0.1:20003"
    assert value(command, "--data") == str(DATA / "broker-b-2")
    assert "--flush" not in command and "--min-in-sync" not in command


def test_a_group_of_one_needs_no_second_node() -> None:
    [node] = planned(groups=1, replicas=1).node_processes()
    assert value(node.command, "--min-in-sync") == "1"


def test_the_flush_mode_reaches_the_brokers() -> None:
    plan = Plan(Size(1, 1, 1), DATA, 20_000, "/bin/etcd", flush="async")
    [node] = plan.node_processes()
    assert value(node.command, "--flush") == "async"


@pytest.mark.parametrize(("groups", "replicas", "nameservers"), [(1, 1, 1), (2, 3, 2), (26, 9, 9)])
def test_no_port_is_used_twice(groups: int, replicas: int, nameservers: int) -> None:
    plan = planned(groups, replicas, nameservers)
    used = [plan.etcd_process().address, *plan.nameserver_addresses]
    used.append(value(plan.etcd_process().command, "--listen-peer-urls").removeprefix("http://"))
    for node in plan.node_processes():
        used += [node.address, value(node.command, "--replication-listen")]
    ports = [int(address.rpartition(":")[2]) for address in used]
    ports += [int(node.address.rpartition(":")[2]) - OLD_PORT_DISTANCE for node in plan.node_processes()]
    assert [port for port, count in Counter(ports).items() if count > 1] == []
    assert sorted(ports) == sorted(20_000 + distance for distance in plan.size.distances())


@pytest.mark.parametrize(
    ("flag", "numbers"), [("groups", (0, 27)), ("replicas", (0, 10)), ("nameservers", (0, 10))]
)
def test_sizes_are_limited(flag: str, numbers: tuple[int, int]) -> None:
    for number in numbers:
        with pytest.raises(ConfigError, match=f"--{flag} must be from 1 to"):
            Size(**{"groups": 1, "replicas": 1, "nameservers": 1, flag: number})


def test_ports_must_exist() -> None:
    with pytest.raises(ConfigError, match="--port-base 65535 is out of range"):
        Plan(Size(1, 1, 1), DATA, 65_535, "etcd")


def test_free_ports_are_free_and_below_those_of_outgoing_connections() -> None:
    distances = Size(1, 3, 2).distances()
    base = free_base(distances)
    assert 15_000 <= base < base + max(distances) < 32_768
    assert all(is_free(base + distance) for distance in distances)


def test_settings_for_another_etcd_are_left_out() -> None:
    kept = environment({"ETCD_NAME": "other", "PATH": "/bin"})
    assert "ETCD_NAME" not in kept and kept["PATH"] == "/bin"


def test_a_missing_etcd_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(plans, "_ETCD_INSTALLED", str(tmp_path / "etcd"))
    with pytest.raises(CommandError, match="etcd is not installed") as raised:
        find_etcd()
    assert "make setup-etcd" in raised.value.hint
    (tmp_path / "etcd").touch(0o755)
    assert find_etcd() == str(tmp_path / "etcd")


def test_how_a_process_ended() -> None:
    assert (described_end(2), described_end(-9)) == ("ended with 2", "was killed by SIGKILL")


def status(master: int, *words: str) -> GroupStatus:
    nodes = tuple(
        NodeStatus(number, "", "master" if number == master else "replica", word)  # type: ignore[arg-type]
        for number, word in zip(itertools.count(1), words, strict=False)
    )
    return GroupStatus("g", 1, master, 2, (1,), nodes)


def test_a_group_is_ready_when_all_its_nodes_are_in_sync() -> None:
    assert lacks(None, 3) == "no node has joined yet"
    assert lacks(status(0, "waiting"), 3) == "no master yet"
    assert lacks(status(1, "gone", "in sync", "in sync"), 3) == "no master yet"
    assert (
        lacks(status(1, "in sync", "catching up", "in sync"), 3)
        == "node 1 is master, 2 of 3 nodes are in sync"
    )
    assert lacks(status(1, "in sync", "in sync"), 3) == "node 1 is master, 2 of 3 nodes are in sync"
    assert lacks(status(1, "in sync", "in sync", "in sync"), 3) == ""
