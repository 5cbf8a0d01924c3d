"""What binlog-mirror reads of the TOML file of binlog-sync: [topic], [mirror] and [spark]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.config.kinds import Bytes, Choice, Flag, Seconds, Text
from metaq.errors import ConfigError
from metaq.pipelines.settings import Key, Sections, read_sections
from metaq.pipelines.sparking import SPARK, SparkConfig, located, spark_config

MIB: Final = 1024 * 1024
LENIENT, EVOLVE, EXCEPTION, IGNORE = "lenient", "evolve", "exception", "ignore"

MIRROR: Final[Mapping[str, Key]] = {
    "path": Key(Text(says="a directory or a URI such as s3a://bucket/mirror"), None),
    "checkpoint": Key(Text(says="a directory or a URI"), None),
    "schema_changes": Key(Choice((LENIENT, EVOLVE, EXCEPTION, IGNORE)), LENIENT),
    "dates": Key(Choice(("typed", "text")), "typed"),
    "interval_s": Key(Seconds(0, 3600), 5.0),
    "batch_bytes": Key(Bytes(1024, 64 * 1024 * MIB), 128 * MIB),
    "once": Key(Flag(), False),
}


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """Checked."""

    nameservers: str
    topic: str
    path: str
    checkpoint: str
    schema_changes: str
    typed_dates: bool
    interval_s: float
    batch_bytes: int
    once: bool
    spark: SparkConfig


def read_mirror_config(path: Path, others: Sections) -> MirrorConfig:
    """`others` are the sections of binlog-sync. What is not ours need not be there; raises ConfigError."""
    optional = {
        name: {key: Key(entry.kind, None) for key, entry in keys.items()} for name, keys in others.items()
    }
    values = read_sections(path, {**optional, "topic": others["topic"], "mirror": MIRROR, "spark": SPARK})
    topic, mirror = values["topic"], values["mirror"]
    if mirror["path"] is None:
        raise ConfigError(
            f"{path}: mirror.path is missing", hint=f"it must be {MIRROR['path'].kind.describe()}"
        )
    where = located(path, mirror["path"])
    return MirrorConfig(
        nameservers=";".join(topic["namesrv"]),
        topic=topic["name"],
        path=where,
        checkpoint=located(path, mirror["checkpoint"]) if mirror["checkpoint"] else f"{where}/_checkpoint",
        schema_changes=mirror["schema_changes"],
        typed_dates=mirror["dates"] == "typed",
        interval_s=mirror["interval_s"],
        batch_bytes=mirror["batch_bytes"],
        once=mirror["once"],
        spark=spark_config(path, values["spark"]),
    )
