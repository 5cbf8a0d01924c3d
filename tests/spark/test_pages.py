"""Runs docs/spark.md and the Spark example of the README."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.metaq import Metaq

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def output(code: str, served: Metaq, tmp_path: Path) -> str:
    """In this process, whose session is the one that `metaq.spark.session()` gives."""
    code = code.replace("127.0.0.1:9876", served.nameserver).replace("/tmp/", f"{tmp_path}/")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), {})
    return printed.getvalue()


def test_the_page(spark: SparkSession, served: Metaq, tmp_path: Path) -> None:
    found = blocks("docs/spark.md")
    assert len(found) == 2
    printed = output("\n".join(found), served, tmp_path)
    assert "500 orders are paid" in printed
    assert "|paid|  500|" in printed
    assert "Lag(messages=400," in printed and "Lag(messages=0," in printed


def test_the_readme(spark: SparkSession, served: Metaq, tmp_path: Path) -> None:
    assert served.run("send", "Hello", "first", "--tag", "greeting").returncode == 0
    (example,) = [block for block in blocks("README.md") if "metaq.spark" in block]
    assert "|greeting|    1|" in output(example, served, tmp_path)
