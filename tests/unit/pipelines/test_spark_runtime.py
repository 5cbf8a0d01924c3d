"""Common parts of the pipelines on Spark, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from metaq.errors import CommandError, ConfigError
from metaq.pipelines import Progress, Report, spark_runtime
from metaq.pipelines.settings import read_sections
from metaq.pipelines.spark_runtime import (
    SPARK,
    STARTS_MAX,
    retried,
    run_query,
    spark_config,
)
from metaq.spark.errors import error_summary
from metaq.spark.session import is_here
from metaq.spark.worker_failures import WORKER_LATE, worker_failure


class Query:
    """A query that has ended."""

    lastProgress: Mock | None = None

    def __init__(self, failure: str = "", *, batches: int = 0) -> None:
        self._failure = failure
        self._looks = batches
        if batches:
            self.lastProgress = Mock(
                inputRowsPerSecond=1.0, durationMs={"addBatch": 1, "triggerExecution": 1}
            )

    @property
    def isActive(self) -> bool:
        self._looks -= 1
        return self._looks >= 0

    def awaitTermination(self) -> None:
        if self._failure:
            raise CommandError(self._failure)


LATE = f"[STREAM_FAILED] {WORKER_LATE[0]}. SQLSTATE: XXKST"


class Pauses(threading.Event):
    """An event that notes how long somebody waited for it, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0.0)
        return self.is_set()


def nothing(*_: object) -> None: ...


def run(queries: list[Any], report: Report = nothing, stop: threading.Event | None = None) -> Progress:
    return run_query(lambda: queries.pop(0), nothing, report, stop or Pauses(), nothing)


def test_a_slow_worker_restarts_the_query_after_growing_pauses() -> None:
    reports: list[Progress] = []
    pauses = Pauses()
    done = run([Query(LATE), Query(LATE), Query(LATE), Query()], reports.append, pauses)
    assert (done.phase, done.restarts) == ("stopped", 3)
    waiting = [report.restarts for report in reports if report.phase == "waiting"]
    assert waiting == [1, 2, 3]
    first_s, second_s, third_s = pauses.waited_s
    assert 0.5 < first_s <= 1 < second_s <= 2 < third_s <= 4


def test_a_worker_that_is_always_slow_ends_the_run() -> None:
    queries = [Query(LATE) for _ in range(STARTS_MAX + 1)]
    with pytest.raises(CommandError, match=WORKER_LATE[0]):
        run(queries)
    assert len(queries) == 1


def test_only_failures_in_a_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_runtime, "ReportTimer", lambda: Mock(is_due=lambda: True))
    queries = [Query(LATE, batches=2) for _ in range(2 * STARTS_MAX)]
    assert run([*queries, Query()]).restarts == 2 * STARTS_MAX


def test_a_stop_ends_the_pause() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CommandError, match=WORKER_LATE[0]):
        run([Query(LATE), Query()], stop=stop)


def test_a_step_that_plans_is_repeated_too() -> None:
    outcomes = [CommandError(LATE), CommandError(LATE), None]

    def work() -> str:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "loaded"

    assert retried(work, Pauses()) == "loaded"
    with pytest.raises(CommandError, match="no such topic"):
        retried(Mock(side_effect=CommandError("no such topic")), Pauses())


@pytest.mark.parametrize(
    ("text", "summary", "advice"),
    [
        (
            'Job aborted due to stage failure: java.io.IOException: Cannot run program "/venv/bin/python":'
            " error=2, No such file or directory",
            "an executor cannot run the Python /venv/bin/python: there is no such file",
            "name the Python of the workers with spark.pyspark.python; or pack",
        ),
        (
            "[STREAM_FAILED] Query terminated\nModuleNotFoundError: No module named 'metaq'",
            "an executor runs /workers/python, which has no module metaq",
            "`metaq spark pack FILE.tar.gz`",
        ),
        (
            "An error occurred while calling o46.load.\n: org.apache.spark.SparkException:\n"
            "Error from python worker:\n  /x/python3: Error while finding module specification for"
            " 'pyspark.daemon' (ModuleNotFoundError: No module named 'pyspark')",
            "the driver runs /driver/python, which has no module pyspark",
            "--environment FILE.tar.gz",
        ),
        (
            "stage failure: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not",
            "an executor runs /workers/python, which has no module PyArrow",
            "spark.pyspark.python",
        ),
        (
            "stage failure: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that"
            " in driver: 3.11, PySpark cannot run with different minor versions.",
            "/workers/python on the executors is Python 3.9, but the driver runs 3.11",
            "spark.pyspark.python",
        ),
        (
            f"{WORKER_LATE[1]}",
            "a Python process of Spark did not start within 10 s",
            "start the query again from its checkpoint",
        ),
    ],
)
def test_the_failure_of_a_python_process_has_a_cause_and_a_remedy(
    text: str, summary: str, advice: str
) -> None:
    found = worker_failure(text, "/workers/python", "/driver/python")
    assert found is not None
    assert found.summary.startswith(summary)
    assert advice in found.hint
    assert worker_failure("no such topic", "", "") is None


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
        (
            "An error occurred while calling o46.load.\n: org.apache.spark.SparkException: \n"
            "Error from python worker:\n  Traceback (most recent call last):\n    File a\n"
            "  ImportError: libffi.so.8: cannot open shared object file\nPYTHONPATH was:\n  /x\n\tat org.a.B",
            "ImportError: libffi.so.8: cannot open shared object file",
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
