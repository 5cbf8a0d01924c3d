"""The TOML file of stream-sql: every error names the key and the accepted values."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.stream_sql.config import read_sql_config

GOOD = """
[sources.events]
topic = "events"
schema = "at TIMESTAMP"
time = "at"
watermark = "1 minute"
[sources.users]
path = "users"
[query]
sql = "SELECT 1"
[sink]
format = "topic"
topic = "out"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(GOOD)
    return path


def test_a_valid_file(file: Path) -> None:
    config = read_sql_config(file)
    events, users = config.sources
    assert (events.topics, events.format, events.nameservers) == (("events",), "json", "127.0.0.1:9876")
    assert (users.path, users.format, users.is_stream) == (str(file.parent / "users"), "delta", False)
    assert config.checkpoint == str(file.parent / "job.checkpoint")
    assert (config.sink.topic, config.sink.delivery) == ("out", "exactly_once")


def test_the_statement_may_be_in_a_file(file: Path) -> None:
    (file.parent / "job.sql").write_text("SELECT 2;\n")
    file.write_text(GOOD.replace('sql = "SELECT 1"', 'file = "job.sql"'))
    assert read_sql_config(file).sql == "SELECT 2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[sources.events]", "[source.events]"), "did you mean sources?"),
        (("[sources.events]", "[sources]\nx = 1\n[sources.events]"), "[sources.NAME]"),
        (("[sources.events]", '[sources."a-b"]'), "letters, digits and _"),
        (('topic = "events"', 'tpic = "events"'), "there is no key sources.events.tpic"),
        (('topic = "events"', ""), "set exactly one of topic, topics, pattern, path"),
        (('topic = "events"', 'topic = "events"\npath = "x"'), "topic and path"),
        (('topic = "events"', 'topic = "a b"'), "sources.events.topic = 'a b'"),
        (('topic = "events"', 'pattern = "("'), "sources.events.pattern"),
        (('topic = "events"', 'topic = "events"\nformat = "csv"'), "raw or text or json"),
        (('topic = "events"', 'topic = "events"\nformat = "text"'), "sources.events.schema has no meaning"),
        (('schema = "at TIMESTAMP"', ""), "sources.events.schema is missing"),
        (('watermark = "1 minute"', ""), "time and watermark belong together"),
        (('path = "users"', 'path = "users"\nformat = "raw"'), "delta or parquet or csv or json"),
        (('path = "users"', 'path = "users"\ntags = "x"'), "sources.users.tags has no meaning"),
        (('path = "users"', 'path = "users"\noptions = ["x"]'), "NAME=VALUE"),
        (('sql = "SELECT 1"', ""), "set either query.sql"),
        (('sql = "SELECT 1"', 'file = "nowhere.sql"'), "query.file nowhere.sql cannot be read"),
        (('sql = "SELECT 1"', 'sql = "SELECT 1"\nmode = "complete"'), "append or update"),
        (('format = "topic"', 'format = "kafka"'), "topic or delta or parquet or console"),
        (('topic = "out"', ""), "sink.topic is missing"),
        (('topic = "out"', 'topic = "out"\npath = "x"'), "sink.path has no meaning"),
        (('topic = "out"', 'topic = "events"'), "sources.events reads sink.topic = 'events'"),
        (('topic = "events"', 'pattern = "ev.*|o.t"'), "sources.events reads sink.topic = 'out'"),
        (("[sources.users]", "[sources.Events]"), "are the same name in SQL"),
        (('format = "topic"\ntopic = "out"', 'format = "delta"\npath = "x"\nkeys = ["a"]'), "sink.keys"),
    ],
)
def test_errors_name_the_key(file: Path, change: tuple[str, str], message: str) -> None:
    file.write_text(GOOD.replace(*change))
    assert file.read_text() != GOOD
    with pytest.raises(ConfigError) as raised:
        read_sql_config(file)
    assert message in f"{raised.value} {raised.value.hint}"


def test_a_topic_of_the_same_name_at_other_name_servers_is_another_one(file: Path) -> None:
    file.write_text(GOOD.replace('topic = "out"', 'topic = "events"\nnamesrv = "10.0.0.1:9876"'))
    assert read_sql_config(file).sink.topic == "events"


def test_a_job_has_a_topic(file: Path) -> None:
    file.write_text(GOOD[GOOD.index("[sources.users]") :])
    with pytest.raises(ConfigError, match="no source is a topic"):
        read_sql_config(file)
