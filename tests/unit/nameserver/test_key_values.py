"""The name server's table of keys and values."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from metaq.errors import CommandError
from metaq.journal import NotWritten
from metaq.metadata import MetadataDamaged
from metaq.nameserver.key_values import KeyValues
from metaq.protocol.errors import ProtocolError
from metaq.settings import NameServerSettings
from tests.support.waiting import run


def test_put_get_delete() -> None:
    async def scenario() -> None:
        table = KeyValues()
        assert table.get("n", "k") is None
        assert table.all_of("n") is None
        await table.put("n", "k", "v")
        await table.put("n", "k", "w")
        await table.put("n", "empty", "")
        assert table.get("n", "k") == "w"
        assert table.all_of("n") == {"k": "w", "empty": ""}
        assert table.encoded("n") == b'{"table":{"k":"w","empty":""}}'
        await table.delete("n", "k")
        await table.delete("n", "k")
        await table.delete("m", "k")
        assert table.encoded("n") == b'{"table":{"empty":""}}'
        await table.delete("n", "empty")
        assert table.all_of("n") is None
        assert table.encoded("n") == b""

    run(scenario)


@pytest.mark.parametrize(
    ("namespace", "key", "value", "what"),
    [
        ("", "k", "v", "namespace"),
        ("n", "", "v", "key"),
        ("n" * 256, "k", "v", "namespace"),
        ("n", "k" * 256, "v", "key"),
        ("n", "k", "v" * (64 * 1024 + 1), "value"),
    ],
)
def test_limits(namespace: str, key: str, value: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=f"the {what} must have 1 to"):
        asyncio.run(KeyValues().put(namespace, key, value))


def test_the_table_is_bounded() -> None:
    async def scenario() -> None:
        table = KeyValues(limits=NameServerSettings(nameserver_values_bytes_max=32))
        await table.put("n", "k", "12345678")  # ["n","k","12345678"] has 20 bytes.
        with pytest.raises(ProtocolError, match=r"the table is full.*nameserver_values_bytes_max"):
            await table.put("n", "l", "1")
        await table.put("n", "k", "1")
        await table.put("n", "l", "12345")
        await table.delete("n", "k")
        await table.delete("n", "l")
        await table.put("m", "k", "12345678")
        with pytest.raises(ProtocolError, match="the table is full"):
            # As an answer, each of these characters takes six bytes.
            await table.put("m", "l", "\x01" * 2)

    run(scenario)


def test_the_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"

    async def scenario() -> None:
        table = KeyValues(path)
        await table.put("ORDER_TOPIC_CONFIG", "T", "b:4")
        await table.put("ORDER_TOPIC_CONFIG", "U", "b:1")
        await table.delete("ORDER_TOPIC_CONFIG", "U")
        await table.close()
        assert json.loads(path.read_text()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "b:4"}}}
        again = KeyValues(path)
        assert again.all_of("ORDER_TOPIC_CONFIG") == {"T": "b:4"}
        await again.close()

    run(scenario)


def test_a_process_that_was_killed_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        killed = KeyValues(path)
        await killed.put("n", "k", "v")
        assert not path.exists(), "only the journal was written"
        with pytest.raises(CommandError, match="another name server"):
            KeyValues(path)
        assert killed._held is not None and killed._journal is not None
        killed._journal.abandon()
        killed._held.close()
        again = KeyValues(path)
        assert again.all_of("n") == {"k": "v"}
        await again.close()

    run(scenario)


def test_a_file_that_somebody_else_has_changed_counts(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"n":{"old":"1"}}}')

    async def scenario() -> None:
        table = KeyValues(path)
        assert table.all_of("n") == {"old": "1"}
        await table.put("n", "new", "2")
        await table.close()
        assert json.loads(path.read_text()) == {"configTable": {"n": {"old": "1", "new": "2"}}}
        path.write_text('{"configTable":{"n":{"apache":"3"}}}')
        table = KeyValues(path)
        assert table.all_of("n") == {"apache": "3"}
        await table.put("n", "more", "4")
        await table.close()
        table = KeyValues(path)
        assert table.all_of("n") == {"apache": "3", "more": "4"}
        await table.close()

    run(scenario)


@pytest.mark.parametrize("values", [20, 200])
def test_a_change_writes_itself_whatever_the_table_holds(tmp_path: Path, values: int) -> None:
    """Once, each change wrote the whole table, on the event loop."""
    path = tmp_path / "kvConfig.json"

    async def scenario() -> None:
        table = KeyValues(path)
        await asyncio.gather(*(table.put("n", f"k{number}", "v" * 10_000) for number in range(values)))
        assert table._journal is not None
        journal = table._journal.journal
        before = journal.appended_bytes
        await table.put("n", "one", "x" * 100)
        assert 100 < journal.appended_bytes - before < 250
        await table.close()

    run(scenario)


def test_changes_that_come_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    fdatasync = os.fdatasync

    def counting(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        fdatasync(descriptor)

    async def scenario() -> None:
        table = KeyValues(tmp_path / "kvConfig.json")
        monkeypatch.setattr("os.fdatasync", counting)
        await asyncio.gather(*(table.put("n", f"k{number}", "v") for number in range(200)))
        assert syncs <= 3
        monkeypatch.undo()
        await table.close()

    run(scenario)


def test_what_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"

    async def scenario() -> None:
        table = KeyValues(path)
        await table.put("n", "k", "v")

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", full)
            with pytest.raises(NotWritten, match="No space left"):
                await table.put("n", "k", "w")
            with pytest.raises(NotWritten, match="No space left"):
                await table.delete("n", "k")
        assert table.all_of("n") == {"k": "v"}
        await table.close()
        again = KeyValues(path)
        assert again.all_of("n") == {"k": "v"}
        await again.close()

    run(scenario)


def test_a_damaged_file_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":')
    with pytest.raises(MetadataDamaged, match=r"kvConfig\.json: the body is not"):
        KeyValues(path)
    with pytest.raises(OSError, match="Is a directory"):
        KeyValues(tmp_path)
