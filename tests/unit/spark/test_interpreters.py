"""Which Python the processes of Spark run."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.spark.interpreters import (
    LOOK_UP,
    PYTHON,
    TASK_PYTHON,
    executors_python,
    look_up_here,
    planned_here,
)


class Settings(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


def session(executors: str, **settings: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=executors), conf=Settings(settings))


def test_executors_run_the_named_program_or_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, they ran the first `python3` of the PATH on a cluster."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert executors_python({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/variable/python")
    assert executors_python({}) == "/variable/python"
    assert executors_python({PYTHON: "/setting/python"}) == "/setting/python"


def test_the_driver_plans_with_its_own_program() -> None:
    spark = session("/workers/python")
    with planned_here(spark):
        assert spark.sparkContext.pythonExec == sys.executable
    assert spark.sparkContext.pythonExec == "/workers/python"
    assert spark.conf == {TASK_PYTHON: "/workers/python"}, "tasks do not run the Python of the driver"
    same = session(sys.executable)
    with planned_here(same):
        assert same.conf == {}


def test_a_setting_of_the_user_wins_and_a_failure_changes_nothing() -> None:
    spark = session("/workers/python", **{TASK_PYTHON: "/named/python"})
    with pytest.raises(ZeroDivisionError), planned_here(spark):
        raise ZeroDivisionError
    assert spark.conf == {TASK_PYTHON: "/named/python"}
    assert spark.sparkContext.pythonExec == "/workers/python"


def test_a_session_of_spark_connect_has_no_context() -> None:
    with planned_here(SimpleNamespace()):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("before", [None, "jupyter"])
def test_the_jvm_looks_for_sources_with_our_program(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(LOOK_UP, raising=False)
    if before is not None:
        monkeypatch.setenv(LOOK_UP, before)
    with look_up_here():
        assert os.environ[LOOK_UP] == sys.executable
    assert os.environ.get(LOOK_UP) == before
