"""Kills of every role under load: nothing acknowledged is lost, and the group goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.replication.nodes import BrokerNodes
from tests.faults.replication.trial import Trial
from tests.support.rounds import draw_seed, kill_loop, rounds

KILLS = rounds(4, 100)


@kill_loop
def test_nothing_is_lost_however_often_a_node_is_killed(tmp_path: Path) -> None:
    """The master more often than the others; sometimes two at once, sometimes before it is back in sync."""
    seed = draw_seed()
    choice = random.Random(seed)
    with BrokerNodes(tmp_path) as nodes, Trial("kills", nodes, seed=seed) as trial:
        for number in range(KILLS):
            victim = (
                nodes.master() if number == 0 or choice.random() < 0.6 else choice.choice(nodes.replicas())
            )
            trial.kill(victim)
            if choice.random() < 0.2:
                trial.kill(choice.choice([node for node in nodes.nodes.values() if node is not victim]))
            elif choice.random() < 0.5:
                trial.flows()
            nodes.start_dead()
            if choice.random() < 0.7:
                nodes.wait_in_sync()
            trial.flows(choice.randrange(20, 200))
        counts = trial.finish()
    assert counts.epochs > 1


@pytest.mark.soak
def test_a_killed_name_server_is_not_missed(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path, nameservers=2) as nodes, Trial("name server", nodes) as trial:
        trial.fault("kill name server")
        nodes.kill_nameserver(0)
        trial.kill(nodes.master())
        trial.flows(200)
        trial.finish()


def test_two_replicas_lost_at_once_stop_acknowledgements(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("two replicas", nodes) as trial:
        master, replicas = nodes.master(), nodes.replicas()
        for node in replicas:
            trial.kill(node)
        epoch = nodes.record().epoch
        assert trial.is_silent(3.0), "acknowledged by one node of three, though min_in_sync is 2"
        record = nodes.record()
        assert len(record.in_sync) >= 2, "the set never shrinks below min_in_sync"
        assert any(code.startswith("14 ") for code in trial.senders.refusals)
        replicas[0].start()
        trial.flows()
        assert master.alive and nodes.record().epoch >= epoch
        trial.finish()


@pytest.mark.soak
def test_every_node_killed_at_once(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("all nodes", nodes) as trial:
        for _ in range(rounds(2, 10)):
            for node in nodes.nodes.values():
                trial.kill(node)
            nodes.start_dead()
            trial.flows(100)
            nodes.wait_in_sync()
        trial.finish()


def test_five_elections_without_writes_and_two_during_catch_up(tmp_path: Path) -> None:
    """Epochs without a record replace each other, and a node that catches up follows two switches."""
    with BrokerNodes(tmp_path) as nodes:
        nodes.create_topic("quiet", 1)
        for _ in range(5):
            master, epoch = nodes.master(), nodes.record().epoch
            master.kill()
            nodes.wait_for_epoch_after(epoch)
            master.start()
            nodes.wait_in_sync()
        with Trial("elections", nodes) as trial:
            late = nodes.replicas()[0]
            trial.kill(late)
            trial.flows(300)
            late.start()
            for _ in range(2):
                master, epoch = nodes.master(), nodes.record().epoch
                trial.kill(master)
                nodes.wait_for_epoch_after(epoch)
                master.start()
            trial.flows()
            counts = trial.finish()
    assert counts.epochs >= 8


def test_a_new_topic_outlives_its_master(tmp_path: Path) -> None:
    with BrokerNodes(tmp_path) as nodes:
        for number in range(rounds(3, 20)):
            nodes.create_topic(f"kept-{number}", 3)
            nodes.master().kill()
            assert nodes.queue_end(f"kept-{number}", 2) == 0, "it exists"
            nodes.start_dead()
            nodes.wait_in_sync()
