"""Runs the examples of docs/pipelines.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.pipelines import PIPELINES
from metaq.pipelines.binlog_mirror.config import JDBC, MIRROR
from metaq.pipelines.binlog_sync.config import SECTIONS
from metaq.pipelines.spark_runtime import SPARK
from tests.support.binlog import Running
from tests.support.database import PASSWORD
from tests.support.mariadb import MariaDb
from tests.support.metaq import Metaq, run

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
FOUND = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
BLOCKS = dict(reversed(FOUND))
"""The first block of each language: the example of binlog-sync."""


def test_the_page_lists_every_pipeline_and_every_key() -> None:
    for name in PIPELINES:
        assert f"| `{name}` |" in PAGE
    for section, keys in {**SECTIONS, "mirror": MIRROR, "jdbc": JDBC, "spark": SPARK}.items():
        (first, *_) = re.findall(rf"`{section}\.\w+`", PAGE)
        assert first
        for key in keys:
            assert re.search(rf"`(?:{section}\.)?{key}`", PAGE), f"{section}.{key}"


def test_the_example_of_a_message_is_json() -> None:
    assert [change["op"] for change in json.loads(BLOCKS["json"])["changes"]] == ["update", "delete"]


def test_the_blocks_mirror_a_table(
    mariadb: MariaDb, served: Metaq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAQ_SOURCE_PASSWORD", PASSWORD)
    sql = [line for line in BLOCKS["sql"].splitlines() if not line.startswith("CREATE USER")]
    mariadb.execute(
        *sql,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, price DECIMAL(9,2))",
        "INSERT INTO shop.orders VALUES (1, 1), (2, 2)",
    )
    config = tmp_path / "shop.toml"
    toml = BLOCKS["toml"].replace("127.0.0.1:9876", served.nameserver).replace("3306", str(mariadb.port))
    config.write_text(toml, encoding="utf-8")
    dry, real = (line.split()[1:] for line in BLOCKS["bash"].splitlines())
    assert dry == [*real, "--dry-run"]
    planned = run(*(str(config) if word == "shop.toml" else word for word in dry))
    assert planned.returncode == 0, planned.stderr
    assert "shop.orders" in planned.stdout

    running = Running(config)
    running.wait_for_phase("following")
    mariadb.execute("UPDATE shop.orders SET price = 3 WHERE id = 1", "DELETE FROM shop.orders WHERE id = 2")
    running.wait_until_at(mariadb)
    running.stop()
    program = tmp_path / "page.py"
    program.write_text(BLOCKS["python"].replace("127.0.0.1:9876", served.nameserver), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    assert outcome.stdout == "{1: {'id': 1, 'price': '3.00'}}\n"
