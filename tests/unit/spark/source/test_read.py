"""A worker that Spark has hung up on."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from metaq.spark.source.read import is_abandoned


@pytest.mark.parametrize(
    ("program", "context", "abandoned"),
    [
        ("pyspark.daemon", BrokenPipeError(), True),
        ("pyspark.daemon", ConnectionResetError(), True),
        ("pyspark.daemon", ValueError(), False),
        ("pyspark.daemon", None, False),
        ("pytest", BrokenPipeError(), False),
        (None, BrokenPipeError(), False),
    ],
)
def test_only_a_worker_of_spark_whose_pipe_is_broken_is_ended(
    monkeypatch: pytest.MonkeyPatch, program: str | None, context: BaseException | None, abandoned: bool
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if program is None else SimpleNamespace(name=program)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    closed = GeneratorExit()
    closed.__context__ = context
    assert is_abandoned(closed) is abandoned
