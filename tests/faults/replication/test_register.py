"""Faults of the register, and masters that are stopped or cut off by it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from metaq.ha.group_record import EPOCHS_PER_ROUND
from tests.faults.replication.nodes import BrokerNodes
from tests.faults.replication.trial import Trial
from tests.support.waiting import wait_until


def test_a_frozen_master_acknowledges_nothing_when_it_wakes(tmp_path: Path) -> None:
    """SIGSTOP for longer than an election takes, then SIGCONT. Senders use the old master all the time."""
    with BrokerNodes(tmp_path) as nodes, Trial("zombie", nodes) as trial:
        zombie, epoch = nodes.master(), nodes.record().epoch
        trial.fault("freeze master")
        zombie.freeze()
        record = nodes.wait_for_epoch_after(epoch)
        assert record.master != zombie.id
        trial.flows()
        zombie.thaw()
        nodes.wait_in_sync()
        assert nodes.record().master != zombie.id, "no automatic way back"
        counts = trial.finish()
    assert counts.masters_per_epoch == 1


@pytest.mark.soak
def test_a_frozen_replica_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("frozen replica", nodes) as trial:
        master, frozen = nodes.master(), nodes.replicas()[0]
        trial.fault("freeze replica")
        frozen.freeze()
        pause_s = trial.flows()
        assert frozen.id not in nodes.record().in_sync, "acknowledged without it, so it was removed before"
        time.sleep(10)
        frozen.thaw()
        nodes.wait_in_sync()
        assert nodes.record().master == master.id
        print(f"pause {pause_s:.2f} s")
        trial.finish()


def test_without_its_register_a_group_goes_on_and_elects_nobody(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("no register", nodes) as trial:
        [member] = nodes.etcd.members
        before = nodes.record()
        trial.fault("stop etcd")
        nodes.etcd.kill(member)
        time.sleep(5)
        trial.flows(100)
        # Now a replica dies: nobody can remove it from the set, so nothing more is acknowledged.
        lost = nodes.replicas()[0]
        trial.kill(lost)
        assert trial.is_silent(3.0), "acknowledged without a member of the set"
        nodes.etcd.restart(member)
        trial.flows(100)
        assert nodes.record().epoch < before.epoch + EPOCHS_PER_ROUND
        trial.finish()


@pytest.mark.soak
def test_the_master_dies_while_the_register_is_away(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("no register, no master", nodes) as trial:
        [member] = nodes.etcd.members
        trial.fault("stop etcd")
        nodes.etcd.kill(member)
        old = nodes.nodes[nodes.watch.last.master]
        trial.kill(old)
        assert trial.is_silent(5.0)
        nodes.etcd.restart(member)
        trial.flows(100)
        trial.finish()


@pytest.mark.soak
def test_the_leader_of_etcd_and_the_master_die_together(tmp_path: Path) -> None:
    """One machine is lost with both: the pause is the election of etcd and ours."""
    pauses = []
    with BrokerNodes(tmp_path, etcd_members=3) as nodes, Trial("etcd leader", nodes) as trial:
        for _ in range(5):
            leader, master = nodes.etcd.leader(), nodes.master()
            trial.fault("kill etcd leader")
            nodes.etcd.kill(leader)
            killed = time.monotonic()
            trial.kill(master)
            after = len(trial.senders.acknowledged_at)
            trial.flows(10)
            pauses.append(trial.senders.acknowledged_at[after + 9] - killed)
            nodes.etcd.restart(leader)
            nodes.start_dead()
            nodes.wait_in_sync()
        print("pauses", " ".join(f"{pause:.1f}" for pause in sorted(pauses)), "s")
        trial.finish()


@pytest.mark.soak
def test_a_member_of_etcd_dies(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path, etcd_members=3) as nodes, Trial("etcd member", nodes) as trial:
        epoch = nodes.record().epoch
        for member in nodes.etcd.members:
            trial.fault("kill etcd member")
            nodes.etcd.kill(member)
            trial.flows(100)
            time.sleep(4)
            trial.flows(50)
            nodes.etcd.restart(member)
        assert nodes.record().epoch == epoch, "no election because of etcd alone"
        trial.finish()


@pytest.mark.soak
def test_a_register_restored_from_a_backup_is_refused(tmp_path: Path) -> None:
    """The record goes back to an older epoch: nodes refuse it, and nothing is lost when it is repaired."""
    with BrokerNodes(tmp_path) as nodes, Trial("old register", nodes) as trial:
        backup = nodes.watch.value()
        for _ in range(2):
            epoch = nodes.record().epoch
            trial.kill(nodes.master())
            nodes.wait_for_epoch_after(epoch)
            nodes.start_dead()
            nodes.wait_in_sync()
        newest = nodes.watch.value()
        master = nodes.master()
        trial.fault("restore register")
        nodes.watch.put(backup)
        wait_until(lambda: "epoch" in master.log().splitlines()[-1].lower() or not trial.flows(1), 10)
        time.sleep(5)
        nodes.watch.put(newest)
        trial.flows(100)
        trial.finish()
