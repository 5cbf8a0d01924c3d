"""The commands for broker groups on a real register, while no broker runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

from metaq.cli.exits import UNHEALTHY
from metaq.ha.group_record import GroupKeys, GroupRecord
from metaq.ha.register import Outcome, parse_register
from metaq.ha.registers.etcd import EtcdRegister
from tests.support.etcd import Etcd
from tests.support.ha_views import ONE, RECORD, THREE, TWO, beat
from tests.support.metaq import run
from tests.support.processes import free_port

ENDS = {ONE: 9_000, TWO: 9_000, THREE: 1_000}


def keys(name: str) -> GroupKeys:
    return GroupKeys("Commands", name)


def fill(etcd: Etcd, name: str, record: GroupRecord) -> None:
    """Writes a group whose nodes are all dead."""

    async def write() -> None:
        register = EtcdRegister(parse_register(etcd.register))
        try:
            put = {keys(name).group: record.encode()}
            for member, end in ENDS.items():
                fields = {"flushed_end": end, "client_address": f"127.0.0.1:{free_port()}"}
                put[keys(name).beat(member.id)] = beat(member, **fields).beat.encode()
            for key, value in put.items():
                stored = await register.get(key)
                revision = stored.revision if stored is not None else 0
                assert await register.compare_and_swap(key, revision, value) is Outcome.DONE
        finally:
            await register.close()

    asyncio.run(write())


def ask(etcd: Etcd, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return run("cluster", *arguments, "--register", etcd.register, "--cluster", "Commands", text=text)


def group(etcd: Etcd, name: str) -> dict[str, Any]:
    outcome = ask(etcd, "status", "-o", "json")
    assert outcome.returncode == UNHEALTHY, outcome.stderr
    [found] = [one for one in json.loads(outcome.stdout)["groups"] if one["name"] == name]
    return dict(found)


def test_a_group_of_dead_nodes_is_shown_from_the_register(etcd: Etcd) -> None:
    fill(etcd, "dead", RECORD.replace(in_sync=(ONE, TWO)))
    found = group(etcd, "dead")
    assert (found["epoch"], found["master"], found["in_sync"]) == (5, 1, [1, 2])
    assert [(node["state"], node["lag_bytes"], node["lag_ms"]) for node in found["nodes"]] == [
        ("gone", 0, None),
        ("gone", 0, None),
        ("gone", 8_000, None),
    ]
    assert "In dead, the master, node 1, does not answer at 127.0.0.1:" in ask(etcd, "status").stdout


def test_a_switch_needs_a_master_that_answers(etcd: Etcd) -> None:
    fill(etcd, "dead", RECORD)
    outcome = ask(etcd, "switch", "dead", "--to", "2")
    assert outcome.returncode == 1
    assert "dead has no master that answers, so nobody can hand over" in outcome.stderr


def test_a_forced_switch_asks_and_replaces_the_record(etcd: Etcd) -> None:
    fill(etcd, "forced", RECORD.replace(in_sync=(ONE, TWO)))
    refused = ask(etcd, "switch", "forced", "--to", "3", "--force", text="n\n")
    assert refused.returncode == 1
    assert "Node 1 does not answer: what it has now is unknown." in refused.stderr
    assert "ARE LOST" in refused.stderr and "a log that is 7.8 KiB longer" in refused.stderr
    assert group(etcd, "forced")["epoch"] == 5
    done = ask(etcd, "switch", "forced", "--to", "3", "--force", "--yes", "-o", "json")
    assert json.loads(done.stdout) == {"name": "forced", "epoch": 1001003, "to": 3, "forced": True}
    assert "ARE LOST" in done.stderr, "scripts keep the warning in their logs"
    after = group(etcd, "forced")
    assert (after["epoch"], after["master"], after["in_sync"], after["min_in_sync"]) == (1001003, 3, [3], 2)


def test_a_cluster_without_groups(etcd: Etcd) -> None:
    empty = run("cluster", "status", "--register", etcd.register, "--cluster", "Nobody", "-o", "json")
    assert json.loads(empty.stdout)["groups"] == []
    assert empty.returncode == UNHEALTHY, "nobody can use a cluster without brokers"
    outcome = run("cluster", "switch", "x", "--to", "1", "--register", etcd.register, "--cluster", "Nobody")
    assert outcome.returncode == 1
    assert "there is no broker group x in cluster Nobody" in outcome.stderr
