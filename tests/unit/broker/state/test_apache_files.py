"""RocketMQ's files: they become the journal's first snapshot, and an export writes them again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from metaq.broker.state import delay_progress
from metaq.broker.state.apache_files import export_config, open_journal, read_files
from metaq.broker.state.offsets import OFFSETS, RESETS, offsets_in
from metaq.errors import CommandError
from metaq.held_file import HeldFile
from metaq.journal.journal import Journal, JournalDamaged
from metaq.metadata import MetadataDamaged
from metaq.protocol.bodies import DelayOffsets

VERSION = '"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000}'
FILES = {
    "topics.json": f'{{{VERSION},"topicConfigTable":{{"orders":{{"attributes":{{}},"order":false,"perm":6,'
    '"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,'
    '"writeQueueNums":4}}}',
    "subscriptionGroup.json": f'{{{VERSION},"forbiddenTable":{{"billing":{{"orders":4}}}},'
    '"subscriptionGroupTable":{"billing":{"groupName":"billing","retryMaxTimes":3}}}',
    "consumerOffset.json": f'{{{VERSION},"offsetTable":{{"orders@billing":{{0:5,1:6,130:7}}}},'
    '"resetTable":{"orders@billing":{1:6}}}',
    "delayOffset.json": f'{{{VERSION},"offsetTable":{{1:12,18:3}}}}',
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The directory of a stopped broker, with the files of RocketMQ."""
    (tmp_path / "config").mkdir()
    for name, content in FILES.items():
        (tmp_path / "config" / name).write_text(content)
    (tmp_path / "lock").touch()
    return tmp_path


def opened(store: Path) -> Journal:
    async def scenario() -> Journal:
        journal = await open_journal(store)
        await journal.close()
        return journal

    return asyncio.run(scenario())


def test_the_files_become_the_first_snapshot(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = opened(store)
    assert journal.point == (1, 12)
    assert journal.get("offsets", "orders@billing@0") == b'{"0":5,"1":6}'
    assert journal.get("offsets", "orders@billing@2") == b'{"130":7}'
    assert journal.get("delay", "18") == b"3"
    opened(store)
    assert caplog.messages == []
    (store / "config" / "topics.json").write_text("?")
    os.utime(store / "config" / "topics.json", (2**32, 2**32))
    assert opened(store).snapshot() == journal.snapshot(), "from then on the journal counts"
    assert "topics.json is newer than the journal" in caplog.text


def test_a_start_that_was_killed_before_the_snapshot_reads_the_files_again(store: Path) -> None:
    Journal.open(store / "journal")
    assert opened(store).point == (1, 12)


def test_damaged_files_are_refused(store: Path) -> None:
    (store / "config" / "topics.json").write_text("?")
    with pytest.raises(MetadataDamaged, match=r"topics\.json"):
        opened(store)
    (store / "config" / "topics.json").write_text(FILES["topics.json"])
    assert opened(store).point == (1, 12), "nothing was taken over before"


def test_a_broker_without_files_begins_with_an_empty_journal(tmp_path: Path) -> None:
    assert opened(tmp_path).snapshot().entries == []
    assert not opened(tmp_path).is_new


def test_an_export_writes_what_was_read_and_retires_the_journal(store: Path) -> None:
    before = read_files(store / "config")
    opened(store)
    for name in FILES:
        (store / "config" / name).unlink()
    written = asyncio.run(export_config(store))
    assert {path.name for path in written} == set(FILES)
    assert read_files(store / "config") == before
    topics = json.loads((store / "config" / "topics.json").read_bytes())
    assert topics["topicConfigTable"] == json.loads(FILES["topics.json"])["topicConfigTable"]
    assert b'"orders@billing":{0:5,1:6,130:7}' in (store / "config" / "consumerOffset.json").read_bytes()
    assert b"{1:12,18:3}" in (store / "config" / "delayOffset.json").read_bytes()
    assert not (store / "journal").exists()
    # Apache's broker goes on with the files, and MetaQ takes over from there again.
    (store / "config" / "delayOffset.json").write_bytes(
        DelayOffsets(offset_table={1: 99}).encode(bare_integer_keys=True)
    )
    assert opened(store).get("delay", "1") == b"99"
    assert asyncio.run(export_config(store)) and asyncio.run(export_config(store)) == []


def test_a_running_broker_is_not_exported(store: Path, tmp_path: Path) -> None:
    held = HeldFile(store / "lock")
    with pytest.raises(CommandError, match="stop it first"):
        asyncio.run(export_config(store))
    held.close()
    with pytest.raises(CommandError, match="not the directory of a broker"):
        asyncio.run(export_config(tmp_path / "elsewhere"))


TOO_MUCH = "9" * 30


@pytest.mark.parametrize(
    ("name", "content", "offsets", "levels", "set_aside"),
    [
        (
            "consumerOffset.json",
            f'{{{VERSION},"offsetTable":{{"orders@billing":{{0:5,1:{TOO_MUCH},{TOO_MUCH}:3,2147483647:4,-1:2}},'
            '"orders@audit":[1],"orders@mail":{3:8}}}',
            {"orders@billing": {0: 5}, "orders@mail": {3: 8}},
            {"1": 12, "18": 3},
            ["orders@audit@unreadable", "orders@billing@unreadable"],
        ),
        (
            "delayOffset.json",
            f'{{{VERSION},"offsetTable":{{1:{TOO_MUCH},18:3,{TOO_MUCH}:4}}}}',
            {"orders@billing": {0: 5, 1: 6, 130: 7}},
            {"18": 3},
            ["1", TOO_MUCH],
        ),
        (
            "consumerOffset.json",
            f'{{"dataVersion":{{"counter":{TOO_MUCH}}},"offsetTable":{{"orders@mail":{{3:8}}}}}}',
            {"orders@mail": {3: 8}},
            {"1": 12, "18": 3},
            [],
        ),
    ],
)
def test_values_out_of_their_range_are_set_aside(
    store: Path,
    name: str,
    content: str,
    offsets: dict[str, dict[int, int]],
    levels: dict[str, int],
    set_aside: list[str],
) -> None:
    (store / "config" / name).write_text(content)
    journal = opened(store)
    assert offsets_in(journal, OFFSETS) == offsets
    offsets_in(journal, RESETS)
    decode_offset, decode_level = delay_progress.decode_offset, delay_progress.decode_level
    assert journal.decoded(delay_progress.TABLE, decode_offset, decode_level) == levels
    kept = [json.loads(path.read_text()) for path in (store / "set-aside").glob("*.json")]
    assert sorted(entry["key"] for entry in kept) == set_aside
    assert all(entry["reason"] for entry in kept)


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json"])
def test_a_version_out_of_its_range_stops_nobody(store: Path, name: str) -> None:
    content = FILES[name].replace('"counter":3', f'"counter":{TOO_MUCH}')
    (store / "config" / name).write_text(content)
    assert opened(store).point == (1, 12)


def written_store(store: Path) -> Path:
    """Has one change after the first snapshot; returns the log of the journal."""

    async def scenario() -> None:
        journal = await open_journal(store)
        await journal.write([("topics", "extra", b"{}")])
        await journal.write([("topics", "newest", b"{}")])
        await journal.close()

    asyncio.run(scenario())
    return max((store / "journal").glob("*.log"))


def flip_a_bit(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def test_a_lone_broker_refuses_a_damaged_journal_and_says_what_is_lost(store: Path) -> None:
    flip_a_bit(written_store(store))
    with pytest.raises(JournalDamaged, match="is damaged") as refused:
        opened(store)
    assert "journal.mark away: topics, groups, limits, committed offsets" in refused.value.hint
    (store / "journal").rename(store / "elsewhere")
    with pytest.raises(JournalDamaged, match="missing or empty"):
        opened(store)
    (store / "journal.mark").unlink()
    shutil.rmtree(store / "journal")
    assert opened(store).point == (1, 12), "from the files in config/"


def test_a_lone_broker_reports_entries_that_are_missing_at_the_end(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = written_store(store)
    log.write_bytes(log.read_bytes()[:-4])
    assert opened(store).point == (1, 13)
    assert "the newest changes of topics, groups, limits and offsets are lost" in caplog.text


def test_a_node_of_a_group_moves_a_damaged_journal_aside(store: Path) -> None:
    """A second kill does not hide that, and the files in config/ do not take the place of the journal."""
    flip_a_bit(written_store(store))
    (store / "journal.mark").unlink()

    async def scenario() -> Journal:
        journal = await open_journal(store, has_peers=True)
        await journal.close()
        return journal

    for _ in range(2):
        journal = asyncio.run(scenario())
        assert (journal.is_new, journal.found.is_behind) == (True, True)
    [aside] = store.glob("journal.damaged-*")
    assert list(aside.glob("*.log")), "the damaged files are kept"


def test_an_exported_store_starts_without_its_journal(store: Path) -> None:
    written_store(store)
    asyncio.run(export_config(store))
    assert opened(store).get("delay", "18") == b"3"
