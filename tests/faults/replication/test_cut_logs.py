"""Somebody cuts a log file of a running node. Its process lives on, and the group heals by itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.trial import QUEUES, TOPIC, Trial
from tests.support.plain_client import PlainClient, ServerClosed, pull
from tests.support.waiting import wait_until

_NOTICED = "so it opens its store again"


def _cut(node: BrokerNode, *, is_tail: bool) -> None:
    # The last file may be one that waits for its first record.
    files = [path for path in sorted((node.data / "commitlog").iterdir()) if any(path.read_bytes())]
    path = files[-1] if is_tail else files[0]
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) // 2)


def _read(node: BrokerNode) -> None:
    with suppress(OSError, ServerClosed), PlainClient(node.address, 20) as client:
        for queue_id in range(QUEUES):
            pull(client, TOPIC, queue_id, 0, hold_ms=0)


@pytest.mark.parametrize("is_tail", [False, True], ids=["old file", "last file"])
def test_a_node_whose_log_is_cut_lives_on_and_heals(tmp_path: Path, is_tail: bool) -> None:
    with BrokerNodes(tmp_path) as nodes, Trial("cut logs", nodes) as trial:
        trial.flows(300)
        for is_master in (False, True):
            sick = nodes.master() if is_master else nodes.replicas()[0]
            pid, epoch = sick.pid, nodes.record().epoch
            trial.fault(f"cut the log of node {sick.id}")
            noticed = sick.log().count(_NOTICED)
            _cut(sick, is_tail=is_tail)
            _read(sick)
            if is_master:
                assert nodes.wait_for_epoch_after(epoch).master != sick.id, "a master with a cut log resigns"
            trial.flows(50)
            assert sick.alive and sick.pid == pid
            # A second node that is cut before the first one has healed is more than the group survives.
            wait_until(lambda node=sick, before=noticed: node.log().count(_NOTICED) > before, 60)
            nodes.wait_in_sync()
        trial.finish()
