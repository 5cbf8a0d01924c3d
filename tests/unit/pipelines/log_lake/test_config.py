"""The TOML file of log-lake: every error names the key and the accepted values."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.log_lake.config import read_lake_config
from metaq.pipelines.log_transport.pipeline import LogTransport

GOOD = """
[files]
paths = ["*.log"]
[topic]
name = "logs"
[state]
file = "state.json"
[lake]
path = "lake"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "logs.toml"
    path.write_text(GOOD)
    return path


def test_log_transport_and_log_lake_may_share_a_file(file: Path) -> None:
    LogTransport.from_file(file)
    config = read_lake_config(file)
    assert (config.topics, config.nameservers) == (("logs",), "127.0.0.1:9876")
    assert config.path == str(file.parent / "lake")
    assert config.checkpoint == str(file.parent / "lake" / "_checkpoint")


def test_several_topics_and_uris(file: Path) -> None:
    file.write_text("[lake]\npath = 's3a://bucket/lake/'\ntopics = ['a', 'b']\n[records]\nformat = 'json'\n")
    config = read_lake_config(file)
    assert (config.topics, config.path) == (("a", "b"), "s3a://bucket/lake")
    assert config.checkpoint == "s3a://bucket/lake/_checkpoint"
    file.write_text("[lake]\npath = 'x'\npattern = 'logs-.*'\n")
    assert read_lake_config(file).subscribed == "topics that match logs-.*"


@pytest.mark.parametrize(
    ("lake", "records", "message"),
    [
        ("pathh = 'x'", "", "did you mean path?"),
        ("format = 'orc'", "", "delta or parquet"),
        ("topics = ['a']\npattern = 'b'", "", "one is enough"),
        ("topics = ['a b']", "", "'a b' is not a valid topic"),
        ("pattern = '('", "", "lake.pattern"),
        ("group = 'a b'", "", "lake.group"),
        ("zone = 'Mars/Base'", "", "a time zone such as UTC"),
        ("zone = '../x'", "", "a time zone such as UTC"),
        ("batch_bytes = 1", "", "a size from 1 KiB"),
        ("", "format = 'xml'", "text or json"),
        ("", "schema = 'a INT'", 'records.schema needs format = "json"'),
        ("", "format = 'json'\ntime_pattern = '(x)'", 'records.time_pattern needs format = "text"'),
        ("", "time = 'record'", "records.time_pattern is missing"),
        ("", "format = 'json'\ntime = 'record'", "records.time_field is missing"),
        ("", "format = 'json'\ntime = 'record'\ntime_field = 'at'", "records.schema is missing"),
        ("", "time_format = 'yyyy'", 'records.time_format has no meaning with time = "stored"'),
    ],
)
def test_errors_name_the_key(file: Path, lake: str, records: str, message: str) -> None:
    file.write_text(f"{GOOD}{lake}\n[records]\n{records}\n")
    with pytest.raises(ConfigError) as raised:
        read_lake_config(file)
    assert message in f"{raised.value} {raised.value.hint}"


def test_a_lake_has_a_path_and_a_topic(file: Path) -> None:
    file.write_text("[lake]\npath = 'x'\n")
    with pytest.raises(ConfigError, match="no topic is named"):
        read_lake_config(file)
    file.write_text("[topic]\nname = 'x'\n")
    with pytest.raises(ConfigError, match=r"lake\.path is missing"):
        read_lake_config(file)
