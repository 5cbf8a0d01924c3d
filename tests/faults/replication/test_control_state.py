"""Topics, groups and offsets are promised like messages: a node that lost some of them is not elected."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.trial import Trial


def lose(node: BrokerNode) -> None:
    shutil.rmtree(node.data / "journal")


def cut(node: BrokerNode) -> None:
    """Cuts into the last entry, which a start takes for one that was never acknowledged."""
    log = _last_log(node)
    log.write_bytes(log.read_bytes()[:-40])


def damage(node: BrokerNode) -> None:
    log = _last_log(node)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def _last_log(node: BrokerNode) -> Path:
    return max((node.data / "journal").glob("*.log"))


@pytest.mark.parametrize("harm", [lose, cut, damage], ids=lambda harm: harm.__name__)
def test_a_node_without_its_control_state_is_not_elected(tmp_path: Path, harm: object) -> None:
    """All nodes stop, one of them loses control state and comes back first."""
    assert callable(harm)
    with BrokerNodes(tmp_path) as nodes, Trial(f"journal {harm.__name__}", nodes) as trial:
        trial.flows(100)
        victim = nodes.replicas()[0]
        for node in (victim, nodes.master(), *nodes.replicas()):
            if node.alive:
                trial.kill(node)
        harm(victim)
        trial.fault("control state")
        victim.start()
        nodes.let_vote(victim)
        assert nodes.record().master != victim.id, "elected without its control state"
        nodes.start_dead()
        trial.flows(50)
        nodes.wait_in_sync()
        trial.finish()
    assert "is a new incarnation" in victim.log()
    kept = list(victim.data.glob("journal.damaged-*"))
    assert len(kept) == (harm is damage), "what cannot be read is kept, and nothing else"
