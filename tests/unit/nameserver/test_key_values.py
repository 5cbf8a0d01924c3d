"""The name server's table of keys and values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaq.metadata import MetadataDamaged
from metaq.nameserver import key_values
from metaq.nameserver.key_values import KeyValues
from metaq.protocol.errors import ProtocolError


def test_put_get_delete() -> None:
    table = KeyValues()
    assert table.get("n", "k") is None
    assert table.all_of("n") is None
    table.put("n", "k", "v")
    table.put("n", "k", "w")
    table.put("n", "empty", "")
    assert table.get("n", "k") == "w"
    assert table.all_of("n") == {"k": "w", "empty": ""}
    table.delete("n", "k")
    table.delete("n", "k")
    table.delete("m", "k")
    table.delete("n", "empty")
    assert table.all_of("n") is None


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
        KeyValues().put(namespace, key, value)


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "TABLE_CHARACTERS_MAX", 10)
    table = KeyValues()
    table.put("n", "k", "12345678")
    with pytest.raises(ProtocolError, match="the table is full"):
        table.put("n", "l", "1")
    table.put("n", "k", "1")
    table.put("n", "l", "12345")
    table.delete("n", "k")
    table.delete("n", "l")
    table.put("m", "k", "12345678")


def test_the_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KeyValues(path)
    table.put("ORDER_TOPIC_CONFIG", "T", "b:4")
    table.put("ORDER_TOPIC_CONFIG", "U", "b:1")
    table.delete("ORDER_TOPIC_CONFIG", "U")
    assert json.loads(path.read_text()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "b:4"}}}
    assert KeyValues(path).all_of("ORDER_TOPIC_CONFIG") == {"T": "b:4"}
    assert {file.name for file in path.parent.iterdir()} == {"kvConfig.json", "kvConfig.json.bak"}


def test_what_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KeyValues(path)
    table.put("n", "k", "v")
    # A directory in the place of the file that is being written.
    path.with_name(path.name + ".tmp").mkdir()
    with pytest.raises(OSError):
        table.put("n", "k", "w")
    with pytest.raises(OSError):
        table.delete("n", "k")
    assert table.all_of("n") == KeyValues(path).all_of("n") == {"k": "v"}


def test_a_damaged_file_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":')
    with pytest.raises(MetadataDamaged, match=r"kvConfig\.json: the body is not"):
        KeyValues(path)
    with pytest.raises(MetadataDamaged, match="Is a directory"):
        KeyValues(tmp_path)
