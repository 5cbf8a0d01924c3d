"""Cut networks: at most one master acknowledges, and the group heals when the network does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.ha.group_record import EPOCHS_PER_ROUND
from tests.faults.replication.network import Network, missing, network
from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.trial import Trial

REASON = missing()
pytestmark = pytest.mark.skipif(REASON != "", reason=REASON or "possible")


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


def _group(home: Path, net: Network) -> BrokerNodes:
    def prepare(node: BrokerNode) -> None:
        node.prefix = net.enter(node.id)

    return BrokerNodes(home, prepare=prepare, host=net.hub_address, node_host=net.address)


def _etcd_ports(nodes: BrokerNodes) -> list[int]:
    return [member.port for member in nodes.etcd.members]


def test_an_isolated_master_acknowledges_nothing_and_is_replaced(tmp_path: Path, net: Network) -> None:
    with _group(tmp_path, net) as nodes, Trial("isolated master", nodes) as trial:
        old, epoch = nodes.master(), nodes.record().epoch
        trial.fault("isolate master")
        net.isolate(old.id, _etcd_ports(nodes))
        assert nodes.wait_for_epoch_after(epoch).master != old.id
        trial.flows(100)
        net.heal()
        nodes.wait_in_sync()
        trial.finish()


@pytest.mark.soak
def test_a_master_that_reaches_the_register_but_no_replica_resigns(tmp_path: Path, net: Network) -> None:
    with _group(tmp_path, net) as nodes, Trial("resignation", nodes) as trial:
        old, epoch = nodes.master(), nodes.record().epoch
        trial.fault("cut master from replicas")
        net.isolate(old.id, [1])
        assert nodes.wait_for_epoch_after(epoch).master != old.id
        trial.flows(100)
        net.heal()
        trial.finish()


@pytest.mark.soak
@pytest.mark.parametrize("direction", ["to the replica", "to the master"])
def test_a_one_way_cut_heals_without_flapping(tmp_path: Path, net: Network, direction: str) -> None:
    with _group(tmp_path, net) as nodes, Trial(f"one way {direction}", nodes) as trial:
        master, replica, epoch = nodes.master(), nodes.replicas()[0], nodes.record().epoch
        trial.fault("one-way cut")
        net.cut(*((master.id, replica.id) if direction == "to the replica" else (replica.id, master.id)))
        trial.flows(100)
        time.sleep(10)
        trial.flows(50)
        net.heal()
        nodes.wait_in_sync()
        assert nodes.record().epoch < epoch + EPOCHS_PER_ROUND, "the mastership went back and forth"
        trial.finish()


@pytest.mark.soak
def test_a_lossy_network_loses_no_message(tmp_path: Path, net: Network) -> None:
    with _group(tmp_path, net) as nodes, Trial("20 % loss", nodes) as trial:
        trial.fault("20 % loss")
        net.lose(20)
        trial.flows(200)
        net.heal()
        trial.finish()
