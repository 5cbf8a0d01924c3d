"""examples/tour.py, run as a reader does, but in this process, which has a session already."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.patience import TRIES, patiently

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"


@pytest.mark.timeout(900)  # A busy machine needs minutes for what takes seconds.
def test_the_tour(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    homes = [tmp_path / f"tour-{number}" for number in range(TRIES)]

    def run() -> Path:
        # One that is there is refused.
        home = homes.pop()
        monkeypatch.setattr(sys, "argv", [str(TOUR), "--home", str(home)])
        capsys.readouterr()
        runpy.run_path(str(TOUR), run_name="__main__")
        return home

    home = patiently(run)
    printed = capsys.readouterr().out
    assert printed.count("sent 600 orders") == 2 and printed.count("read 600 orders") == 2
    revenue = spark.read.format("delta").load(str(home / "revenue")).collect()
    # Five windows of three shops are over, each with twenty orders a minute.
    assert len(revenue) == 15
    assert sum(row.orders for row in revenue) == 5 * 10 * 20
    with pytest.raises(SystemExit):
        runpy.run_path(str(TOUR), run_name="__main__")
    assert "remove it" in capsys.readouterr().err
