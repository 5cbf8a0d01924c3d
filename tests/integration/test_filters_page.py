"""Runs the blocks of docs/filters.md, and checks that every page with Python has a test that runs it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from metaq.broker.functions import parse_call
from metaq.broker.sql92 import compile_expression
from tests.support.clients import create_topic, send
from tests.support.metaq import Metaq, run
from tests.support.processes import Child

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)

RUN_BY = {
    "README.md": "tests/integration/test_readme.py",
    "README.zh-CN.md": "tests/unit/docs/test_readme.py",
    "docs/admin-client.md": "tests/integration/admin/test_page.py",
    "docs/filters.md": "tests/integration/test_filters_page.py",
    "docs/log-lake.md": "tests/spark/test_pipeline_pages.py",
    "docs/pipelines.md": "tests/integration/pipelines/test_pipelines_page.py",
    "docs/python.md": "tests/integration/test_python_page.py",
    "docs/python-consumers.md": "tests/integration/client/test_consumer_docs.py",
    "docs/spark.md": "tests/spark/test_pages.py",
    "docs/spark-sink.md": "tests/spark/test_sink.py",
    "docs/stream-sql.md": "tests/spark/test_pipeline_pages.py",
    "docs/testing.md": "tests/integration/test_testing_page.py",
    "docs/tracing.md": "tests/integration/test_tracing_page.py",
}
"""The pages that contain Python, and the tests that run it."""


def test_every_page_with_python_is_run_by_a_test() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text(encoding="utf-8")}
    assert found == RUN_BY.keys()
    for page, test in RUN_BY.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert f'"{Path(page).name}"' in text or f'"{page}"' in text, f"{test} reads {page}"


def test_the_blocks_are_those_that_are_run_here() -> None:
    assert [language for language, _ in BLOCKS] == ["sql", "", "python", "bash", "", "java", "python"]


def test_the_expressions_are_valid() -> None:
    for line in BLOCKS[0][1].splitlines(keepends=True):
        compile_expression(line)
    assert parse_call(BLOCKS[4][1].strip()).arguments == (99.5, "eu", "it's elsewhere")
    (written,) = re.findall(r'"function:(.+)"\)', BLOCKS[5][1])
    assert parse_call(written).arguments == (99.5, "eu")


def test_the_function_serves_the_consumer(tmp_path: Path) -> None:
    folder = tmp_path / "shop_filters"
    folder.mkdir()
    (folder / "orders.py").write_text(BLOCKS[2][1], encoding="utf-8")
    serve, show = (line.partition("#")[0].split()[1:] for line in BLOCKS[3][1].splitlines())
    shown = run(*(str(folder) if word == "./shop_filters" else word for word in show))
    assert "larger_than" in shown.stdout, shown.stderr

    assert serve == ["serve", "--set", "filter_functions=./shop_filters"]
    metaq = Metaq.serve(tmp_path, *serve[1:])
    try:
        asyncio.run(_send_orders(metaq.broker))
        program = tmp_path / "program.py"
        program.write_text(BLOCKS[6][1].replace("127.0.0.1:9876", metaq.nameserver), encoding="utf-8")
        child = Child([sys.executable, str(program)], tmp_path / "program.log", dict(os.environ), tmp_path)
        try:
            child.wait_for(lambda log: log if "third" in log else None, 60, "an order")
            assert child.stop() == 0, child.tail()
        finally:
            child.kill()
        assert (tmp_path / "program.log").read_text().split() == ["large:", "third;100.5"]
    finally:
        assert metaq.stop() == 0


async def _send_orders(broker: str) -> None:
    await create_topic(broker, "Orders", queues=1)
    await send(broker, "Orders", "first;50", "second;99.5", region="eu")
    await send(broker, "Orders", "fourth;500", region="us")
    await send(broker, "Orders", "third;100.5", region="eu")
