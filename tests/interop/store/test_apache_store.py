"""One store directory, opened by Apache's store and by ours in turn: each reads what the other wrote.

Apache's side is DefaultMessageStore of `rocketmq-store`. Ours is the bare store to read records by
position, and a whole broker to write, and to read through queues.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from metaq import _core
from metaq.settings import StoreSettings
from tests.interop.store.apache_store import SETTINGS, ApacheStore, Facts, Queue
from tests.support.plain_client import (
    SEND_BATCH_MESSAGE,
    SUCCESS,
    PlainClient,
    create_topic,
    read_queue,
    send,
    send_fields,
)
from tests.support.serving import Serving
from tests.support.waiting import eventually

TOPICS = {"orders": 4, "six": 2, "batches": 3, "%RETRY%" + "g" * 180: 1}
PREPARED, ROLLBACK = 4, 12
NOT_QUEUED = (PREPARED, ROLLBACK)
"""Half and rolled-back messages are in the log but in no queue."""
FAR_FUTURE_MS = 1 << 60


@pytest.fixture
def apache(tmp_path: Path) -> ApacheStore:
    (tmp_path / "home").mkdir()
    return ApacheStore(tmp_path / "data", tmp_path / "home")


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_ours_reads_what_apache_wrote(apache: ApacheStore, tmp_path: Path, crash: bool) -> None:
    written = apache.write("a", crash=crash)
    with opened(apache.directory) as store:
        _check_records(store, written)
        _check_queues(store, written)
        _check_keys(store, written)
        _check_times(store, written)
    _check_pulls(apache.directory, tmp_path, written)


def test_apache_reads_what_ours_wrote(apache: ApacheStore, tmp_path: Path) -> None:
    sent = _write_with_ours(apache.directory, tmp_path, "ours", stop=True)
    _check_apache_sees(apache.read(), sent)


def test_apache_reads_what_ours_left_when_it_was_killed(apache: ApacheStore, tmp_path: Path) -> None:
    sent = _write_with_ours(apache.directory, tmp_path, "ours", stop=False)
    _check_apache_sees(apache.read(), sent)


def test_both_append_in_turn_and_both_read_it_all(apache: ApacheStore, tmp_path: Path) -> None:
    first = _write_with_ours(apache.directory, tmp_path, "first", stop=True)
    written = apache.write("second")
    third = _write_with_ours(apache.directory, tmp_path, "third", stop=True)
    queues = apache.read()
    seen_by_apache = [_bare(message) for queue in queues for message in queue.messages]
    with opened(apache.directory) as store:
        _check_records(store, [*written, *seen_by_apache])
        _check_queues(store, seen_by_apache)
        _check_keys(store, seen_by_apache)
        for queue in queues:
            for message in queue.messages:
                _check_time_as_apache(store, message)
    bodies = {bytes.fromhex(message["body"]) for message in seen_by_apache}
    assert {body for body, _ in [*first, *third]} <= bodies
    in_queues = [one for one in written if one["system_flag"] not in NOT_QUEUED]
    assert len(seen_by_apache) == len(first) + len(in_queues) + len(third)


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
def test_apache_finds_our_checksums_right(apache: ApacheStore, tmp_path: Path, stop: bool) -> None:
    sent = _write_with_ours(apache.directory, tmp_path, "ours", stop=stop)
    _check_apache_sees(apache.read(checksums=True), sent)
    verified = apache.verify()
    assert len(verified) == len(sent)
    assert all(verified.values())
    # A changed property is what the body's checksum does not cover.
    victim = sorted(verified)[len(verified) // 2]
    _flip_property(apache.directory, victim)
    for_ours = tmp_path / "copy"
    shutil.copytree(apache.directory, for_ours)
    # Apache's recovery cuts the log there.
    assert sorted(apache.verify()) == sorted(offset for offset in verified if offset < victim)
    with _serving(for_ours, tmp_path) as broker, broker.connect() as client:
        served = [
            one.physical_offset
            for topic in ("orders", "batches")
            for queue_id in range(TOPICS[topic])
            for one in read_queue(client, topic, queue_id)
        ]
    assert sorted(served) == sorted(verified.keys() - {victim})


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_ours_finds_apaches_checksums_right(apache: ApacheStore, tmp_path: Path, crash: bool) -> None:
    written = apache.write("a", crash=crash, checksums=True)
    with opened(apache.directory) as store:
        assert store.damaged_ranges(0, store.end_offset()) == []
        assert store.uncovered_records(0, store.end_offset()) == 0
        _check_records(store, written)
        _check_queues(store, written)
    in_queues = [one for one in written if one["system_flag"] not in NOT_QUEUED]
    message = in_queues[len(in_queues) // 2]
    victim, body = message["physical_offset"], bytes.fromhex(message["body"])
    _flip_property(apache.directory, victim)
    with opened(apache.directory) as store:
        # It looks like a copy that an older version made, with the checksum of its original.
        assert store.damaged_ranges(0, store.end_offset()) == []
        assert store.uncovered_records(0, store.end_offset()) == 1
    _flip(apache.directory, victim, lambda record: record.index(body))
    with opened(apache.directory) as store:
        found = store.damaged_ranges(0, store.end_offset())
        assert found is not None
        assert [start for start, _ in found] == [victim]
        assert store.record_at(victim) is None


def test_apache_with_checksums_appends_to_ours_and_ours_to_that(apache: ApacheStore, tmp_path: Path) -> None:
    first = _write_with_ours(apache.directory, tmp_path, "first", stop=True)
    apache.write("second", checksums=True)
    third = _write_with_ours(apache.directory, tmp_path, "third", stop=True)
    queues = apache.read(checksums=True)
    bodies = {bytes.fromhex(message["body"]) for queue in queues for message in queue.messages}
    assert {body for body, _ in [*first, *third]} <= bodies
    assert all(apache.verify().values())
    with opened(apache.directory) as store:
        assert store.damaged_ranges(0, store.end_offset()) == []
        assert store.uncovered_records(0, store.end_offset()) == 0


def _flip_property(directory: Path, physical_offset: int) -> None:
    """Changes one bit in the value of a record's last own property."""
    _flip(directory, physical_offset, lambda record: len(record) - 20 - 2)


def _flip(directory: Path, physical_offset: int, place: Callable[[bytes], int]) -> None:
    """Changes one bit of the byte of a record at a place that depends on the record."""
    start = physical_offset // SETTINGS["commit_log_file_bytes"] * SETTINGS["commit_log_file_bytes"]
    with (directory / "commitlog" / f"{start:020}").open("r+b") as log:
        log.seek(physical_offset - start)
        (size,) = struct.unpack(">I", log.read(4))
        log.seek(physical_offset - start)
        record = log.read(size)
        changed = place(record)
        log.seek(physical_offset - start + changed)
        log.write(bytes((record[changed] ^ 1,)))


# ------------------------------------------------------------------------------------------- ours, reading


@contextmanager
def opened(directory: Path) -> Iterator[_core.Store]:
    settings = StoreSettings(
        directory=str(directory),
        commit_log_file_bytes=SETTINGS["commit_log_file_bytes"],
        consume_queue_file_entries=SETTINGS["consume_queue_file_entries"],
        index_slots=SETTINGS["index_slots"],
        index_entries=SETTINGS["index_entries"],
        allocation_step_bytes=16 * 1024,
    )
    store = _core.Store(settings, _core.Clock())
    try:
        assert [report for report in store.take_reports() if "damaged" in report] == []
        yield store
    finally:
        store.close()


def _facts(record: bytes) -> Facts:
    (one,) = _core.decode_records(record)
    return {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset,
        "physical_offset": one.physical_offset,
        "flag": one.flag,
        "system_flag": one.system_flag,
        "born_timestamp_ms": one.born_timestamp_ms,
        "born_host": _hex_host(one.born_host),
        "store_timestamp_ms": one.store_timestamp_ms,
        "store_host": _hex_host(one.store_host),
        "reconsume_times": one.reconsume_times,
        "prepared_transaction_offset": one.prepared_transaction_offset,
        "body": one.body.hex(),
        "properties": one.properties,
    }


def _hex_host(host: str) -> str:
    address, _, port = host.rpartition(":")
    return f"{ipaddress.ip_address(address.strip('[]')).packed.hex()}:{port}"


def _check_records(store: _core.Store, written: Iterable[Facts]) -> None:
    for expected in written:
        record = store.record_at(expected["physical_offset"])
        if expected["system_flag"] in NOT_QUEUED:
            assert record is None, "no queue points at it, so no client may name it"
        else:
            assert record is not None, expected
            assert _facts(record) == _without_checksum(expected)


def _without_checksum(message: Facts) -> Facts:
    """Apache shows the record's checksum as a property; ours takes it off."""
    own = {name: value for name, value in message["properties"].items() if name != "__CRC32#"}
    return {**message, "properties": own}


def _by_queue(written: Iterable[Facts]) -> dict[tuple[str, int], list[Facts]]:
    queues = defaultdict(list)
    for message in written:
        if message["system_flag"] not in NOT_QUEUED:
            queues[message["topic"], message["queue_id"]].append(message)
    return dict(queues)


def _check_queues(store: _core.Store, written: Iterable[Facts]) -> None:
    for (topic, queue_id), messages in _by_queue(written).items():
        assert queue_id in store.queue_ids(topic)
        assert store.min_offset(topic, queue_id) == 0
        assert store.max_offset(topic, queue_id) == len(messages)
        for message in messages:
            stored_at = store.store_time_ms(topic, queue_id, message["queue_offset"])
            assert stored_at == message["store_timestamp_ms"]


def _check_keys(store: _core.Store, written: Iterable[Facts]) -> None:
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in written:
        if message["system_flag"] != ROLLBACK:
            for key in _keys(message):
                expected[message["topic"], key].append(message["physical_offset"])

    for (topic, key), physical_offsets in expected.items():
        _check_key(store, topic, key, sorted(physical_offsets))


def _check_key(store: _core.Store, topic: str, key: str, expected: list[int]) -> None:
    def found() -> list[int]:
        records, _, _, _ = store.query(topic, key, count_max=10_000, begin_ms=0, end_ms=FAR_FUTURE_MS)
        return sorted(_facts(record)["physical_offset"] for record in records)

    # After a crash, a thread of its own completes the index.
    assert eventually(found, lambda offsets: len(offsets) >= len(expected), 90, "indexed") == expected


def _keys(message: Facts) -> set[str]:
    properties = message["properties"]
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return {*properties.get("KEYS", "").split(), *unique}


def _check_times(store: _core.Store, written: Iterable[Facts]) -> None:
    for (topic, queue_id), messages in _by_queue(written).items():
        for message in messages:
            moment = message["store_timestamp_ms"]
            times = [one["store_timestamp_ms"] for one in messages]
            first = next(place for place, time in enumerate(times) if time >= moment)
            last = max(place for place, time in enumerate(times) if time <= moment)
            assert store.search_offset(topic, queue_id, moment) == first
            assert store.search_offset(topic, queue_id, moment, upper=True) == last


def _check_time_as_apache(store: _core.Store, message: Facts) -> None:
    topic, queue_id, moment = message["topic"], message["queue_id"], message["store_timestamp_ms"]
    assert store.search_offset(topic, queue_id, moment) == message["first_not_before"]
    assert store.search_offset(topic, queue_id, moment, upper=True) == message["last_not_after"]


def _check_pulls(directory: Path, tmp_path: Path, written: list[Facts]) -> None:
    """Reads through the queues, as consumers do; the topics come from a file of Apache's format."""
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for topic, queues in TOPICS.items()
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    (directory / "config").mkdir(exist_ok=True)
    (directory / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": table})
    )
    with _serving(directory, tmp_path) as broker, broker.connect() as client:
        for (topic, queue_id), messages in _by_queue(written).items():
            served = read_queue(client, topic, queue_id)
            assert [(one.physical_offset, one.body.hex()) for one in served] == [
                (one["physical_offset"], one["body"]) for one in messages
            ]


# ------------------------------------------------------------------------------------------- ours, writing

Sent = tuple[bytes, dict[str, str]]


def _serving(directory: Path, tmp_path: Path) -> Serving:
    return Serving(tmp_path / "serving", directory, settings={**SETTINGS, "allocation_step_bytes": 16 * 1024})


def _write_with_ours(directory: Path, tmp_path: Path, seed: str, *, stop: bool) -> list[Sent]:
    """Sends to a running broker; returns bodies and properties of the acknowledged messages."""
    sent: list[Sent] = []
    with _serving(directory, tmp_path) as broker, broker.connect() as client:
        for topic in ("orders", "batches"):
            assert create_topic(client, topic, TOPICS[topic]).code == SUCCESS
        for number in range(150):
            body = f"{seed} {number}".encode() * (1 + number % 9)
            properties = {"KEYS": f"{seed}{number} {seed}shared", "UNIQ_KEY": f"{seed}unique{number}"}
            if number % 3:
                properties["TAGS"] = f"tag{number % 3}"
            assert send(client, "orders", number % 4, body, _joined(properties)).code == SUCCESS
            sent.append((body, properties))
            if number % 5 == 0:
                sent += _send_batch(client, seed, number)
        if stop:
            assert broker.stop() == 0
        else:
            broker.kill()
    return sent


def _send_batch(client: PlainClient, seed: str, number: int) -> list[Sent]:
    parts: list[Sent] = []
    data = b""
    for part in range(1 + number % 4):
        body = f"{seed} batch {number} {part}".encode()
        properties = {"KEYS": f"{seed}batch{number}", "UNIQ_KEY": f"{seed}part{number}.{part}", "TAGS": "b"}
        encoded = _joined(properties).encode()
        size = 4 * 5 + len(body) + 2 + len(encoded)
        data += (
            struct.pack(">IIIII", size, 0, 0, 7, len(body)) + body + struct.pack(">H", len(encoded)) + encoded
        )
        parts.append((body, properties))
    reply = client.call(SEND_BATCH_MESSAGE, {**send_fields("batches", number % 3), "m": "true"}, data)
    assert reply.code == SUCCESS, reply
    return parts


def _joined(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def _check_apache_sees(queues: list[Queue], sent: list[Sent]) -> None:
    seen = {bytes.fromhex(message["body"]): message for queue in queues for message in queue.messages}
    assert sum(len(queue.messages) for queue in queues) == len(sent)
    shared: dict[tuple[str, str], list[int]] = defaultdict(list)
    for body, properties in sent:
        message = seen[body]
        assert message["properties"].items() >= properties.items()
        for key in _keys(message):
            shared[message["topic"], key].append(message["physical_offset"])
    for queue in queues:
        assert (queue.min_offset, queue.max_offset) == (0, len(queue.messages))
        for message, queue_offset in zip(queue.messages, count(), strict=False):
            assert message["queue_offset"] == queue_offset
            assert message["first_not_before"] <= queue_offset <= message["last_not_after"]
            for key, physical_offsets in message["found_by_key"].items():
                assert physical_offsets == sorted(shared[queue.topic, key])


def _bare(message: Facts) -> Facts:
    """Returns only the fields that the record itself holds."""
    told = ("first_not_before", "last_not_after", "found_by_key")
    return {name: value for name, value in message.items() if name not in told}
