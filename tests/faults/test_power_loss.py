"""Power loss while messages are sent: an ext4 of its own drops everything that was not synced.

With honest sync calls nothing that was acknowledged, and nothing that a reader saw, may be missing or have
another offset. With sync calls that only pretend, the same test must find messages missing: that proves
that it would notice a broker that acknowledges or shows messages too early.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import LoopDisk, loop_disk
from tests.faults.readers import Readers
from tests.faults.senders import Senders, served_queues
from tests.faults.sync_faults import Sync, SyncFaults
from tests.support.checker import violations
from tests.support.plain_client import SUCCESS, create_topic
from tests.support.processes import freeze
from tests.support.rounds import draw_seed
from tests.support.serving import MIB, SMALL_FILES, Serving
from tests.support.waiting import wait_until

QUEUES = 3
TOPIC = "power"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path, 256 * MIB) as mounted:
        yield mounted


def test_nothing_acknowledged_is_lost_when_the_power_goes(tmp_path: Path, disk: LoopDisk) -> None:
    assert _lose_power_twice(tmp_path, disk, Sync.HONEST) == []


def test_nothing_that_a_reader_saw_is_lost_when_the_power_goes_during_a_sync(
    tmp_path: Path, disk: LoopDisk
) -> None:
    assert _lose_power_twice(tmp_path, disk, Sync.HONEST, during_a_sync=True) == []


def test_the_checker_notices_a_sync_that_does_nothing(tmp_path: Path, disk: LoopDisk) -> None:
    found = _lose_power_twice(tmp_path, disk, Sync.IGNORED)
    assert any(sentence.startswith("lost") for sentence in found), found[:5]
    assert any("was served before and is now" in sentence for sentence in found), found[:5]


def _lose_power_twice(
    tmp_path: Path, disk: LoopDisk, mode: Sync, *, during_a_sync: bool = False
) -> list[str]:
    """Returns the checker's verdict; the second loss hits a store that has recovered from the first."""
    seed = draw_seed()
    choice = random.Random(seed)
    data, home = disk.path / "data", tmp_path / "home"
    senders = Senders(TOPIC, QUEUES, count=3, seed=seed, body_bytes=500)
    readers = Readers(TOPIC, QUEUES)
    faults: list[SyncFaults] = []

    def start() -> Serving:
        faults.append(SyncFaults())
        return Serving(home, data, settings=SMALL_FILES, prefix=faults[-1].prefix())

    broker = start()
    try:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
        # The topic itself must survive; the test is about its messages.
        os.sync()
        senders.start()
        readers.start()
        for _ in range(2):
            faults[-1].mode = mode
            senders.target = readers.target = broker.broker
            acknowledged = senders.history.acknowledged_count()
            time.sleep(choice.uniform(0.3, 1.0))
            # A slow disk needs time for this many.
            wait_until(lambda before=acknowledged: senders.history.acknowledged_count() > before + 50)
            if during_a_sync:
                _wait_for_a_sync(faults[-1], readers)
            # A real power loss also ends the broker. Here, a sync under way could return success
            # after the file system was shut down, so stop the broker first.
            freeze(broker.child.process.pid)
            disk.lose_power()
            senders.target = readers.target = ""
            broker.kill()
            faults[-1].stop()
            disk.unmount()
            disk.mount()
            broker = start()
        senders.stop()
        readers.stop()
        with broker.connect() as client:
            queues = served_queues(client, TOPIC, QUEUES)
    finally:
        if broker.child.alive:
            broker.kill()
        faults[-1].stop()
    assert senders.history.acknowledged_count() > 100
    assert faults[0].calls > 0
    seen = readers.seen()
    assert sum(len(messages) for messages in seen.values()) > 100
    return violations(senders.history, queues, earlier=seen)


def _wait_for_a_sync(faults: SyncFaults, readers: Readers) -> None:
    """Returns while a sync hangs, after every reader had the time to see what is not on the disk yet."""
    faults.mode = Sync.HANGING
    wait_until(lambda: faults.hanging)
    looks = readers.looks
    wait_until(lambda: readers.looks > looks + 20 * QUEUES)
