"""Runs docs/spark.md and the Spark example of the README."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metaq.admin import Admin, PipelineReport
from tests.support.metaq import Metaq
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def output(code: str, served: Metaq, tmp_path: Path, names: dict[str, Any] | None = None) -> str:
    """In this process, whose session is the one that `metaq.spark.session()` gives. `names` gets the
    variables of the page."""
    code = code.replace("127.0.0.1:9876", served.nameserver).replace("/tmp/", f"{tmp_path}/")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), {} if names is None else names)
    return printed.getvalue()


def test_the_page(spark: SparkSession, served: Metaq, tmp_path: Path) -> None:
    found = blocks("docs/spark.md")
    assert len(found) == 3
    names: dict[str, Any] = {}
    printed = output("\n".join(found), served, tmp_path, names)
    assert "500 orders are paid" in printed
    assert "['queueId', 'queueOffset', 'body']" in printed
    assert "|paid|  500|" in printed
    assert "Lag(messages=400," in printed and "Lag(messages=0," in printed
    try:
        report = ended_report(served, "shop/counts")
        assert (report.kind, report.run) == ("spark-query", str(names["query"].runId))
        assert (report.state, report.rows, report.topics) == ("ended", 1000, ("Orders",))
        assert (report.lag_messages, report.spark_ui) == (0, spark.sparkContext.uiWebUrl)
        # A query that fails reports why, without the stacks of Java and Python.
        orders = spark.readStream.format("metaq").option("nameservers", served.nameserver)
        read = orders.option("subscribe", "Orders").option("startingOffsets", "earliest").load()
        failing = read.selectExpr("raise_error('out of apples')").writeStream.format("noop")
        failing.queryName("failing").trigger(availableNow=True).start()
        failed = ended_report(served, "shop/failing")
        assert failed.state == "failed" and failed.last_error is not None
        assert "out of apples" in failed.last_error and "\n" not in failed.last_error
    finally:
        names["reports"].close()


def ended_report(served: Metaq, name: str) -> PipelineReport:
    """Waits for the last report of a query."""
    with Admin(served.nameserver) as admin:

        def over() -> list[PipelineReport]:
            found = admin.pipelines.list().reports
            return [report for report in found if report.name == name and report.is_over]

        return eventually(over, bool, 60, "over", interval_s=0.2)[0]


def test_the_readme(spark: SparkSession, served: Metaq, tmp_path: Path) -> None:
    assert served.run("send", "Hello", "first", "--tag", "greeting").returncode == 0
    (example,) = [block for block in blocks("README.md") if "metaq.spark" in block]
    assert "|greeting|    1|" in output(example, served, tmp_path)
