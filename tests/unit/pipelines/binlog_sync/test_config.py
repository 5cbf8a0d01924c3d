"""The TOML file of binlog-sync: every error names the key and the accepted values."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import CommandError, ConfigError
from metaq.pipelines import PIPELINES, load
from metaq.pipelines.binlog_sync.config import _own_server_id, read_config

GOOD = """
[source]
user = "metaq"
password_file = "secret"
tables = ["shop.*", "crm.customer"]
exclude = ["shop.log_*"]
[topic]
name = "changes"
[state]
file = "state.json"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("pass\n")
    path = tmp_path / "sync.toml"
    path.write_text(GOOD)
    return path


def test_a_valid_file(file: Path) -> None:
    config = read_config(file)
    assert (config.host, config.port, config.password) == ("127.0.0.1", 3306, "pass")
    assert config.state_file == file.parent / "state.json"
    assert config.server_id >= 2**31
    assert "pass" not in repr(config).replace("password", "")
    assert config.selects("shop", "orders")
    assert not config.selects("shop", "log_2026")
    assert not config.selects("crm", "other")
    assert not config.selects("mysql", "user")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('user = "metaq"', "", "source.user is missing; it must be the name of a user"),
        ('user = "metaq"', "user = 3", "source.user = 3: it must be the name of a user"),
        ('user = "metaq"', 'user = "m"\nport = "x"', "source.port = 'x': it must be a whole number from 1"),
        ('user = "metaq"', 'user = "metaq"\nusr = 1', "there is no key source.usr (did you mean user?)"),
        ("[topic]", "[topics]", "there is no section topics (did you mean topic?)"),
        ('["shop.*", "crm.customer"]', '["shop"]', "source.tables has 'shop': write DATABASE.TABLE"),
        ('["shop.*", "crm.customer"]', "[]", "source.tables is empty"),
        ('["shop.*", "crm.customer"]', '"shop.*"', "it must be a list of DATABASE.TABLE"),
        ('name = "changes"', 'name = "a b"', "topic.name = 'a b': it must be a name of letters"),
        ('name = "changes"', 'name = "a"\ncompression = "gzip"', "it must be zlib or lz4 or zstd or none"),
        ('password_file = "secret"', 'password_env = "NOT_THERE"', "which is not in the environment"),
        ('password_file = "secret"', 'password_file = "missing"', "missing cannot be read"),
        ('password_file = "secret"', 'password_file = "secret"\npassword_env = "X"', "one is enough"),
        ('user = "metaq"', 'user = "m"\ncascades = "ignore"', "it must be reread or warn or stop"),
        ("[source]", "[source", "sync.toml: "),
        ("[state]", "[snapshot]", "there is no key snapshot.file"),
    ],
)  # fmt: skip
def test_mistakes(file: Path, old: str, new: str, message: str) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        read_config(file)
    assert message in f"{raised.value}; {raised.value.hint}"
    assert str(file) in str(raised.value)


def test_cascades_need_snapshots(file: Path) -> None:
    assert read_config(file).cascades == "reread"
    file.write_text(f"{GOOD}\n[snapshot]\nenabled = false\n")
    assert read_config(file).cascades == "warn"
    text = GOOD.replace("[source]", '[source]\ncascades = "reread"')
    file.write_text(f"{text}\n[snapshot]\nenabled = false\n")
    with pytest.raises(ConfigError, match=r"snapshot\.enabled is false"):
        read_config(file)


def test_unknown_statements_stop_a_run_that_may_not_read_tables(file: Path) -> None:
    assert read_config(file).unknown_statements == "reread"
    file.write_text(f"{GOOD}\n[snapshot]\nenabled = false\n")
    assert read_config(file).unknown_statements == "stop"
    text = GOOD.replace("[source]", '[source]\nunknown_statements = "reread"')
    file.write_text(f"{text}\n[snapshot]\nenabled = false\n")
    with pytest.raises(ConfigError, match=r"source\.unknown_statements is .* snapshot\.enabled is false"):
        read_config(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_registered_pipeline_can_be_loaded(name: str) -> None:
    assert {"from_file", "plan", "run"} <= set(dir(load(name)))


def test_an_unknown_pipeline() -> None:
    with pytest.raises(CommandError, match="there is no pipeline x") as raised:
        load("x")
    assert "binlog-sync" in raised.value.hint


def test_server_ids_differ_between_machines_and_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {_own_server_id(Path("state.json"), topic) for topic in ("a", "b")}
    monkeypatch.setattr("metaq.pipelines.binlog_sync.config.gethostname", lambda: "elsewhere")
    numbers.add(_own_server_id(Path("state.json"), "a"))
    assert len(numbers) == 3
    assert all(2**31 <= number < 2**32 for number in numbers)
