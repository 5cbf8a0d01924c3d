"""Kills, power loss and a full disk while topics come and go: no acknowledged change is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.journal.journal import COMPACTION_BYTES_MIN, Journal
from tests.faults.disks import LoopDisk, loop_disk
from tests.faults.sync_faults import Sync, SyncFaults
from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed, create_topic
from tests.support.processes import freeze
from tests.support.rounds import draw_seed, kill_loop, rounds
from tests.support.serving import MIB, SMALL_FILES, Serving
from tests.support.waiting import wait_until

KILLS = rounds(8, 100)
DELETE_TOPIC_IN_BROKER, GET_ALL_TOPIC_CONFIG = 215, 21
SERVICE_NOT_AVAILABLE = 14
PREFIX = "journal-"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path, 128 * MIB) as mounted:
        yield mounted


class Changes:
    """Creates and deletes topics on a thread of its own, and notes what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self._choice = random.Random(seed)
        self._created = 0
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.count = 0
        self._ends = threading.Event()
        self._thread = threading.Thread()

    def start(self, broker: Serving) -> None:
        self._ends.clear()
        self._thread = threading.Thread(target=self._work, args=(broker,))
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _work(self, broker: Serving) -> None:
        try:
            with broker.connect() as client:
                while not self._ends.is_set():
                    self._change(client)
        except (OSError, ServerClosed):
            pass  # The broker was killed.

    def _change(self, client: PlainClient) -> None:
        if self.there and self._choice.random() < 0.3:
            topic = self._choice.choice(sorted(self.there))
            self.there.discard(topic)  # From now on either outcome is right, until it is answered.
            if client.call(DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == SUCCESS:
                self.gone.add(topic)
                self.count += 1
            return
        topic = f"{PREFIX}{self._created}"
        self._created += 1
        if create_topic(client, topic, 1).code == SUCCESS:
            self.there.add(topic)
            self.count += 1

    def faults(self, broker: Serving) -> list[str]:
        with broker.connect() as client:
            found = topics_of(client)
        lost = [f"lost: {topic}" for topic in sorted(self.there - found)]
        return lost + [f"back: {topic}" for topic in sorted(self.gone & found)]


def topics_of(client: PlainClient) -> set[str]:
    table = json.loads(client.call(GET_ALL_TOPIC_CONFIG, {}).body)["topicConfigTable"]
    return {topic for topic in table if topic.startswith(PREFIX)}


def inflate(data: Path) -> None:
    """Makes the journal of a stopped broker so large that the next change begins a compaction."""

    async def write() -> None:
        journal = Journal.open(data / "journal")
        value = os.urandom(COMPACTION_BYTES_MIN // 8)
        for number in range(9):
            await journal.write([("ballast", "x", value + bytes([number]))])
        await journal.write([("ballast", "x", None)])
        await journal.close()

    asyncio.run(write())


@kill_loop
def test_no_topic_is_lost_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    seed = draw_seed()
    choice = random.Random(seed)
    home, data = tmp_path / "home", tmp_path / "data"
    changes = Changes(seed)
    for _ in range(KILLS):
        if data.exists() and choice.random() < 0.5:
            inflate(data)
        with Serving(home, data, settings=SMALL_FILES) as broker:
            assert changes.faults(broker) == []
            before = changes.count
            changes.start(broker)
            wait_until(lambda before=before: changes.count > before + 3)
            time.sleep(choice.uniform(0.0, 0.1))
            broker.kill()
            changes.stop()
    with Serving(home, data, settings=SMALL_FILES) as broker:
        assert changes.faults(broker) == []
    print(f"{KILLS} kills, {changes.count} acknowledged, {len(changes.gone)} of them deletions")
    assert len(changes.there) > KILLS


def test_no_topic_is_lost_when_the_power_goes(tmp_path: Path, disk: LoopDisk) -> None:
    assert _lose_power(tmp_path, disk, Sync.HONEST) == []


def test_the_checker_notices_a_sync_that_does_nothing(tmp_path: Path, disk: LoopDisk) -> None:
    found = _lose_power(tmp_path, disk, Sync.IGNORED)
    assert any(sentence.startswith("lost") for sentence in found), found[:5]


def _lose_power(tmp_path: Path, disk: LoopDisk, mode: Sync) -> list[str]:
    """Returns what is missing or came back after two losses, the first one during a compaction."""
    home, data = tmp_path / "home", disk.path / "data"
    changes = Changes(draw_seed())
    with Serving(home, data, settings=SMALL_FILES) as broker:
        assert broker.stop() == 0
    inflate(data)
    os.sync()
    found: list[str] = []
    for _ in range(2):
        faults = SyncFaults()
        with Serving(home, data, settings=SMALL_FILES, prefix=faults.prefix()) as broker:
            found += changes.faults(broker)
            faults.mode = mode
            before = changes.count
            changes.start(broker)
            wait_until(lambda before=before: changes.count > before + 20)
            # A real power loss also ends the broker. Here, a sync under way could return success after the
            # file system was shut down, so stop the broker first.
            freeze(broker.child.process.pid)
            disk.lose_power()
            broker.kill()
            changes.stop()
        faults.stop()
        disk.unmount()
        disk.mount()
    with Serving(home, data, settings=SMALL_FILES) as broker:
        return found + changes.faults(broker)


def test_a_full_disk_refuses_new_topics_and_keeps_the_others(tmp_path: Path, disk: LoopDisk) -> None:
    home, data = tmp_path / "home", disk.path / "data"
    acknowledged: set[str] = set()
    with Serving(home, data, settings=SMALL_FILES) as broker, broker.connect() as client:
        ballast = disk.path / "ballast"
        _fill(ballast)
        for number in range(1_000):
            topic = f"{PREFIX}{number}"
            reply = create_topic(client, topic, 1)
            if reply.code != SUCCESS:
                break
            acknowledged.add(topic)
        assert reply.code == SERVICE_NOT_AVAILABLE
        assert "No space left" in reply.remark and "make room" in reply.remark
        assert acknowledged <= topics_of(client)
        ballast.unlink()
        assert create_topic(client, f"{PREFIX}later", 1).code == SUCCESS
        broker.kill()
    with Serving(home, data, settings=SMALL_FILES) as broker, broker.connect() as client:
        assert acknowledged | {f"{PREFIX}later"} <= topics_of(client)


def _fill(path: Path) -> None:
    """Writes until not even one more block fits."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size_bytes))
