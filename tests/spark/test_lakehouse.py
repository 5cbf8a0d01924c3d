"""examples/lakehouse, run as a reader does, but in this process, which has a session already."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.support.binlog import write_config
from tests.support.database import Database
from tests.support.metaq import Metaq

EXAMPLE = Path(__file__).parents[2] / "examples" / "lakehouse" / "main.py"


@pytest.mark.timeout(900)  # A busy machine needs minutes for what takes seconds.
@pytest.mark.usefixtures("spark", "password")
def test_the_dashboard_shows_what_the_database_has(
    server: Database,
    served: Metaq,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path / "shop.toml", server, served.nameserver, database)
    with config.open("a", encoding="utf-8") as file:
        file.write('[mirror]\npath = "tables"\ninterval_s = 1\n')
    given = ["--config", str(config), "--database", database, "--user", "root", "--socket", server.socket]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *given, "--orders", "60"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "54 orders in the lakehouse" in printed
    assert "the dashboard shows what MariaDB has" in printed


def test_the_file_of_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    from metaq.pipelines import load

    monkeypatch.setenv("METAQ_SOURCE_PASSWORD", "secret")
    for name in ("binlog-sync", "binlog-mirror"):
        load(name).from_file(EXAMPLE.with_name("shop.toml"))
