"""Damaged store files: a damaged record is reported and never served; everything else is still there.

Each case works on its own copy of one small store, edits one file, and starts a broker on it.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.senders import served_queues
from tests.support.checker import History, Key, Served, body_of, violations
from tests.support.plain_client import (
    QUERY_MESSAGE,
    SUCCESS,
    Stored,
    create_topic,
    read_queue,
    send,
    stored_records,
)
from tests.support.serving import KIB, SMALL_FILES, Serving
from tests.support.waiting import wait_until

TOPIC = "damage"
QUEUES = 2
MESSAGES = 300
EARLY, LATE = 20, 280
"""One is in the first of several commit-log files, the other in the last one, which recovery reads."""
SETTINGS = {
    **SMALL_FILES,
    "commit_log_file_bytes": 128 * KIB,
    "consume_queue_file_entries": 100,
    "allocation_step_bytes": 64 * KIB,
    # Every third flush of the queues saves a checkpoint. After a kill, queue files that it covers are
    # trusted and not rebuilt, so none may cover the messages of the sample.
    "queue_flush_interval_ms": 10_000,
}
ENTRY_BYTES = 20


@dataclass(frozen=True)
class Sample:
    """A store with known messages; `stored[n]` is the n-th message sent."""

    data: Path
    history: History
    stored: list[Stored]
    queues: dict[int, list[Served]]


@pytest.fixture(scope="module", params=["stopped", "killed"])
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    home = tmp_path_factory.mktemp("sample")
    history = History()
    with Serving(home, home / "data", settings=SETTINGS) as broker, broker.connect() as client:
        assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
        for sequence in range(MESSAGES):
            key = Key(0, sequence)
            history.attempt(key, sequence % QUEUES)
            properties = f"KEYS\x01key{sequence}\x02TAGS\x01tag{sequence % 3}\x02"
            reply = send(client, TOPIC, sequence % QUEUES, body_of(key, 1_200), properties)
            assert reply.code == SUCCESS
            history.acknowledge(key, int(reply.fields["queueOffset"]))
        by_queue = [read_queue(client, TOPIC, queue_id) for queue_id in range(QUEUES)]
        # Entries reach their files a little later than messages reach the log. The test needs them to damage.
        wait_until(lambda: all(_entry(home / "data", queue_id, -1) for queue_id in range(QUEUES)))
        if request.param == "stopped":
            assert broker.stop() == 0
        else:
            broker.kill()
    yield Sample(
        data=home / "data",
        history=history,
        stored=[by_queue[sequence % QUEUES][sequence // QUEUES] for sequence in range(MESSAGES)],
        queues={q: [Served(one.queue_offset, one.body) for one in by_queue[q]] for q in range(QUEUES)},
    )


@pytest.fixture
def copy(sample: Sample, tmp_path: Path) -> Path:
    """A copy of the sample's data for the test to damage."""
    shutil.copytree(sample.data, tmp_path / "data")
    return tmp_path / "data"


# -------------------------------------------------------------------------------------------- the commit log


def _flip_body(record: bytearray, _: Stored) -> None:
    record[len(record) // 2] ^= 0x04


def _flip_magic(record: bytearray, _: Stored) -> None:
    record[5] ^= 0x10


def _flip_size(record: bytearray, _: Stored) -> None:
    record[2] ^= 0x01


def _flip_physical_offset(record: bytearray, _: Stored) -> None:
    record[33] ^= 0x01


def _flip_body_size(record: bytearray, stored: Stored) -> None:
    at = bytes(record).index(stored.body) - 4
    record[at + 1] ^= 0x7F


def _flip_property(record: bytearray, _: Stored) -> None:
    record[bytes(record).index(b"TAGS\x01") + 5] ^= 0x01


def _flip_topic(record: bytearray, _: Stored) -> None:
    record[bytes(record).index(TOPIC.encode())] ^= 0x02


def _flip_flag(record: bytearray, _: Stored) -> None:
    record[19] ^= 0x01


def _flip_born_time(record: bytearray, _: Stored) -> None:
    record[47] ^= 0x01


def _flip_store_time(record: bytearray, _: Stored) -> None:
    record[62] ^= 0x01


def _flip_checksum(record: bytearray, _: Stored) -> None:
    record[-5] ^= 0x01


def _flip_checksum_name(record: bytearray, _: Stored) -> None:
    record[-15] ^= 0x01


def _erase_end(record: bytearray, _: Stored) -> None:
    """Leaves a record whose lengths and body are right, as a lost block does."""
    record[-40:] = bytes(40)


def _erase(record: bytearray, _: Stored) -> None:
    record[:] = bytes(len(record))


DAMAGE = (
    _flip_body,
    _flip_magic,
    _flip_size,
    _flip_physical_offset,
    _flip_body_size,
    _flip_property,
    _flip_checksum_name,
    _erase_end,
    _erase,
)
FURTHER_DAMAGE = (_flip_topic, _flip_flag, _flip_born_time, _flip_store_time, _flip_checksum)


@pytest.mark.parametrize("which", [EARLY, LATE], ids=["early", "late"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_reported_and_never_served(
    sample: Sample, copy: Path, tmp_path: Path, damage: Callable[[bytearray, Stored], None], which: int
) -> None:
    _damage(copy, sample.stored[which], damage)
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        queues = served_queues(client, TOPIC, QUEUES)
        assert _missing(sample, queues) == [which]
        # Housekeeping reports damage that reads found, every second.
        wait_until(lambda: "damaged" in broker.log())
        # The broker takes new messages, and a second start finds the same.
        assert send(client, TOPIC, 0, b"after").code == SUCCESS
        assert broker.stop() == 0
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        again = served_queues(client, TOPIC, QUEUES)
        assert again.pop(1) == queues[1]
        assert again[0][:-1] == queues[0]
        assert again[0][-1].body == b"after"


def test_a_running_broker_serves_no_damaged_record(sample: Sample, copy: Path, tmp_path: Path) -> None:
    victims = {10 + 15 * place: damage for place, damage in enumerate((*DAMAGE, *FURTHER_DAMAGE))}
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        assert _missing(sample, served_queues(client, TOPIC, QUEUES)) == []
        for which, damage in victims.items():
            _damage(copy, sample.stored[which], damage)
        assert _missing(sample, served_queues(client, TOPIC, QUEUES)) == sorted(victims)
        wait_until(lambda: broker.log().count("is damaged and not served") == len(victims))


def test_a_torn_tail_is_cut(sample: Sample, copy: Path, tmp_path: Path) -> None:
    last = sample.stored[-1]
    file, at = _place_in_log(copy, last.physical_offset)
    with file.open("r+b") as log:
        log.seek(at + last.size_bytes // 2)
        log.write(bytes(last.size_bytes - last.size_bytes // 2))
    # A crash leaves a torn tail; a store that was stopped cleanly has none.
    (copy / "abort").touch()
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        assert _missing(sample, served_queues(client, TOPIC, QUEUES)) == [MESSAGES - 1]
        reply = send(client, TOPIC, last.queue_id, b"in its place")
        assert int(reply.fields["queueOffset"]) == last.queue_offset


def test_the_checker_notices_a_recovery_that_cuts_too_much(
    sample: Sample, copy: Path, tmp_path: Path
) -> None:
    first_cut = sample.stored[-20]
    file, at = _place_in_log(copy, first_cut.physical_offset)
    with file.open("r+b") as log:
        size = log.seek(0, 2)
        log.seek(at)
        log.write(bytes(size - at))
    for later in sorted(file.parent.iterdir()):
        if later.name > file.name:
            later.unlink()
    (copy / "abort").touch()
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        found = violations(sample.history, served_queues(client, TOPIC, QUEUES), sample.queues)
    assert any(sentence.startswith("lost") for sentence in found)


# ------------------------------------------------------------------------------- files built from the log


def _drop(*names: str) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        for name in names:
            target = data / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()

    damage.__name__ = "drop_" + "_".join(names)
    return damage


def _garble_checkpoint(data: Path) -> None:
    (data / "checkpoint").write_bytes(b"\xff" * 4096)


def _empty_checkpoint(data: Path) -> None:
    (data / "checkpoint").write_bytes(b"")


def _drop_last_queue_file(data: Path) -> None:
    sorted((data / "consumequeue" / TOPIC / "0").iterdir())[-1].unlink()


def _truncate_queue_file(data: Path) -> None:
    file = sorted((data / "consumequeue" / TOPIC / "0").iterdir())[-1]
    file.write_bytes(file.read_bytes()[: 30 * ENTRY_BYTES + 7])


def _garble_index(data: Path) -> None:
    for file in (data / "index").iterdir():
        file.write_bytes(b"\x5a" * file.stat().st_size)


def _truncate_index(data: Path) -> None:
    for file in (data / "index").iterdir():
        file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    "damage",
    [
        _drop("checkpoint"),
        _drop("index"),
        _drop("consumequeue"),
        _drop("consumequeue", "index", "checkpoint"),
        _garble_checkpoint,
        _empty_checkpoint,
        _drop_last_queue_file,
        _truncate_queue_file,
        _garble_index,
        _truncate_index,
    ],
)
def test_lost_queue_and_index_files_are_rebuilt(
    sample: Sample, copy: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(copy)
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        assert _missing(sample, served_queues(client, TOPIC, QUEUES)) == []
        for sequence in (0, EARLY, LATE):
            fields = {"topic": TOPIC, "key": f"key{sequence}", "maxNum": "8", "beginTimestamp": "0"}
            reply = client.call(QUERY_MESSAGE, {**fields, "endTimestamp": str(1 << 62)})
            found = (
                [one.physical_offset for one in stored_records(reply.body)] if reply.code == SUCCESS else []
            )
            assert found == [sample.stored[sequence].physical_offset], (
                f"key{sequence}: {reply.code} {reply.remark}"
            )
        assert broker.stop() == 0


@pytest.mark.parametrize("field", [3, 7, 10, 18], ids=["far offset", "near offset", "size", "tag"])
def test_a_damaged_queue_entry_never_serves_another_message(
    sample: Sample, copy: Path, tmp_path: Path, field: int
) -> None:
    """Entry: physical offset 8 | size 4 | tag code 8. It may be repaired or passed over."""
    victim = sample.stored[EARLY]
    file = sorted((copy / "consumequeue" / TOPIC / str(victim.queue_id)).iterdir())[0]
    entries = bytearray(file.read_bytes())
    at = victim.queue_offset * ENTRY_BYTES
    assert struct.unpack_from(">q", entries, at)[0] == victim.physical_offset
    entries[at + field] ^= 0x01
    file.write_bytes(entries)
    with Serving(tmp_path / "home", copy, settings=SETTINGS) as broker, broker.connect() as client:
        assert _missing(sample, served_queues(client, TOPIC, QUEUES)) in ([], [EARLY])
        assert broker.stop() == 0


def _entry(data: Path, queue_id: int, number: int) -> bool:
    """Returns whether the queue's files hold that entry."""
    files = sorted((data / "consumequeue" / TOPIC / str(queue_id)).glob("*"))
    entries = b"".join(file.read_bytes() for file in files)
    at = (MESSAGES // QUEUES + number) * ENTRY_BYTES
    return any(entries[at : at + ENTRY_BYTES])


def _missing(sample: Sample, queues: dict[int, list[Served]]) -> list[int]:
    """Returns which messages are not served, and checks that the others are right and in order."""
    missing = []
    for queue_id, messages in sample.queues.items():
        served = set(queues[queue_id])
        assert [one for one in messages if one in served] == queues[queue_id]
        missing += [
            which for which in range(queue_id, MESSAGES, QUEUES) if messages[which // QUEUES] not in served
        ]
    return sorted(missing)


def _damage(data: Path, victim: Stored, damage: Callable[[bytearray, Stored], None]) -> None:
    file, at = _place_in_log(data, victim.physical_offset)
    with file.open("r+b") as log:
        log.seek(at)
        record = bytearray(log.read(victim.size_bytes))
        damage(record, victim)
        log.seek(at)
        log.write(record)


def _place_in_log(data: Path, physical_offset: int) -> tuple[Path, int]:
    files = sorted((data / "commitlog").iterdir())
    file = [one for one in files if int(one.name) <= physical_offset][-1]
    return file, physical_offset - int(file.name)
