"""The TOML file of stream-sql: [sources.NAME], [query], [sink] and [spark]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.client.message import check_group, check_topic
from metaq.config.kinds import Bytes, Choice, Endpoints, Flag, Seconds, Text
from metaq.errors import ConfigError, InvalidMessage
from metaq.pipelines.settings import (
    NAMESRV,
    START,
    Key,
    Sections,
    Texts,
    read_named_sections,
    read_sections,
    read_text_file,
)
from metaq.pipelines.spark_runtime import SPARK, SparkConfig, located, spark_config

MIB: Final = 1024 * 1024
RAW, TEXT, JSON = "raw", "text", "json"
DELTA, PARQUET, CSV = "delta", "parquet", "csv"
TOPIC, CONSOLE = "topic", "console"
APPEND, UPDATE, COMPLETE = "append", "update", "complete"

_NAMESRV: Final = Key(Endpoints(), None)

SOURCE: Final[Mapping[str, Key]] = {
    "topic": Key(Text(says="the name of a topic"), None),
    "topics": Key(Texts('a list of topics such as ["web", "shop"]'), None),
    "pattern": Key(Text(says="a regular expression that whole names of topics match"), None),
    "path": Key(Text(says="a table: a directory, a file or a URI"), None),
    "namesrv": _NAMESRV,
    "format": Key(Choice((RAW, TEXT, JSON, DELTA, PARQUET, CSV)), None),
    "schema": Key(Text(r"(?s).+", 'columns as in "id BIGINT NOT NULL, at TIMESTAMP"'), None),
    "bad": Key(Choice(("error", "skip")), "error"),
    "time": Key(Text(says="a column with a timestamp, or stored_at or born_at of the message"), None),
    "watermark": Key(Text(says="a span of time such as 10 minutes"), None),
    "early": Key(Text(says="a span of time such as 1 day"), "1 day"),
    "start": START,
    "tags": Key(Text(says="a tag, or several separated by ||"), None),
    "group": Key(Text(says="the name of a consumer group"), None),
    "lost": Key(Choice(("error", "skip")), "error"),
    "batch_bytes": Key(Bytes(1024, 64 * 1024 * MIB), 256 * MIB),
    "options": Key(Texts('a list of NAME=VALUE for Spark\'s reader, such as ["header=true"]'), ()),
}
QUERY: Final[Mapping[str, Key]] = {
    "sql": Key(Text(r"(?s).+", "a SELECT over the sources"), None),
    "file": Key(Text(says="the path of a file with a SELECT"), None),
    "mode": Key(Choice((APPEND, UPDATE, COMPLETE)), APPEND),
    "checkpoint": Key(Text(says="a directory or a URI"), None),
    "namesrv": NAMESRV,
    "zone": Key(Text(says="a time zone such as UTC or Europe/Berlin"), "UTC"),
    "interval_s": Key(Seconds(0, 86_400), 1.0),
    "once": Key(Flag(), False),
}
SINK: Final[Mapping[str, Key]] = {
    "format": Key(Choice((TOPIC, DELTA, PARQUET, CONSOLE))),
    "topic": Key(Text(says="the name of a topic"), None),
    "namesrv": _NAMESRV,
    "delivery": Key(Choice(("exactly_once", "at_least_once")), "exactly_once"),
    "path": Key(Text(says="a directory or a URI such as s3a://bucket/table"), None),
    "partition_by": Key(Texts('a list of columns such as ["date"]'), ()),
    "keys": Key(Texts("a list of the columns that identify a row"), ()),
}
SECTIONS: Final[Sections] = {"query": QUERY, "sink": SINK, "spark": SPARK}
MODES: Final[Mapping[str, tuple[str, ...]]] = {
    TOPIC: (APPEND, UPDATE),
    DELTA: (APPEND, UPDATE, COMPLETE),
    PARQUET: (APPEND,),
    CONSOLE: (APPEND, UPDATE, COMPLETE),
}
_OF_TOPICS: Final = ("topic", "topics", "pattern")
_STREAM_ONLY: Final = ("time", "watermark", "tags", "group")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A view of the statement: topics as a stream, or a table as it is at each batch."""

    name: str
    nameservers: str
    topics: tuple[str, ...]
    pattern: str | None
    path: str | None
    format: str
    schema: str | None
    skips_bad: bool
    time: str | None
    watermark: str | None
    early: str
    """A time further after the storing is wrong: it would move the watermark forward for good."""
    start: str
    tags: str | None
    group: str | None
    skips_lost: bool
    batch_bytes: int
    options: Mapping[str, str]

    @property
    def is_stream(self) -> bool:
        return self.path is None

    def reads(self, topic: str) -> bool:
        """Returns whether a topic belongs to this source."""
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def key(self, name: str) -> str:
        return f"sources.{self.name}.{name}"


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """The target of the rows."""

    format: str
    topic: str | None
    nameservers: str
    delivery: str
    path: str | None
    partition_by: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SqlConfig:
    """Settings that are checked as far as that is possible without Spark."""

    file: Path
    sources: tuple[SourceConfig, ...]
    sql: str
    mode: str
    checkpoint: str
    zone: str
    interval_s: float
    once: bool
    sink: SinkConfig
    spark: SparkConfig


def read_sql_config(path: Path) -> SqlConfig:
    """Reads and checks the file; raises ConfigError."""
    found = read_named_sections(path, "sources", SOURCE, SECTIONS)
    values = read_sections(path, SECTIONS, ignored=("sources",))
    query, sink = values["query"], values["sink"]
    sources = tuple(_source(path, name, of, query["namesrv"]) for name, of in found.items())
    if not any(source.is_stream for source in sources):
        raise ConfigError(
            f"{path}: no source is a topic", hint='add a section [sources.NAME] with topic = "…"'
        )
    _check_names(path, sources)
    into = _sink(path, sink, query)
    _check_circle(path, sources, into)
    default = f"{path.stem}.checkpoint"
    return SqlConfig(
        file=path,
        sources=sources,
        sql=_sql(path, query["sql"], query["file"]),
        mode=query["mode"],
        checkpoint=located(path, query["checkpoint"] or default),
        zone=query["zone"],
        interval_s=query["interval_s"],
        once=query["once"],
        sink=into,
        spark=spark_config(path, values["spark"]),
    )


def _check_names(path: Path, sources: tuple[SourceConfig, ...]) -> None:
    """Raises ConfigError for names that differ only by case, which Spark ignores."""
    seen: dict[str, str] = {}
    for source in sources:
        other = seen.setdefault(source.name.lower(), source.name)
        if other != source.name:
            raise ConfigError(f"{path}: sources.{source.name} and sources.{other} are the same name in SQL")


def _check_circle(path: Path, sources: tuple[SourceConfig, ...], sink: SinkConfig) -> None:
    """Raises ConfigError for a job that would read its own rows without end."""
    topic, where = sink.topic, set(sink.nameservers.split(";"))
    for source in sources:
        if topic is None or not where.intersection(source.nameservers.split(";")):
            continue
        if source.reads(topic):
            raise ConfigError(
                f"{path}: sources.{source.name} reads sink.topic = {topic!r}, so it would read its own rows",
                hint="name another topic for the rows",
            )


def _sql(path: Path, text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise ConfigError(f"{path}: set either query.sql (a statement) or query.file (the path of one)")
    if text is None:
        text = read_text_file(path, "query.file", str(file))
    return text.strip().removesuffix(";")


def _source(path: Path, name: str, values: Mapping[str, Any], nameservers: tuple[str, ...]) -> SourceConfig:
    where = f"{path}: sources.{name}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"{where}: the name of a view may have letters, digits and _")
    given = [key for key in (*_OF_TOPICS, "path") if values[key] is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{where} has {' and '.join(given) or 'no topic'}",
            hint="set exactly one of topic, topics, pattern, path",
        )
    is_stream = values["path"] is None
    kind = values["format"] or (JSON if is_stream else DELTA)
    accepted = (RAW, TEXT, JSON) if is_stream else (DELTA, PARQUET, CSV, JSON)
    if kind not in accepted:
        raise ConfigError(
            f'{where}.format = "{kind}": for a {"topic" if is_stream else "table"} it must be'
            f" {' or '.join(accepted)}"
        )
    _check_stream(where, values, kind, is_stream=is_stream)
    topics = values["topics"] or ((values["topic"],) if values["topic"] else ())
    for topic in topics:
        _named(f"{where}.topic = {topic!r}", check_topic, topic)
    return SourceConfig(
        name=name,
        nameservers=";".join(values["namesrv"] or nameservers),
        topics=topics,
        pattern=values["pattern"],
        path=located(path, values["path"]) if values["path"] else None,
        format=kind,
        schema=values["schema"],
        skips_bad=values["bad"] == "skip",
        time=values["time"],
        watermark=values["watermark"],
        early=values["early"],
        start=values["start"],
        tags=values["tags"],
        group=values["group"],
        skips_lost=values["lost"] == "skip",
        batch_bytes=values["batch_bytes"],
        options=dict(_pairs(where, values["options"])),
    )


def _check_stream(where: str, values: Mapping[str, Any], kind: str, *, is_stream: bool) -> None:
    for key in _STREAM_ONLY if not is_stream else ("options",):
        if values[key]:
            raise ConfigError(f"{where}.{key} has no meaning for a {'topic' if is_stream else 'table'}")
    if is_stream and (values["schema"] is None) == (kind == JSON):
        what = "is missing: the fields of JSON" if kind == JSON else f'has no meaning with format = "{kind}"'
        raise ConfigError(f"{where}.schema {what}", hint=f"it must be {SOURCE['schema'].kind.describe()}")
    if (values["time"] is None) != (values["watermark"] is None):
        raise ConfigError(
            f"{where}: time and watermark belong together, and one is missing",
            hint='set both, as time = "at" and watermark = "10 minutes", or neither',
        )
    if values["pattern"] is not None:
        try:
            re.compile(values["pattern"])
        except re.error as error:
            raise ConfigError(f"{where}.pattern must be a regular expression ({error})") from None
    if values["group"] is not None:
        _named(f"{where}.group = {values['group']!r}", check_group, values["group"])


def _named(where: str, check: Any, name: str) -> None:
    try:
        check(name)
    except InvalidMessage as error:
        raise ConfigError(f"{where}: {error}") from None


def _pairs(where: str, lines: tuple[str, ...]) -> list[tuple[str, str]]:
    for line in lines:
        if "=" not in line:
            raise ConfigError(f"{where}.options has {line!r}: it must be NAME=VALUE")
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def _sink(path: Path, values: Mapping[str, Any], query: Mapping[str, Any]) -> SinkConfig:
    kind, mode = values["format"], query["mode"]
    if mode not in MODES[kind]:
        raise ConfigError(
            f'{path}: query.mode = "{mode}": into sink.format = "{kind}"'
            f" it must be {' or '.join(MODES[kind])}"
        )
    needed = {TOPIC: ("topic",), DELTA: ("path",), PARQUET: ("path",), CONSOLE: ()}[kind]
    taken = {
        TOPIC: ("topic", "namesrv"),
        DELTA: ("path", "partition_by", "keys"),
        PARQUET: ("path", "partition_by"),
    }
    for key in needed:
        if values[key] is None:
            raise ConfigError(
                f'{path}: sink.{key} is missing: format = "{kind}" needs it',
                hint=f"it must be {SINK[key].kind.describe()}",
            )
    for key in ("topic", "namesrv", "path", "partition_by", "keys"):
        if values[key] and key not in taken.get(kind, ()):
            raise ConfigError(f'{path}: sink.{key} has no meaning with format = "{kind}"')
    if kind == TOPIC:
        _named(f"{path}: sink.topic = {values['topic']!r}", check_topic, values["topic"])
    if (mode == UPDATE and kind == DELTA) != bool(values["keys"]):
        raise ConfigError(
            f"{path}: sink.keys {'has no meaning' if values['keys'] else 'is missing'}"
            f' with format = "{kind}" and mode = "{mode}"',
            hint="sink.keys lists the columns that identify a row of a Delta table",
        )
    return SinkConfig(
        format=kind,
        topic=values["topic"],
        nameservers=";".join(values["namesrv"] or query["namesrv"]),
        delivery=values["delivery"],
        path=located(path, values["path"]) if values["path"] else None,
        partition_by=values["partition_by"],
        keys=values["keys"],
    )
