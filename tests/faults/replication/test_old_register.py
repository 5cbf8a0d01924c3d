"""An older copy of etcd's data comes back, or an empty one: nobody who lacks messages is elected."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.register_watch import GROUP
from tests.faults.replication.trial import Trial
from tests.support.etcd import encoded
from tests.support.metaq import run
from tests.support.waiting import wait_until


def health(nodes: BrokerNodes) -> dict[str, Any]:
    answer = run("cluster", "status", "-o", "json", "--register", nodes.register, "--namesrv", nodes.namesrv)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def refusing(nodes: BrokerNodes) -> dict[str, str]:
    """Returns what the findings say of each node that refuses the register."""
    return {
        finding["subject"]: finding["text"]
        for finding in health(nodes)["findings"]
        if finding["kind"] == "register-refused"
    }


def force(nodes: BrokerNodes, target: BrokerNode, *, answer: str) -> str:
    """Asks for a forced switch, answers the question, and returns what was said before."""
    arguments = ("cluster", "switch", GROUP, "--to", str(target.id), "--force", "--register", nodes.register)
    return run(*arguments, text=f"{answer}\n").stderr


def restore(nodes: BrokerNodes, copy: Path | None) -> None:
    """Stops etcd and starts it with another data directory; None: with an empty one."""
    [member] = nodes.etcd.members
    nodes.etcd.kill(member)
    shutil.rmtree(member.directory)
    if copy is not None:
        shutil.copytree(copy, member.directory)
    nodes.etcd.restart(member)


def copied(nodes: BrokerNodes, place: Path) -> Path:
    """Copies etcd's data directory while etcd is stopped."""
    [member] = nodes.etcd.members
    nodes.etcd.kill(member)
    shutil.copytree(member.directory, place)
    nodes.etcd.restart(member)
    return place


def test_an_old_copy_with_the_same_epoch_elects_nobody(tmp_path: Path) -> None:
    """The copy still names a replica that has left the set. That replica starts first."""
    with BrokerNodes(tmp_path / "group") as nodes, Trial("old register, same epoch", nodes) as trial:
        copy = copied(nodes, tmp_path / "copy")
        before = nodes.wait_in_sync()
        late, other = nodes.replicas()
        master = nodes.master()
        trial.kill(late)
        nodes.wait_in_sync(master.id, other.id)
        trial.flows(500)
        for node in (other, master):
            trial.kill(node)
        trial.fault("restore etcd")
        restore(nodes, copy)
        old = nodes.record()
        assert (old.epoch, old.in_sync) == (before.epoch, before.in_sync), "the same epoch, a member too many"
        late.start()
        nodes.let_vote(late)
        assert nodes.record() == old, "it is not elected, because nobody agrees"
        master.start()
        other.start()
        names = {f"{GROUP}/{node_id}" for node_id in nodes.nodes}
        wait_until(lambda: refusing(nodes).keys() == names, 30, "every node refuses the register")
        text = refusing(nodes)[f"{GROUP}/{master.id}"]
        assert "but this node has seen version" in text and "nobody is elected" in text
        assert trial.is_silent_while_voting(*nodes.nodes.values()), "nobody acknowledges"
        assert nodes.record() == old, "nobody is elected"
        warned = force(nodes, late, answer="n")
        assert "The register went back to an older state" in warned
        assert f"Node {late.id} lacks what another node has" in warned and "ARE LOST" in warned
        warned = force(nodes, master, answer="y")
        assert f"Whether node {master.id} has every acknowledged message is unknown" in warned
        assert "no acknowledged message is lost" not in warned
        trial.flows(100)
        nodes.wait_in_sync()
        assert refusing(nodes) == {}
        trial.finish()


def test_an_emptied_register_elects_nobody(tmp_path: Path) -> None:
    """The nodes run when the register loses everything, and one of them was out of the set."""
    with BrokerNodes(tmp_path / "group") as nodes, Trial("empty register", nodes) as trial:
        # etcd gives an empty directory the same identity again, because its members have the same names.
        late, other = nodes.replicas()
        master = nodes.master()
        trial.kill(late)
        nodes.wait_in_sync(master.id, other.id)
        trial.flows(300)
        trial.fault("empty etcd")
        restore(nodes, None)
        late.start()
        trial.flows(100)
        names = {f"{GROUP}/{node_id}" for node_id in nodes.nodes}
        wait_until(lambda: refusing(nodes).keys() == names, 30, "every node refuses the register")
        assert "the register has no record of the group" in refusing(nodes)[f"{GROUP}/{late.id}"]
        trial.kill(master)
        assert trial.is_silent_while_voting(late, other), "nobody is elected"
        warned = force(nodes, other, answer="y")
        assert "The register went back to an older state: the register has no record of the group" in warned
        assert f"Node {master.id} does not answer: what it has now is unknown." in warned
        trial.flows(100)
        assert _stored(nodes)["min_in_sync"] == 2
        master.start()
        nodes.wait_in_sync()
        assert refusing(nodes) == {}
        trial.finish()


def _stored(nodes: BrokerNodes) -> dict[str, Any]:
    key = encoded(f"metaq/DefaultCluster/{GROUP}/group")
    answer = nodes.etcd.call("/v3/kv/range", {"key": key})
    found: dict[str, Any] = json.loads(base64.b64decode(answer["kvs"][0]["value"]))
    return found
