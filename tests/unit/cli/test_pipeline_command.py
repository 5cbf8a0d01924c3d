"""metaq pipeline: what the command does with whichever pipeline."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from metaq import pipelines
from metaq.cli import app
from metaq.pipelines import Plan, Progress, Report


class Endless:
    """A pipeline that runs until it is told to stop."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        assert path == Path("some.toml")
        return cls()

    def plan(self) -> Plan:
        return Plan({"source": "here"}, [{"table": "a.[b]", "rows": 3}], ["mind the gap"])

    def run(self, report: Report, stop: threading.Event) -> Progress:
        progress = Progress("following", rows=1234, bytes=5, lag_s=0.25, details={"place": "x:4"})
        report(progress)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10), "a signal lets it end"
        progress.phase = "stopped"
        return progress


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "load", lambda name: Endless)


def command(*arguments: str) -> tuple[str, str]:
    outcome = CliRunner().invoke(app, ["pipeline", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout, outcome.stderr


def test_a_run_ends_by_a_signal_and_tells_how_far_it_came() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stdout, stderr = command("run", "endless", "--config", "some.toml")
    assert "following, 1,234 rows, 5 bytes" in stderr
    assert stdout.startswith("endless ended; stopped, 1,234 rows")
    assert "lag 0.2 s, place x:4" in stdout
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_for_programs() -> None:
    stdout, _ = command("run", "endless", "--config", "some.toml", "-o", "json")
    (line,) = stdout.splitlines()
    assert json.loads(line) == {
        "pipeline": "endless",
        "phase": "following",
        "rows": 1234,
        "bytes": 5,
        "lag_s": 0.25,
        "rows_per_second": 0.0,
        "details": {"place": "x:4"},
    }


def test_a_dry_run_prints_the_plan() -> None:
    stdout, _ = command("run", "endless", "--config", "some.toml", "--dry-run")
    assert stdout.splitlines()[0].split() == ["source", "here"]
    assert "a.[b]" in stdout
    assert "warning: mind the gap" in stdout
    stdout, _ = command("run", "endless", "--config", "some.toml", "--dry-run", "-o", "json")
    assert json.loads(stdout)["tables"] == [{"table": "a.[b]", "rows": 3}]


def test_the_list_has_every_pipeline() -> None:
    stdout, _ = command("list")
    assert all(name in stdout for name in pipelines.PIPELINES)
    stdout, _ = command("list", "-o", "json")
    assert [entry["name"] for entry in json.loads(stdout)] == list(pipelines.PIPELINES)


class Movable(Endless):
    """One whose work Spark does."""

    def __init__(self, master: str = "local") -> None:
        self._master = master

    def on(self, master: str) -> Movable:
        return Movable(master)

    def plan(self) -> Plan:
        return Plan({"spark": self._master})


def test_a_master_is_for_those_that_run_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("run", "some", "--config", "some.toml", "--dry-run", "--master", "spark://there:7077")
    outcome = CliRunner().invoke(app, ["pipeline", *there])
    assert outcome.exit_code != 0
    assert "some does not run on Spark" in str(outcome.exception)
    monkeypatch.setattr(pipelines, "load", lambda name: Movable)
    assert command(*there)[0].split() == ["spark", "spark://there:7077"]
