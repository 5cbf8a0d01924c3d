"""A full disk: writes are refused with a reason, reads go on, nothing is deleted, and the broker recovers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metaq.admin import Admin
from metaq.cli import app
from metaq.protocol.errors import Refused
from tests.faults.disks import LoopDisk, loop_disk
from tests.faults.senders import served_queues
from tests.support.checker import History, Key, body_of, violations
from tests.support.plain_client import PULL_NOT_FOUND, SUCCESS, PlainClient, Reply, create_topic, pull, send
from tests.support.serving import KIB, MIB, SMALL_FILES, Serving
from tests.support.waiting import wait_until

TOPIC = "full"
BODY_BYTES = 64 * KIB
SMALL_BYTES = 128
BALLAST_BYTES = 24 * MIB
SERVICE_NOT_AVAILABLE = 14
SETTINGS = {**SMALL_FILES, "commit_log_file_bytes": 4 * MIB, "allocation_step_bytes": 16 * KIB}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path, 64 * MIB) as mounted:
        yield mounted


def test_a_full_disk_refuses_writes_and_serves_reads(tmp_path: Path, disk: LoopDisk) -> None:
    # Pieces of odd sizes: each time another call is the first that finds no room.
    ballast = [_ballast(disk, BALLAST_BYTES // 8 + 1_234 * piece, f"ballast{piece}") for piece in range(8)]
    # The broker refuses writes only when the very last block is used.
    settings = {**SETTINGS, "disk_refuse_percent": 99}
    history = History()
    sequence = count()
    home, data = tmp_path / "home", disk.path / "data"
    with Serving(home, data, settings=settings) as broker, broker.connect() as client:
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        assert pull(client, TOPIC, 0, 0).code == PULL_NOT_FOUND
        for piece in ballast:
            refused = _fill(client, history, sequence)
            assert refused.code == SERVICE_NOT_AVAILABLE
            assert "disk" in refused.remark.lower()
            assert _send(client, history, next(sequence)).code == SERVICE_NOT_AVAILABLE
            assert violations(history, served_queues(client, TOPIC, 1)) == []
            piece.unlink()
            wait_until(lambda: _send(client, history, next(sequence)).code == SUCCESS)
        kept = served_queues(client, TOPIC, 1)
        assert violations(history, kept) == []
        assert kept[0][0].queue_offset == 0
        assert broker.stop() == 0

    with Serving(home, data, settings=settings) as broker, broker.connect() as client:
        assert served_queues(client, TOPIC, 1) == kept


def test_writes_are_refused_above_the_level_and_taken_below_it(tmp_path: Path, disk: LoopDisk) -> None:
    with (
        Serving(tmp_path / "home", disk.path / "data", settings=SETTINGS) as broker,
        broker.connect() as client,
    ):
        history = History()
        sequence = count()
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        assert _send(client, history, next(sequence)).code == SUCCESS
        # Leaves far more than the next messages need, but less than a tenth of the disk.
        ballast = _ballast(disk, disk.free_bytes() - 4 * MIB)
        wait_until(lambda: _send(client, history, next(sequence)).code == SERVICE_NOT_AVAILABLE)
        refused = _send(client, history, next(sequence))
        assert "disk" in refused.remark.lower()
        ballast.unlink()
        wait_until(lambda: _send(client, history, next(sequence)).code == SUCCESS)
        assert violations(history, served_queues(client, TOPIC, 1)) == []


def test_a_group_that_is_new_can_read_from_a_full_disk(tmp_path: Path, disk: LoopDisk) -> None:
    _ballast(disk, BALLAST_BYTES)
    with (
        Serving(tmp_path / "home", disk.path / "data", settings=SETTINGS) as broker,
        broker.connect() as client,
    ):
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        _fill(client, History(), count())
        assert pull(client, TOPIC, 0, 0).code == SUCCESS


def test_a_disk_that_is_full_at_the_start_still_serves_reads(tmp_path: Path, disk: LoopDisk) -> None:
    history = History()
    home, data = tmp_path / "home", disk.path / "data"
    with Serving(home, data, settings=SETTINGS) as broker, broker.connect() as client:
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        for sequence in range(20):
            assert _send(client, history, sequence).code == SUCCESS
        broker.kill()
    _ballast(disk, disk.free_bytes() - 64 * KIB)
    with Serving(home, data, settings=SETTINGS) as broker, broker.connect() as client:
        assert _send(client, history, 20).code == SERVICE_NOT_AVAILABLE
        assert violations(history, served_queues(client, TOPIC, 1)) == []


def _ballast(disk: LoopDisk, size_bytes: int, name: str = "ballast") -> Path:
    path = disk.path / name
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return path


def _fill(client: PlainClient, history: History, sequence: Iterator[int]) -> Reply:
    """Sends until the broker refuses, and returns the refusal."""
    for _ in range(64 * MIB // BODY_BYTES):
        reply = _send(client, history, next(sequence))
        if reply.code != SUCCESS:
            return reply
    raise AssertionError("more was taken than the disk can hold")


def _send(client: PlainClient, history: History, sequence: int, body_bytes: int = BODY_BYTES) -> Reply:
    key = Key(0, sequence)
    history.attempt(key, 0)
    reply = send(client, TOPIC, 0, body_of(key, body_bytes))
    if reply.code == SUCCESS:
        history.acknowledge(key, int(reply.fields["queueOffset"]))
    return reply


def test_a_full_disk_is_rescued_while_the_broker_runs(tmp_path: Path, disk: LoopDisk) -> None:
    """The steps that an operator takes at night: each is a command that the one before it has named."""
    home, data = tmp_path / "home", disk.path / "data"
    sequence, history = count(), History()
    # Small files and messages, so that the disk hardly fills up further until the level is noticed.
    settings = {**SETTINGS, "commit_log_file_bytes": MIB}
    with Serving(home, data, settings=settings) as broker, broker.connect() as client:
        assert create_topic(client, TOPIC, 1).code == SUCCESS
        assert _send(client, history, next(sequence), SMALL_BYTES).code == SUCCESS
        ballast = _ballast(disk, disk.free_bytes() - 4 * MIB)
        wait_until(lambda: _send(client, history, next(sequence), SMALL_BYTES).code == SERVICE_NOT_AVAILABLE)
        refused = _send(client, history, next(sequence), SMALL_BYTES)
        assert "disk_refuse_percent" in refused.remark and "metaq config set" in refused.remark
        with Admin(broker.nameserver) as admin:
            [finding] = [found for found in admin.health.check().findings if found.kind == "disk-full"]
            assert "disk_refuse_percent=90" in finding.text
            assert finding.command.startswith("metaq config set broker-a disk_refuse_percent=")
            _run(broker, finding.command)
            wait_until(lambda: _send(client, history, next(sequence), SMALL_BYTES).code == SUCCESS)
            found = [each.kind for each in admin.health.check().findings]
            assert "disk-full" not in found and "disk-high" in found
            _run(broker, "metaq config set broker-a disk_refuse_percent=98 file_reserved_hours=24 --persist")
        broker.kill()

    with Serving(home, data, settings=settings) as broker, broker.connect() as client:
        assert _send(client, history, next(sequence), SMALL_BYTES).code == SUCCESS, "the level is kept"
        with Admin(broker.nameserver) as admin:
            options = {option.name: option for option in admin.brokers.options("broker-a") or ()}
            kept = options["file_reserved_hours"]
            assert (kept.value, kept.source) == ("24", "kept")
            admin.brokers.unset("broker-a", ["disk_refuse_percent", "file_reserved_hours"])
            assert _send(client, history, next(sequence), SMALL_BYTES).code == SERVICE_NOT_AVAILABLE
        ballast.unlink()
        wait_until(lambda: _send(client, history, next(sequence), SMALL_BYTES).code == SUCCESS)
        assert violations(history, served_queues(client, TOPIC, 1)) == []


def test_a_value_that_cannot_be_kept_changes_nothing(tmp_path: Path, disk: LoopDisk) -> None:
    with Serving(tmp_path / "home", disk.path / "data") as broker, Admin(broker.nameserver) as admin:
        # Takes the place of the file that is written first.
        (disk.path / "data" / "options.json.tmp").mkdir()
        with pytest.raises(Refused, match="Without --persist the change needs no disk"):
            admin.brokers.configure("broker-a", {"file_reserved_hours": "24"}, persist=True)
        assert admin.brokers.configuration("broker-a").values["fileReservedTime"] == "72"
        changed = admin.brokers.configure("broker-a", {"file_reserved_hours": "24"})
        assert changed.values["fileReservedTime"] == "24"


def _run(broker: Serving, command: str) -> None:
    outcome = CliRunner().invoke(app, command.split()[1:], env={"METAQ_NAMESRV": broker.nameserver})
    assert outcome.exit_code == 0, outcome.output
