"""Runs the examples of docs/log-lake.md and docs/stream-sql.md."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metaq.cli import app
from metaq.pipelines.log_lake import config as lake
from metaq.pipelines.settings import Key
from metaq.pipelines.spark_runtime import SPARK
from metaq.pipelines.stream_sql import config as sql
from tests.spark.patience import patiently
from tests.spark.support import Topics
from tests.support.metaq import Metaq

DOCS = Path(__file__).parents[2] / "docs"
NOW = datetime.datetime.now(datetime.UTC)

# A busy machine needs minutes.
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]


class Page:
    """A page whose blocks are run in the current directory."""

    def __init__(self, name: str, served: Metaq) -> None:
        text = (DOCS / name).read_text(encoding="utf-8")
        self.text = text
        self._served = served
        self._blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))

    def write(self, **topics: str) -> None:
        """Writes the TOML file that the commands name, with the topics of this test."""
        (name,) = set(re.findall(r"--config (\S+)", self._blocks["bash"]))
        text = self._blocks["toml"].replace("127.0.0.1:9876", self._served.nameserver)
        for old, new in topics.items():
            text = text.replace(f'= "{old}"', f'= "{new}"')
        Path(name).write_text(text, encoding="utf-8")

    def run(self) -> list[str]:
        """Runs the commands in this process, which has a session already; returns their output."""
        printed = []
        for line in self._blocks["bash"].splitlines():
            words = line.split()[1:]
            done = patiently(lambda words=words: CliRunner().invoke(app, words, catch_exceptions=False))
            assert done.exit_code == 0, done.output
            printed.append(done.output)
        return printed

    def read(self) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # The JVM keeps the directory that it was started in.
            code = self._blocks["python"].replace('.load("', f'.load("{Path.cwd()}/')
            exec(compile(code, "page", "exec"), {})
        return printed.getvalue()

    def require_keys(self, section: str, keys: Mapping[str, Key]) -> None:
        for key in keys:
            assert re.search(rf"`(?:{section}\.)?{key}`", self.text), f"{section}.{key}"


def test_the_page_of_log_lake(
    served: Metaq,
    topics: Topics,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    page, topic = Page("log-lake.md", served), make_topic()
    page.write(logs=topic)
    at = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    topics.fill(topic, [json.dumps({"level": "info", "at": at, "took_ms": 3}), "nonsense"])
    planned, ran = page.run()
    assert "date:date,topic:string,time:timestamp" in planned
    assert "1 row," in ran and "quarantined 1" in ran
    printed = page.read()
    assert re.search(rf"\|\s*{topic}\|\s*info\|\s*1\|", printed), printed
    assert "not a JSON object" in printed
    for section, keys in (("records", lake.RECORDS), ("lake", lake.LAKE), ("spark", SPARK)):
        page.require_keys(section, keys)


def test_the_page_of_stream_sql(
    served: Metaq,
    topics: Topics,
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    page, topic = Page("stream-sql.md", served), make_topic()
    page.write(orders=topic)
    Path("shops.csv").write_text("shop,country\na,DE\nb,FR\n")
    orders = [("a", 1.5, "08:10"), ("b", 2.0, "08:20"), ("a", 2.5, "08:50"), ("a", 4.0, "09:00")]
    topics.fill(
        topic,
        [
            json.dumps({"id": number, "shop": shop, "price": price, "at": f"2026-01-31T{at}:00Z"})
            for number, (shop, price, at) in enumerate(orders)
        ],
    )
    planned, ran = page.run()
    assert "Aggregate" in planned and "begins:timestamp,country:string" in planned
    assert "4 rows" in ran
    found = re.findall(r"\|\s*(DE|FR)\|\s*(\d+)\|\s*([\d.]+)\|", page.read())
    assert found == [("DE", "2", "4.0"), ("FR", "1", "2.0"), ("DE", "1", "4.0")]
    for section, keys in (("source", sql.SOURCE), ("query", sql.QUERY), ("sink", sql.SINK), ("spark", SPARK)):
        page.require_keys(section, keys)
