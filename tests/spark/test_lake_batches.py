"""Batches of log-lake without a broker: times, failed batches, and existing lakes."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from metaq.errors import ConfigError
from metaq.pipelines.log_lake import batch as batch_module
from metaq.pipelines.log_lake.batch import Batches
from metaq.pipelines.log_lake.check import check_lake, is_table
from metaq.pipelines.log_lake.config import LakeConfig, read_lake_config
from metaq.pipelines.log_lake.decode import SOURCE_COLUMNS, Decoder
from metaq.pipelines.log_lake.tables import FILES, BatchId, DeltaTables
from metaq.spark.schema import spark_schema

pytestmark = pytest.mark.timeout(900)

QUERY = "0a1b2c3d-0000-4000-8000-000000000000"
STORED = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
DATED = "time = 'record'\ntime_pattern = '^(\\S+)'"
FIRST = [f"{STORED:%Y-%m-%d} {number}" for number in range(4)]
Make = Callable[..., LakeConfig]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(lake: str = "", records: str = "", name: str = "lake") -> LakeConfig:
        return written_config(tmp_path, lake, records, name)

    return write


def written_config(home: Path, lake: str, records: str, name: str) -> LakeConfig:
    file = home / f"{name}.toml"
    file.write_text(f"[topic]\nname = 't'\n[lake]\npath = '{name}'\n{lake}\n[records]\n{records}\n")
    return read_lake_config(file)


def messages(spark: SparkSession, bodies: list[str], *, first: int = 0) -> DataFrame:
    """Returns messages with lines of one file, one position after the other."""
    rows = [
        (
            "t",
            "b",
            0,
            offset,
            str(offset),
            None,
            None,
            bytearray(body.encode()),
            STORED,
            STORED,
            {"log.id": "f", "log.at": str(offset)},
        )
        for offset, body in enumerate(bodies, first)
    ]
    return spark.createDataFrame(rows, spark_schema(SOURCE_COLUMNS.split(",")))


def batches(spark: SparkSession, config: LakeConfig) -> Batches:
    return Batches(config, Decoder(spark, config))


def lines(spark: SparkSession, config: LakeConfig, table: str = "records") -> list[Any]:
    found = spark.read.format(config.format).load(f"{config.path}/{table}")
    return sorted(found.selectExpr("queue_offset", "log_at", "date").collect())


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("at DATE", ['"2026-02-28"'], ['"500000-01-01"', '"-0400-01-01"']),
        (
            "at TIMESTAMP",
            ['"2026-02-28T10:00:00Z"', "1772272800"],
            ['"12:00"', '"T12:00"', "99999999999999", f"{1772272800 + 2**58}"],
        ),
        ("at TIMESTAMP_NTZ", ['"2026-02-28T10:00:00"'], ['"+200000-01-01T00:00:00"']),
    ],
)
def test_only_times_that_can_be_written_are_good(
    spark: SparkSession, make: Make, kind: str, good: list[str], bad: list[str]
) -> None:
    config = make(records=f"format = 'json'\nschema = '{kind}'\ntime = 'record'\ntime_field = 'at'")
    rows = Decoder(spark, config).rows(messages(spark, [f'{{"at": {value}}}' for value in (*good, *bad)]))
    found = [row.reason for row in rows.orderBy("queue_offset").select("reason").collect()]
    assert found[: len(good)] == [None] * len(good)
    for value, reason in zip(bad, found[len(good) :], strict=True):
        assert reason in ("no time", "does not fit the schema: at"), value


@pytest.mark.parametrize("pattern", ["yyyy-MM-dd", "y-MM-dd", "yyyyyy-MM-dd"])
def test_a_year_that_is_too_large_does_not_fail_the_batch(
    spark: SparkSession, make: Make, pattern: str
) -> None:
    config = make(records=f"time = 'record'\ntime_pattern = '^(\\S+)'\ntime_format = '{pattern}'")
    found = Decoder(spark, config).rows(messages(spark, ["500000-01-01 a", "+500000-01-01 b"]))
    assert [row.reason for row in found.select("reason").collect()] == ["no time"] * 2


def test_patterns_have_java_syntax(spark: SparkSession, make: Make) -> None:
    Decoder(spark, make(records="time = 'record'\ntime_pattern = '^(?<when>[\\d&&[^9]]+)'"))
    for pattern, message in (("(?P<when>x)", "a regular expression"), ("x", "has no group")):
        with pytest.raises(ConfigError, match=message):
            Decoder(spark, make(records=f"time = 'record'\ntime_pattern = '{pattern}'"))


class Failure(Exception):
    """Stands for a power failure."""


WRITES = 3
"""The tables that a batch is written to, one after the other."""


def test_a_batch_that_failed_between_its_writes_is_stored_once(
    spark: SparkSession, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch fails before its first write, then after its first one, and so on to its last one."""
    config = make(records=DATED)
    batches(spark, config).write(messages(spark, [*FIRST, "bad"]), BatchId(QUERY, 0))
    # The agent has sent its last line again, and continues.
    second = messages(spark, [FIRST[3], "bad", f"{STORED:%Y-%m-%d} new", "worse"], first=3)
    append = DeltaTables.append
    for calls in range(WRITES + 1):
        done: list[str] = []

        def fail(
            self: DeltaTables,
            name: str,
            *args: Any,
            done: list[str] = done,
            calls: int = calls,
            **named: Any,
        ) -> None:
            if len(done) == calls:
                raise Failure
            append(self, name, *args, **named)
            done.append(name)

        with monkeypatch.context() as patched:
            patched.setattr(DeltaTables, "append", fail)
            with pytest.raises(Failure):
                batches(spark, config).write(second, BatchId(QUERY, 1))
                raise Failure
        assert len(done) == calls
    batches(spark, config).write(second, BatchId(QUERY, 1))
    day = STORED.date()
    assert lines(spark, config) == [(n, n, day) for n in (0, 1, 2, 3, 5)]
    assert lines(spark, config, "quarantine") == [(n, n, day) for n in (4, 6)]


def test_records_of_files_are_folded_without_compaction(
    spark: SparkSession, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "FOLD_BATCHES", 2)
    config = make("compact_batches = 0")
    for number in range(2):
        writing = batches(spark, config)
        writing.write(messages(spark, ["a", "b"], first=2 * number), BatchId(QUERY, number))
        assert writing.written.compactions == 0
    known = spark.read.format("delta").load(f"{config.path}/{FILES}").collect()
    assert [(row.log_id, row.at_max) for row in known] == [("f", 3)]


def checkpoint(config: LakeConfig, query: str, begun: int) -> None:
    """Writes a checkpoint like Spark's."""
    home = Path(config.checkpoint)
    (home / "offsets").mkdir(parents=True, exist_ok=True)
    (home / "metadata").write_text(json.dumps({"id": query}))
    for left in (home / "offsets").iterdir():
        left.unlink()
    for number in range(begun + 1):
        (home / "offsets" / str(number)).write_text("v1\n")


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_lake_accepts_only_its_own_checkpoint(spark: SparkSession, make: Make, kind: str) -> None:
    config = make(f"format = '{kind}'")
    writing = batches(spark, config)
    schema = writing.record_schema(messages(spark, []))
    # A first write that was killed leaves these directories.
    left = "_delta_log" if kind == "delta" else "date=2026-03-01/topic=t/batch=0a1b2c3d-0"
    (Path(config.path) / "records" / left).mkdir(parents=True)
    checkpoint(config, QUERY, 0)
    check_lake(spark, config, schema)
    assert not is_table(spark, config, "records")
    for number in range(2):
        writing.write(messages(spark, ["a"], first=number), BatchId(QUERY, number))
    assert is_table(spark, config, "records") and len(lines(spark, config)) == 2
    checkpoint(config, QUERY, 1)
    check_lake(spark, config, schema)
    checkpoint(config, QUERY, 0)
    with pytest.raises(ConfigError, match="is older than the lake"):
        check_lake(spark, config, schema)
    checkpoint(config, "ffffffff-0000-4000-8000-000000000000", 7)
    with pytest.raises(ConfigError, match="another checkpoint"):
        check_lake(spark, config, schema)
