"""The file of a node keeps its promises, and a damaged one is refused."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import msgspec
import pytest

from metaq.ha.conducting.node_files import NodeFiles, NodeRecord
from metaq.ha.epochs import History
from metaq.ha.group_record import RecordPromise
from metaq.metadata import MetadataDamaged

RECORD = NodeRecord(
    incarnation="a1b2",
    boot_id="boot",
    promised_epoch=5,
    epochs=((1, 0), (4, 100)),
    truncate_to=90,
    cluster_id="c1",
)


def load(directory: Path) -> NodeRecord | None:
    return asyncio.run(NodeFiles(directory).load())


def save(directory: Path, record: NodeRecord) -> Path:
    files = NodeFiles(directory)
    asyncio.run(files.save(record))
    return files.path


def test_a_new_directory_has_no_record(tmp_path: Path) -> None:
    assert load(tmp_path) is None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(tmp_path, RECORD)
    assert load(tmp_path) == RECORD
    changed = RECORD.with_history(History.of([(1, 0)])).change(truncate_to=None)
    save(tmp_path, changed)
    assert load(tmp_path) == changed
    assert RECORD.history.pairs() == [(1, 0), (4, 100)]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, RECORD)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(MetadataDamaged, match=r"replication\.json cannot be read"):
            load(tmp_path)


def test_a_shortened_file_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, RECORD)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(MetadataDamaged):
            load(tmp_path)


def test_the_hint_says_how_to_go_on(tmp_path: Path) -> None:
    save(tmp_path, RECORD).write_bytes(b"")
    with pytest.raises(MetadataDamaged) as caught:
        load(tmp_path)
    assert "copies everything from the master" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epochs": ((4, 0), (1, 5))}, "does not follow"),
        ({"promised_epoch": 3}, "only 3 was promised"),
    ],
)
def test_content_that_contradicts_itself_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NodeRecord.decode(RECORD.change(**change).encode())


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version is 2"):
        NodeRecord.decode(RECORD.encode().replace(b'"version":1', b'"version":2'))


def test_a_file_of_an_older_broker_has_promised_no_record(tmp_path: Path) -> None:
    body = json.loads(msgspec.json.encode(RECORD))
    del body["promised_record"]
    node = json.dumps(body).encode()
    old = b'{"version":1,"crc32":%d,"node":%s}\n' % (zlib.crc32(node), node)
    (tmp_path / "replication.json").write_bytes(old)
    assert load(tmp_path) == RECORD
    assert RECORD.promised_record == RecordPromise()
