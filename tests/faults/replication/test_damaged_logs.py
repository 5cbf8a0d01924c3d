"""A bit flips in the log of one node while it runs. The others have the record, so nothing is lost, and the
group repairs the damaged log by itself."""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.replication.nodes import SETTINGS, BrokerNode, BrokerNodes
from tests.faults.replication.trial import QUEUES, TOPIC, Trial
from tests.support.checker import key_of
from tests.support.invoking import CommandLine
from tests.support.plain_client import (
    PULL_NOT_FOUND,
    SUCCESS,
    PlainClient,
    ServerClosed,
    Stored,
    pull,
    send,
    stored_records,
)
from tests.support.waiting import wait_until

PAUSE_S = 6.0
FILE_BYTES = int(str(SETTINGS["commit_log_file_bytes"]))
REPAIR_S = 60
OLD_BYTES = 5 * 256 * 1024
"""A record is old if more than this lies behind it: connections do not compare it."""
PADDING = "padding"


def _newest(nodes: BrokerNodes, queue_id: int) -> Stored:
    """Returns one of the last records of a queue that every node has."""
    end = nodes.queue_end(TOPIC, queue_id)
    with PlainClient(nodes.master().address) as client:
        records = list(stored_records(pull(client, TOPIC, queue_id, max(end - 20, 0), hold_ms=0).body))
    return records[0]


def _flip_bit(node: BrokerNode, stored: Stored, choice: random.Random) -> None:
    """Flips a bit in the middle of a body, in the file that the running broker has mapped."""
    start = stored.physical_offset // FILE_BYTES * FILE_BYTES
    with (node.data / "commitlog" / f"{start:020}").open("r+b") as file:
        record = os.pread(file.fileno(), stored.size_bytes, stored.physical_offset - start)
        at = record.index(stored.body) + choice.randrange(len(stored.body))
        flipped = bytes([record[at] ^ 1 << choice.randrange(8)])
        os.pwrite(file.fileno(), flipped, stored.physical_offset - start + at)


def _pause(node: BrokerNode, trial: Trial) -> None:
    """Stops it long enough for the link to break and for the set to go on without it."""
    trial.fault(f"pause node {node.id}")
    node.freeze()
    time.sleep(PAUSE_S)
    node.thaw()


def _is_noted(node: BrokerNode) -> bool:
    return json.loads((node.data / "replication.json").read_bytes())["node"]["damaged_at"] is not None


def _repaired(node: BrokerNode) -> list[str]:
    """Returns the names of the damaged pieces that the node kept when it repaired its log."""
    return sorted(path.name for path in (node.data / "cut").glob("*-damaged"))


def _make_old(nodes: BrokerNodes) -> None:
    """Fills the log, so that what is in it now is old."""
    nodes.create_topic(PADDING, 1)
    with PlainClient(nodes.master().address) as client:
        for _ in range(OLD_BYTES // 100_000 + 1):
            assert send(client, PADDING, 0, b"p" * 100_000).code == SUCCESS


def _first(node: BrokerNode, queue_id: int) -> Stored:
    with PlainClient(node.address) as client:
        return next(stored_records(pull(client, TOPIC, queue_id, 0, hold_ms=0).body))


def _read_until_served(node: BrokerNode, stored: Stored) -> None:
    """Pulls one record until it is served, and checks that no answer leads past it."""

    def is_served() -> bool:
        with suppress(OSError, ServerClosed), PlainClient(node.address, 20) as client:
            reply = pull(client, TOPIC, stored.queue_id, stored.queue_offset, hold_ms=1_000)
            if reply.code == SUCCESS:
                first = next(stored_records(reply.body))
                assert (first.queue_offset, first.body) == (stored.queue_offset, stored.body)
                return True
            if reply.code == PULL_NOT_FOUND:
                assert int(reply.fields["nextBeginOffset"]) == stored.queue_offset, "it was skipped"
        return False

    wait_until(is_served, REPAIR_S, "the damaged record is served")


def _status(nodes: BrokerNodes, node: BrokerNode) -> dict[str, Any]:
    """Returns a node as `metaq cluster status` shows it, with the scrub of its log."""
    outcome = CommandLine(nodes.namesrv).invoke(
        *("cluster", "status", "--register", nodes.register, "-o", "json")
    )
    document = json.loads(outcome.stdout)
    (shown,) = (one for one in document["groups"][0]["nodes"] if one["id"] == node.id)
    scrub = next((one["scrub"] for one in document["brokers"] if one["address"] == node.address), None)
    return {**shown, "scrub": scrub, "findings": [one["kind"] for one in document["findings"]]}


def _is_repaired(nodes: BrokerNodes, node: BrokerNode) -> bool:
    shown = _status(nodes, node)
    scrub = shown["scrub"]
    return shown["state"] == "in sync" and bool(scrub) and (scrub["repaired"], scrub["unrepaired"]) == (1, 0)


def test_an_old_damaged_record_is_repaired_while_the_group_serves(tmp_path: Path) -> None:
    choice = random.Random(0)
    with BrokerNodes(tmp_path, settings={"scrub_interval_s": 0}) as nodes, Trial("old bits", nodes) as trial:
        trial.flows(100)
        _make_old(nodes)
        for sick in (nodes.replicas()[0], nodes.master()):
            is_master, epoch = sick is nodes.master(), nodes.record().epoch
            stored = _first(sick, choice.randrange(QUEUES))
            trial.fault(f"flip an old bit of node {sick.id}")
            _flip_bit(sick, stored, choice)
            _read_until_served(sick, stored)
            trial.flows(50)
            if is_master:
                assert nodes.wait_for_epoch_after(epoch).master != sick.id, "a damaged master resigns"
            nodes.wait_in_sync()
            wait_until(
                lambda sick=sick: not _is_noted(sick), REPAIR_S, "the node knows that its log is sound"
            )
            wait_until(lambda sick=sick: _is_repaired(nodes, sick), REPAIR_S, "the repair is counted")
            assert [str(stored.physical_offset) in name for name in _repaired(sick)] == [True]
        trial.finish()


def test_the_scrub_finds_damage_that_nobody_reads(tmp_path: Path) -> None:
    choice = random.Random(1)
    settings = {"scrub_interval_s": 1, "scrub_bytes_per_second": "64m"}
    with BrokerNodes(tmp_path, settings=settings) as nodes, Trial("scrub", nodes) as trial:
        trial.flows(100)
        _make_old(nodes)
        master, replica = nodes.master(), nodes.replicas()[0]
        # Without room for a copy of the damaged bytes nothing is repaired, so the state lasts.
        in_the_way = replica.data / "cut"
        in_the_way.touch()
        for number, sick in enumerate((replica, master)):
            trial.fault(f"flip an old bit of node {sick.id}")
            _flip_bit(sick, _first(sick, number), choice)
        wait_until(lambda: _status(nodes, replica)["state"] == "damaged", REPAIR_S, "it is shown")
        assert "node-damaged" in _status(nodes, replica)["findings"]
        in_the_way.unlink()
        # A start tries it again at once, and a node that runs does so within ten seconds.
        trial.kill(replica)
        replica.start()
        trial.flows(50)
        for sick in (replica, master):
            wait_until(lambda sick=sick: _is_repaired(nodes, sick), REPAIR_S, "the repair is counted")
            assert _status(nodes, sick)["scrub"]["damaged"] == 1
            assert len(_repaired(sick)) == 1
        assert nodes.wait_in_sync().master != master.id, "a damaged master resigns"
        wait_until(lambda: _status(nodes, replica)["scrub"]["completed_ms"], REPAIR_S, "a pass ends")
        trial.finish()
        for node in nodes.nodes.values():
            refused = [line for line in node.log().splitlines() if "the replication port refuses" in line]
            assert all("is not a master now" in line for line in refused), refused


@pytest.mark.parametrize("of", ["master", "replica"])
def test_a_flipped_bit_is_repaired_and_nothing_sound_is_dropped(tmp_path: Path, of: str) -> None:
    choice = random.Random(of)
    with BrokerNodes(tmp_path) as nodes, Trial(f"flipped bit of the {of}", nodes) as trial:
        trial.flows(300)
        sick = nodes.master() if of == "master" else nodes.replicas()[0]
        epoch, others = nodes.record().epoch, [node for node in nodes.nodes.values() if node is not sick]
        trial.fault(f"flip a bit of the {of}")
        stored = _newest(nodes, choice.randrange(QUEUES))
        assert key_of(stored.body) is not None
        _flip_bit(sick, stored, choice)
        for node in others if of == "master" else [sick]:
            _pause(node, trial)
        wait_until(lambda: _repaired(sick), REPAIR_S, "the damaged log is repaired")
        if of == "master":
            assert nodes.wait_for_epoch_after(epoch).master != sick.id, "a damaged master resigns"
        nodes.wait_in_sync()
        wait_until(lambda: not _is_noted(sick), REPAIR_S, "the node knows that its log is sound")
        for node in nodes.nodes.values():
            trial.kill(node)
            trial.flows(50)
            node.start()
            nodes.wait_in_sync()
        trial.finish()
        assert len(_repaired(sick)) == 1
        assert str(stored.physical_offset) in _repaired(sick)[0]
        for node in nodes.nodes.values():
            assert "copies everything anew" not in node.log()
        for node in others:
            assert _repaired(node) == []


def _log_file(node: BrokerNode, start: int) -> Path:
    return node.data / "commitlog" / f"{start:020}"


def test_a_lost_first_file_is_not_taken_for_retention(tmp_path: Path) -> None:
    """All nodes stop, the first file of one log is lost, and that node comes back first."""
    with BrokerNodes(tmp_path) as nodes, Trial("lost first file", nodes) as trial:
        trial.flows(100)
        _make_old(nodes)
        victim = nodes.master()
        for node in (*nodes.replicas(), victim):
            trial.kill(node)
        lost, epoch = _log_file(victim, 0).read_bytes(), nodes.record().epoch
        _log_file(victim, 0).unlink()
        trial.fault("lost file")
        victim.start()
        nodes.let_vote(victim)
        assert nodes.record().epoch == epoch, "nobody is elected"
        nodes.start_dead()
        nodes.wait_in_sync()
        trial.flows(50)
        trial.finish()
        assert [_log_file(node, 0).read_bytes() for node in nodes.nodes.values()] == [lost] * 3
    assert f"node {victim.id}: its log is damaged at 0" in victim.log()


def test_a_file_that_is_deleted_under_a_running_node_comes_back(tmp_path: Path) -> None:
    """A replica has the file in memory, so its records verify until somebody looks for the file."""
    with BrokerNodes(tmp_path) as nodes, Trial("deleted file", nodes) as trial:
        trial.flows(100)
        _make_old(nodes)
        victim = nodes.replicas()[0]
        path = sorted((victim.data / "commitlog").iterdir())[-2]
        lost = path.read_bytes()
        path.unlink()
        _pause(victim, trial)
        wait_until(lambda: path.exists() and path.read_bytes() == lost, REPAIR_S, "the file is back")
        nodes.wait_in_sync()
        trial.flows(50)
        trial.finish()
