"""Mapped files of a running broker lose pages: somebody cuts them, or the disk cannot read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.disks import MIB, LoopDisk, loop_disk
from tests.support.plain_client import SUCCESS, create_topic, pull, read_queue, send
from tests.support.serving import SMALL_FILES, Serving
from tests.support.waiting import wait_until

TOPIC = "lost_pages"
COUNT = 200
BODY_BYTES = 4_000
MANY = 1_200
"""Messages in five files of the log. A start reads the first one and the last one."""
SERVICE_NOT_AVAILABLE = 14
UNSCRUBBED = {**SMALL_FILES, "scrub_interval_s": 0}


def _fill(broker: Serving, count: int = COUNT) -> None:
    with broker.connect() as client:
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        for number in range(count):
            assert send(client, TOPIC, 0, f"{number:04}".encode() * (BODY_BYTES // 4)).code == SUCCESS


def test_a_broker_lives_on_when_somebody_cuts_its_log(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    with Serving(home, data) as broker:
        _fill(broker)
        (path, *_) = sorted((data / "commitlog").iterdir())
        os.truncate(path, 50 * BODY_BYTES)
        with broker.connect() as client:
            served = read_queue(client, TOPIC, 0)
            assert 40 <= len(served) < COUNT, "what the file still has"
            wait_until(lambda: send(client, TOPIC, 0, b"late").code == SERVICE_NOT_AVAILABLE)
        assert broker.child.alive, broker.child.tail()
        wait_until(lambda: "another program cut the file" in broker.log())
        broker.kill()
    with Serving(home, data) as broker, broker.connect() as client:
        assert len(read_queue(client, TOPIC, 0)) >= len(served)
        assert send(client, TOPIC, 0, b"after the restart").code == SUCCESS


def test_a_broker_lives_on_when_its_disk_cannot_read_a_mapped_page(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with loop_disk(tmp_path, 96 * MIB) as disk:
        data = disk.path / "data"
        with Serving(home, data) as broker:
            _fill(broker, MANY)
            assert broker.stop() == 0
        _empty_cache(disk)
        with Serving(home, data, settings=UNSCRUBBED) as broker, broker.connect() as client:
            # The entries of the queue are in memory from now on, but not all records.
            assert pull(client, TOPIC, 0, MANY - 1).code == SUCCESS
            assert pull(client, TOPIC, 0, 0, count_max=1).code == SUCCESS
            # The disk fails where nothing is in memory.
            os.truncate(disk.image, MIB)
            reply = pull(client, TOPIC, 0, MANY // 2, count_max=1)
            assert reply.code != SUCCESS or int(reply.fields["nextBeginOffset"]) > MANY // 2 + 1, reply
            wait_until(lambda: "the disk cannot read it" in broker.log())
            assert broker.child.alive, broker.child.tail()
            broker.kill()


# A page of a file that is not the store's: nobody may hide that fault.
_FAULT = """
import faulthandler, mmap, os, sys
from metaq._core import Clock, Store
from metaq.settings import StoreSettings
if sys.argv[2] == "before":
    faulthandler.enable()
store = Store(StoreSettings(directory=sys.argv[1]), Clock())
if sys.argv[2] == "after":
    faulthandler.enable()
path = os.path.join(sys.argv[1], "other")
with open(path, "w+b") as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    print(mapped[5000])
"""


@pytest.mark.parametrize("faulthandler", ["before", "after", "never"])
def test_a_fault_outside_the_store_ends_the_process_as_before(tmp_path: Path, faulthandler: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FAULT, str(tmp_path / "store"), faulthandler],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGBUS, done
    assert ("in <module>" in done.stderr) is (faulthandler != "never")


def _empty_cache(disk: LoopDisk) -> None:
    disk.unmount()
    disk.mount()
