"""A worker that Spark has hung up on."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from metaq.client.session.routes import Queue
from metaq.errors import UnreadableBody
from metaq.spark.source import read
from metaq.spark.source.offsets import Range
from metaq.spark.source.options import source_options
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


@pytest.mark.parametrize(
    ("given", "fails"),
    [
        ({}, True),
        ({"failOnDataLoss": "false"}, False),
        ({"failOnUnreadableBody": "false"}, False),
        ({"failOnDataLoss": "false", "failOnUnreadableBody": "true"}, True),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_not_a_lost_message(given: dict[str, str], fails: bool) -> None:
    options = source_options({"subscribe": "t", **given}, streaming=False)
    reader = read._RangeReader(options, Range(Queue("t", "b", 0), 0, 9), "b:1")
    try:
        reader._unreadable([(3, "it is damaged")])
    except UnreadableBody:
        assert fails
    else:
        assert not fails
