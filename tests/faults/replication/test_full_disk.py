"""A full disk: its node hands the group over to nodes with room, and takes part again when it has some."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.disks import LoopDisk, loop_disk, loop_disks_work
from tests.faults.replication.nodes import BrokerNode, BrokerNodes
from tests.faults.replication.trial import Trial
from tests.support.serving import MIB
from tests.support.waiting import wait_until

DISK_BYTES = 128 * MIB
LEFT_BYTES = 2 * MIB
HAND_OVER_S = 10.0
"""A look at the disk every second, the election, and a busy machine."""


class SmallDisks:
    """Each node has a file system of its own."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home, self._stack = home, stack
        self._disks: dict[int, LoopDisk] = {}

    def prepare(self, node: BrokerNode) -> None:
        folder = self._home / f"disk-{node.id}"
        folder.mkdir()
        self._disks[node.id] = self._stack.enter_context(loop_disk(folder, DISK_BYTES))
        node.data = self._disks[node.id].path / "data"

    def fill(self, node: BrokerNode) -> Path:
        """Leaves a little room, but less than the broker wants. Returns the file that takes the rest."""
        disk = self._disks[node.id]
        path = disk.path / "ballast"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes() - LEFT_BYTES)
        return path


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisks]:
    if not loop_disks_work(tmp_path):
        pytest.skip("needs root, loop devices and mkfs.ext4")
    with ExitStack() as stack:
        yield SmallDisks(tmp_path, stack)


@pytest.mark.parametrize("percent", [90, 99], ids=["refused at a level", "refused by the file system"])
def test_a_master_with_a_full_disk_is_replaced(tmp_path: Path, small: SmallDisks, percent: int) -> None:
    settings = {"disk_refuse_percent": percent}
    with (
        BrokerNodes(tmp_path, prepare=small.prepare, settings=settings) as nodes,
        Trial(f"full disk of the master, {percent} %", nodes) as trial,
    ):
        full, epoch = nodes.master(), nodes.record().epoch
        trial.fault("fill the disk of the master")
        ballast = small.fill(full)
        began = time.monotonic()
        record = nodes.wait_for_epoch_after(epoch)
        pause_s = trial.flows(100)
        print(f"another master after {time.monotonic() - began:.1f} s, pause of {pause_s:.1f} s")
        assert record.master != full.id
        wait_until(lambda: full.id not in nodes.record().in_sync, 30, "the full node has left the set")
        trial.flows(50)
        ballast.unlink()
        nodes.wait_in_sync()
        trial.finish()


def test_a_replica_with_a_full_disk_leaves_the_set_and_is_not_elected(
    tmp_path: Path, small: SmallDisks
) -> None:
    with BrokerNodes(tmp_path, prepare=small.prepare) as nodes, Trial("full replica", nodes) as trial:
        full, other = nodes.replicas()
        trial.fault("fill the disk of a replica")
        ballast = small.fill(full)
        began = time.monotonic()
        wait_until(lambda: full.id not in nodes.record().in_sync, HAND_OVER_S, "it has left the set")
        pause_s = trial.flows(50)
        print(f"out of the set after {time.monotonic() - began:.1f} s, pause of {pause_s:.1f} s")
        trial.kill(old := nodes.master())
        assert trial.is_silent(5.0), "with one node of two there are too few"
        assert nodes.record().master != full.id
        ballast.unlink()
        trial.flows(50)
        assert nodes.record().master in (other.id, full.id)
        old.start()
        trial.finish()
