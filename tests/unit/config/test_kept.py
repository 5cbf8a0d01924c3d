"""Values that operators keep at run time: their place among the sources, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metaq.config import Config, load
from metaq.config.kept import KEPT_FILE, kept_file, read_kept, with_kept, write_kept
from metaq.config.sources import Source
from metaq.errors import ConfigError


def configured(data: Path, file: str = "", **sources: str) -> Config:
    toml = data / "metaq.toml"
    toml.write_text(file)
    environment = {name: value for name, value in sources.items() if name.startswith("METAQ_")}
    assignments = [sources["set"]] if "set" in sources else []
    return with_kept(
        load({"data": str(data)}, assignments=assignments, file=str(toml), environment=environment)
    )


def test_without_a_kept_value_nothing_changes(tmp_path: Path) -> None:
    assert configured(tmp_path)["file_reserved_hours"] == 72


def test_a_kept_value_wins_over_the_file_and_over_nothing_else(tmp_path: Path) -> None:
    write_kept(kept_file(tmp_path), {"file_reserved_hours": "24", "log_level": "debug"})
    config = configured(tmp_path, "file_reserved_hours = 48")
    setting = config.settings["file_reserved_hours"]
    assert (setting.value, setting.source, setting.origin) == (24, Source.KEPT, "config set --persist")
    assert setting.beneath is not None and setting.beneath.value == 48
    assert [note for note in config.notes if "24" in note and "48" in note and "metaq.toml" in note]
    for source in ({"METAQ_FILE_RESERVED_HOURS": "96"}, {"set": "file_reserved_hours=96"}):
        config = configured(tmp_path, **source)
        assert config["file_reserved_hours"] == 96
        assert [note for note in config.notes if "does not count" in note]


def test_the_file_is_private_and_read_as_it_was_written(tmp_path: Path) -> None:
    path = kept_file(tmp_path)
    write_kept(path, {"disk_refuse_percent": "95"})
    assert path.name == KEPT_FILE and path.stat().st_mode & 0o777 == 0o600
    assert read_kept(path) == {"disk_refuse_percent": "95"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"options": {"file_reserved_hours": "24"}, "checksum": 1}',
        b"{" + b" " * 70_000,
    ],
)
def test_a_damaged_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEPT_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be used") as raised:
        configured(tmp_path)
    assert "remove it" in raised.value.hint


@pytest.mark.parametrize("digit", range(10))
def test_a_changed_digit_is_found(tmp_path: Path, digit: int) -> None:
    path = kept_file(tmp_path)
    write_kept(path, {"file_reserved_hours": "724"})
    content = path.read_bytes()
    changed = content.replace(b'"724"', b'"7%d4"' % digit)
    path.write_bytes(changed)
    if changed == content:
        assert configured(tmp_path)["file_reserved_hours"] == 724
    else:
        with pytest.raises(ConfigError, match="checksum"):
            configured(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"nonsense": "1"},
        {"broker_port": "1"},
        {"disk_refuse_percent": "100"},
        {"log_level": "x"},
        {"delete_when": "٣"},
    ],
)
def test_an_option_that_cannot_be_kept_stops_the_start(tmp_path: Path, options: dict[str, str]) -> None:
    write_kept(kept_file(tmp_path), options)
    with pytest.raises(ConfigError, match="cannot be used"):
        configured(tmp_path)


def test_a_failed_write_leaves_the_old_values(tmp_path: Path) -> None:
    path = kept_file(tmp_path)
    write_kept(path, {"file_reserved_hours": "24"})
    before = path.read_bytes()
    path.with_name(path.name + ".tmp").mkdir()
    with pytest.raises(OSError):
        write_kept(path, {"file_reserved_hours": "1"})
    assert path.read_bytes() == before
    assert msgspec.json.decode(before)["options"] == {"file_reserved_hours": "24"}
