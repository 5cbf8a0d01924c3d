"""The TOML file of log-lake: [topic], [records], [lake] and [spark]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from metaq.client.message import check_group, check_topic
from metaq.config.kinds import Bytes, Choice, Flag, Number, Seconds, Text
from metaq.errors import ConfigError, InvalidMessage
from metaq.pipelines.settings import NAMESRV, START, Key, Sections, Texts, read_sections
from metaq.pipelines.spark_runtime import SPARK, SparkConfig, located, spark_config

MIB: Final = 1024 * 1024
TEXT, JSON = "text", "json"
DELTA, PARQUET = "delta", "parquet"
STORED, BORN, RECORD = "stored", "born", "record"
EPOCH_FORMATS: Final = ("epoch_s", "epoch_ms")

RECORDS: Final[Mapping[str, Key]] = {
    "format": Key(Choice((TEXT, JSON)), TEXT),
    "schema": Key(Text(r"(?s).+", 'columns as in "level STRING NOT NULL, at TIMESTAMP"'), None),
    "keep_line": Key(Flag(), False),
    "time": Key(Choice((STORED, BORN, RECORD)), STORED),
    "time_field": Key(Text(says="a field of the schema, with dots if it is nested"), None),
    "time_pattern": Key(Text(says="a regular expression whose first group is the time"), None),
    "time_format": Key(Text(says="a pattern such as dd/MMM/yyyy:HH:mm:ss Z, or epoch_s or epoch_ms"), None),
    "late_days": Key(Number(0, 100_000), 366),
    "early_days": Key(Number(0, 100_000), 1),
}
LAKE: Final[Mapping[str, Key]] = {
    "path": Key(Text(says="a directory or a URI such as s3a://bucket/lake"), None),
    "checkpoint": Key(Text(says="a directory or a URI"), None),
    "format": Key(Choice((DELTA, PARQUET)), DELTA),
    "topics": Key(Texts('a list of topics such as ["web", "shop"]'), None),
    "pattern": Key(Text(says="a regular expression that whole names of topics match"), None),
    "start": START,
    "group": Key(Text(says="the name of a consumer group"), None),
    "lost": Key(Choice(("error", "skip")), "error"),
    "zone": Key(Text(says="a time zone such as UTC or Europe/Berlin"), "UTC"),
    "repeats": Key(Choice(("drop", "keep")), "drop"),
    "repeats_days": Key(Number(1, 100_000), 7),
    "compact_batches": Key(Number(0), 60),
    "interval_s": Key(Seconds(0, 86_400), 10.0),
    "batch_bytes": Key(Bytes(1024, 64 * 1024 * MIB), 256 * MIB),
    "once": Key(Flag(), False),
}
_TOPIC: Final[Mapping[str, Key]] = {
    "namesrv": NAMESRV,
    "name": Key(Text(says="the name of a topic"), None),
    "tag": Key(Text(says="of log-transport"), None),
}
SECTIONS: Final[Sections] = {"topic": _TOPIC, "records": RECORDS, "lake": LAKE, "spark": SPARK}
OTHERS: Final = ("files", "state")
"""Sections of log-transport, which may share the file."""


@dataclass(frozen=True, slots=True)
class Records:
    """Settings for parsing the body of a message."""

    format: str
    schema: str | None
    """The columns of a JSON record in SQL syntax; without it a record is a VARIANT."""
    keep_line: bool
    time: str
    time_field: str | None
    time_pattern: str | None
    time_format: str | None
    late_days: int
    early_days: int
    """A record whose time is further from its storing is bad; 0 means no limit."""


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """Settings that are checked as far as that is possible without Spark."""

    file: Path
    nameservers: str
    topics: tuple[str, ...]
    pattern: str | None
    records: Records
    path: str
    checkpoint: str
    format: str
    start: str
    group: str | None
    skips_lost: bool
    zone: str
    drops_repeats: bool
    repeats_days: int
    compact_batches: int
    interval_s: float
    batch_bytes: int
    once: bool
    spark: SparkConfig

    @property
    def subscribed(self) -> str:
        return f"topics that match {self.pattern}" if self.pattern else ", ".join(self.topics)


def read_lake_config(path: Path) -> LakeConfig:
    """Reads and checks the file; raises ConfigError."""
    values = read_sections(path, SECTIONS, ignored=OTHERS)
    topic, lake = values["topic"], values["lake"]
    if lake["path"] is None:
        raise ConfigError(f"{path}: lake.path is missing", hint=f"it must be {LAKE['path'].kind.describe()}")
    _check_group(path, lake["group"])
    _check_zone(path, lake["zone"])
    root = located(path, lake["path"])
    return LakeConfig(
        file=path,
        nameservers=";".join(topic["namesrv"]),
        topics=_topics(path, topic["name"], lake),
        pattern=lake["pattern"],
        records=_records(path, values["records"]),
        path=root,
        checkpoint=located(path, lake["checkpoint"]) if lake["checkpoint"] else f"{root}/_checkpoint",
        format=lake["format"],
        start=lake["start"],
        group=lake["group"],
        skips_lost=lake["lost"] == "skip",
        zone=lake["zone"],
        drops_repeats=lake["repeats"] == "drop",
        repeats_days=lake["repeats_days"],
        compact_batches=lake["compact_batches"],
        interval_s=lake["interval_s"],
        batch_bytes=lake["batch_bytes"],
        once=lake["once"],
        spark=spark_config(path, values["spark"]),
    )


def _topics(path: Path, name: str | None, lake: Mapping[str, Any]) -> tuple[str, ...]:
    named, pattern = lake["topics"], lake["pattern"]
    if named is not None and pattern is not None:
        raise ConfigError(f"{path}: lake.topics and lake.pattern are both given; one is enough")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"{path}: lake.pattern = {pattern!r}: it must be a regular expression ({error})"
            ) from None
        return ()
    topics = named if named is not None else (name,) if name is not None else ()
    if not topics:
        raise ConfigError(
            f"{path}: no topic is named", hint="give topic.name, lake.topics (a list) or lake.pattern"
        )
    for topic in topics:
        try:
            check_topic(topic)
        except InvalidMessage as error:
            raise ConfigError(f"{path}: {topic!r} is not a valid topic: {error}") from None
    return tuple(topics)


def _check_group(path: Path, group: str | None) -> None:
    try:
        if group is not None:
            check_group(group)
    except InvalidMessage as error:
        raise ConfigError(f"{path}: lake.group = {group!r}: {error}") from None


def _check_zone(path: Path, zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        raise ConfigError(
            f"{path}: lake.zone = {zone!r}: it must be {LAKE['zone'].kind.describe()}"
        ) from None


def _records(path: Path, values: Mapping[str, Any]) -> Records:
    records = Records(**values)
    is_json = records.format == JSON
    for name, of in (("schema", JSON), ("time_field", JSON), ("keep_line", JSON), ("time_pattern", TEXT)):
        if getattr(records, name) and records.format != of:
            raise ConfigError(f'{path}: records.{name} needs format = "{of}", but it is "{records.format}"')
    wanted = "time_field" if is_json else "time_pattern"
    given = getattr(records, wanted)
    if records.time == RECORD and given is None:
        raise ConfigError(
            f'{path}: records.{wanted} is missing: time = "{RECORD}" needs it',
            hint=f"it must be {RECORDS[wanted].kind.describe()}",
        )
    if records.time != RECORD:
        for name in ("time_field", "time_pattern", "time_format"):
            if getattr(records, name) is not None:
                raise ConfigError(
                    f'{path}: records.{name} has no meaning with time = "{records.time}"',
                    hint=f'set time = "{RECORD}", or remove records.{name}',
                )
    if records.time_field is not None and records.schema is None:
        raise ConfigError(f"{path}: records.schema is missing: records.time_field is one of its fields")
    return records
