"""Common parts of the pipelines on Spark, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress, spark_runtime
from metaq.pipelines.settings import read_sections
from metaq.pipelines.spark_runtime import (
    SPARK,
    STARTS_MAX,
    WORKER_LATE,
    run_query,
    spark_config,
)
from metaq.spark.errors import error_summary
from metaq.spark.session import is_here


class Query:
    """A query that has ended."""

    isActive = False
    lastProgress = None

    def __init__(self, failure: str = "") -> None:
        self._failure = failure

    def awaitTermination(self) -> None:
        if self._failure:
            raise CommandError(self._failure)


def run(queries: list[Any]) -> Progress:
    def nothing(*_: object) -> None: ...

    return run_query(lambda: queries.pop(0), nothing, nothing, threading.Event(), nothing)


def test_a_slow_worker_restarts_the_query() -> None:
    late = Query(f"[STREAM_FAILED] {WORKER_LATE}. SQLSTATE: XXKST")
    done = run([late, late, Query()])
    assert (done.phase, done.restarts) == ("stopped", 2)
    queries = [late] * (STARTS_MAX + 1)
    with pytest.raises(CommandError, match=WORKER_LATE):
        run(queries)
    assert len(queries) == 1


def test_other_failures_end_the_run() -> None:
    queries = [Query("no such topic"), Query()]
    with pytest.raises(CommandError, match="no such topic"):
        run(queries)
    assert len(queries) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[X] failed: Traceback:\n  File a\nModuleNotFoundError: No module named 'm'\n SQLSTATE",
            "ModuleNotFoundError: No module named 'm'",
        ),
        ("[X] failed\nmetaq.pipelines.binlog_mirror.errors.MirrorError: why\n\tat java", "why"),
        ("one\ntwo\nthree\nfour", "one; two; three"),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Master must start with yarn, spark, or local\n\tat java",
            "org.apache.spark.SparkException: Master must start with yarn, spark, or local",
        ),
    ],
)
def test_errors_are_short(text: str, message: str) -> None:
    assert error_summary(text) == message


@pytest.mark.parametrize("config", ['["spark.a=b", "hush"]', '"spark.a=hush"', '["spark.a=hush", ""]'])
def test_settings_of_spark_may_be_secret(tmp_path: Path, config: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"[spark]\nconfig = {config}\n")
    with pytest.raises(ConfigError, match=r"spark\.config") as raised:
        spark_config(file, read_sections(file, {"spark": SPARK})["spark"])
    assert "hush" not in f"{raised.value} {raised.value.hint}"


def test_under_spark_submit_the_master_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert is_here(None) and is_here("local") and is_here("local[2]")
    assert not is_here("local-cluster[2,1,1024]") and not is_here("yarn")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not is_here(None) and is_here("local[2]")


def test_every_run_has_a_private_warehouse_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, all accounts shared one folder with a known name."""
    used: list[Path] = []

    def session(name: str, *, config: dict[str, str], **_: object) -> Mock:
        warehouse = Path(config["spark.sql.warehouse.dir"])
        assert warehouse.stat().st_mode & 0o777 == 0o700
        used.append(warehouse)
        return Mock()

    monkeypatch.setattr(spark_runtime, "session", session)
    monkeypatch.setattr(spark_runtime.SparkContext, "_active_spark_context", None)
    for _ in range(2):
        with spark_runtime.spark_session("test", spark_runtime.SparkConfig("local[1]", None, {})):
            assert used[-1].is_dir()
    assert len(set(used)) == 2
    assert not any(warehouse.exists() for warehouse in used)
