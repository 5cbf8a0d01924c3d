"""The sections of binlog-mirror in the TOML file of binlog-sync.

They are [topic], [mirror], [tables."PATTERN"], [jdbc] and [spark].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from metaq.config.kinds import Bytes, Choice, Flag, Seconds, Text
from metaq.errors import ConfigError
from metaq.pipelines.binlog_mirror.connection import JdbcConfig
from metaq.pipelines.binlog_mirror.dialects import DIALECTS, dialect_of
from metaq.pipelines.binlog_mirror.policies import DROPPED, EMPTY, REFUSED, STOP, Policies, TablePolicy
from metaq.pipelines.settings import Key, Sections, read_named_sections, read_secret, read_sections
from metaq.pipelines.spark_runtime import SPARK, SparkConfig, located, spark_config

MIB: Final = 1024 * 1024
LENIENT, EVOLVE, EXCEPTION, IGNORE = "lenient", "evolve", "exception", "ignore"

DELTA, JDBC_TARGET = "delta", "jdbc"

MIRROR: Final[Mapping[str, Key]] = {
    "target": Key(Choice((DELTA, JDBC_TARGET)), DELTA),
    "path": Key(Text(says="a directory or a URI such as s3a://bucket/mirror"), None),
    "checkpoint": Key(Text(says="a directory or a URI"), None),
    "schema_changes": Key(Choice((LENIENT, EVOLVE, EXCEPTION, IGNORE)), LENIENT),
    "dates": Key(Choice(("typed", "text")), "typed"),
    "refused": Key(Choice(REFUSED), STOP),
    "dropped": Key(Choice(DROPPED), EMPTY),
    "interval_s": Key(Seconds(0, 3600), 5.0),
    "batch_bytes": Key(Bytes(1024, 64 * 1024 * MIB), 128 * MIB),
    "once": Key(Flag(), False),
}

TABLES: Final[Mapping[str, Key]] = {
    "refused": Key(Choice(REFUSED), None),
    "dropped": Key(Choice(DROPPED), None),
}
"""The keys of a section [tables."PATTERN"]."""

JDBC: Final[Mapping[str, Key]] = {
    "url": Key(
        Text(says="a URL such as jdbc:mariadb://host:3306/ or jdbc:postgresql://host:5432/name"), None
    ),
    "user": Key(Text(says="the name of a user of the database"), None),
    "password_env": Key(Text(says="the name of an environment variable"), None),
    "password_file": Key(Text(says="the path of a file"), None),
}


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """Checked settings."""

    nameservers: str
    topic: str
    path: str
    """Empty if the target is a database."""
    jdbc: JdbcConfig | None
    checkpoint: str
    schema_changes: str
    typed_dates: bool
    policies: Policies
    interval_s: float
    batch_bytes: int
    once: bool
    spark: SparkConfig


def read_mirror_config(path: Path, others: Sections) -> MirrorConfig:
    """Reads and checks the file; raises ConfigError.

    `others` are the sections of binlog-sync, whose keys are optional here, except for [topic].
    """
    optional = {
        name: {key: Key(entry.kind, None) for key, entry in keys.items()} for name, keys in others.items()
    }
    sections = {**optional, "topic": others["topic"], "mirror": MIRROR, "jdbc": JDBC, "spark": SPARK}
    values = read_sections(path, sections, ignored=("tables",))
    topic, mirror, spark = values["topic"], values["mirror"], spark_config(path, values["spark"])
    if mirror["target"] == JDBC_TARGET:
        jdbc = _jdbc(path, values["jdbc"])
        _require(path, mirror, "checkpoint")
        root = ""
        if spark.jars is None:
            spark = replace(spark, packages=jdbc.dialect.package)
    else:
        jdbc = None
        _require(path, mirror, "path")
        root = located(path, mirror["path"])
    return MirrorConfig(
        nameservers=";".join(topic["namesrv"]),
        topic=topic["name"],
        path=root,
        jdbc=jdbc,
        checkpoint=located(path, mirror["checkpoint"]) if mirror["checkpoint"] else f"{root}/_checkpoint",
        schema_changes=mirror["schema_changes"],
        typed_dates=mirror["dates"] == "typed",
        policies=_policies(path, mirror, sections),
        interval_s=mirror["interval_s"],
        batch_bytes=mirror["batch_bytes"],
        once=mirror["once"],
        spark=spark,
    )


def _require(path: Path, mirror: Mapping[str, object], name: str) -> None:
    if mirror[name] is None:
        raise ConfigError(
            f"{path}: mirror.{name} is missing", hint=f"it must be {MIRROR[name].kind.describe()}"
        )


def _policies(path: Path, mirror: Mapping[str, Any], beside: Sections) -> Policies:
    sections = read_named_sections(path, "tables", TABLES, beside)
    for pattern in sections:
        if "." not in pattern:
            raise ConfigError(
                f"{path}: tables.{pattern} is not DATABASE.TABLE",
                hint='quote the name: [tables."shop.orders"]; * stands for anything',
            )
    return Policies(TablePolicy(mirror["refused"], mirror["dropped"]), sections)


def _jdbc(path: Path, values: Mapping[str, Any]) -> JdbcConfig:
    url = values["url"]
    if url is None:
        raise ConfigError(f"{path}: jdbc.url is missing", hint=f"it must be {JDBC['url'].kind.describe()}")
    dialect = dialect_of(url)
    if dialect is None:
        # The text must not quote the URL, which may hold a password.
        raise ConfigError(
            f"{path}: jdbc.url must begin with {' or '.join(DIALECTS)}",
            hint="use jdbc:mariadb: for MySQL too",
        )
    secret = read_secret(path, "jdbc.password", values["password_env"], values["password_file"])
    return JdbcConfig(url, values["user"], secret, dialect)
