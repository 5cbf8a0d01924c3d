"""The precedence of the sources of options, and the errors for misspelt options."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.config import load
from metaq.errors import ConfigError


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "metaq.toml", 'name = "file"\ncluster = "file"\nregion = "file"\ndata = "file"\n')
    config = load(
        {"name": "flag", "flush": None},
        assignments=["name=set", "cluster=set"],
        file=file,
        environment={"METAQ_NAME": "variable", "METAQ_CLUSTER": "variable", "METAQ_REGION": "variable"},
    )
    origins = {
        name: (config[name], config.settings[name].origin)
        for name in ("name", "cluster", "region", "data", "flush")
    }
    assert origins == {
        "name": ("flag", "--name"),
        "cluster": ("set", "--set"),
        "region": ("variable", "METAQ_REGION"),
        "data": ("file", file),
        "flush": ("sync", "default"),
    }


def test_a_file_may_be_flat_or_in_sections(tmp_path: Path) -> None:
    flat = write(
        tmp_path, "flat.toml", 'commit_log_file_bytes = "1MiB"\nlong_polling = false\nbroker-port = 0\n'
    )
    nested = write(
        tmp_path,
        "nested.toml",
        "[store]\ncommit_log_file_bytes = 1048576\n[broker]\nlong_polling = false\n[address]\nbroker_port=0",
    )
    for file in (flat, nested):
        config = load(file=file, environment={})
        assert (config["commit_log_file_bytes"], config["long_polling"], config["broker_port"]) == (
            2**20,
            False,
            0,
        )


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "metaq.toml", 'name = "b"')
    assert load(environment={"METAQ_CONFIG": file})["name"] == "b"


def test_name_servers_are_a_list() -> None:
    config = load({"namesrv": "a:1; b:2"}, environment={})
    assert config["namesrv"] == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("flsh=async", "--set: there is no setting flsh (did you mean flush?)"),
        (
            "comit_log_file_byte=1M",
            "--set: there is no setting comit_log_file_byte (did you mean commit_log_file_bytes?)",
        ),
        ("server.flush=async", "--set: there is no setting server.flush (it is store.flush)"),
        ("qqqq=1", "--set: there is no setting qqqq"),
        ("flush", "--set flush has no '='"),
        ("flush=never", "flush=never (--set) must be sync or async"),
        ("broker_port=65536", "broker_port=65536 (--set) must be a whole number from 0 to 65535"),
        (
            "commit_log_file_bytes=1x",
            "commit_log_file_bytes=1x (--set) must be a size from 4 KiB to 2147483647 B",
        ),
        ("long_polling=maybe", "long_polling=maybe (--set) must be true or false"),
        ("namesrv=localhost", "namesrv=localhost (--set) must be HOST:PORT"),
        ("listen=1:2:3", "listen=1:2:3 (--set) must be HOST:PORT"),
        ("name=a b", "name=a b (--set) must be up to 127 letters, digits or any of _ - . % |"),
    ],
)
def test_a_wrong_setting_says_what_would_be_right(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(assignments=[assignment], environment={})
    assert str(caught.value) == message


def test_a_misspelt_variable_is_reported_and_others_are_left_alone() -> None:
    config = load(
        environment={
            "METAQ_CLUSTR": "x",
            "METAQ_PORT": "1",
            "METAQ_ZZZZZZZZ": "1",
            "PATH": "/",
            "METAQ_CLIENT_DIRECTORY": "/var/lib/shop",  # The client reads it.
        }
    )
    assert config.notes == (
        "METAQ_CLUSTR is not a setting and is ignored (did you mean METAQ_CLUSTER?)",
        "METAQ_PORT is not a setting and is ignored "
        "(did you mean METAQ_NAMESRV_PORT or METAQ_BROKER_PORT or METAQ_CONSOLE_PORT?)",
    )


def test_a_wrong_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "metaq.toml", "[store]\nflsh = 'async'")
    with pytest.raises(
        ConfigError, match=r"metaq\.toml: there is no setting store\.flsh \(did you mean flush\?\)"
    ):
        load(file=file, environment={})


@pytest.mark.parametrize(("text", "message"), [("flush = ", "Invalid value"), ("\x00", "metaq.toml")])
def test_a_file_that_is_no_toml_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file=write(tmp_path, "metaq.toml", text), environment={})


def test_a_missing_file_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        load(file=str(tmp_path / "none.toml"), environment={})


def test_a_binary_file_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot read .*x\.toml: it is not UTF-8 text"):
        load(file=str(tmp_path / "x.toml"), environment={})
