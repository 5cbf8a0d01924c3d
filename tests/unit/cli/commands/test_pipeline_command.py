"""metaq pipeline: the parts of the command that all pipelines share."""

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
from metaq.errors import CommandError, ConfigError
from metaq.pipelines import DifferingKey, Plan, Progress, Report, TableVerification, Verification
from metaq.protocol.errors import Unreachable


class Endless:
    """A pipeline that runs until it must stop."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        assert path == Path("some.toml")
        return cls()

    def plan(self) -> Plan:
        return Plan(
            {"source": "here"}, [{"table": "a.[b]", "rows": 3}], ["mind the gap"], ["here: it answers"]
        )

    def run(self, report: Report, stop: threading.Event) -> Progress:
        progress = Progress("following", rows=1234, bytes=5, lag_s=0.25, details={"place": "x:4"})
        progress.findings = ("orders has no key",)
        report(progress)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10), "a signal lets it end"
        progress.phase = "stopped"
        return progress


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "load", lambda name: Endless)
    monkeypatch.setenv("METAQ_LOG_FORMAT", "text")


def command(*arguments: str) -> tuple[str, str]:
    outcome = CliRunner().invoke(app, ["pipeline", *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout, outcome.stderr


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_name_server_that_is_away_names_the_file_and_its_key(
    monkeypatch: pytest.MonkeyPatch, dry_run: tuple[str, ...]
) -> None:
    """The command has no --namesrv."""

    def away(*_: object) -> None:
        raise Unreachable("no name server answers: 127.0.0.1:1", hint="is this its address?")

    monkeypatch.setattr(Endless, "plan", away)
    monkeypatch.setattr(Endless, "run", away)
    outcome = CliRunner().invoke(app, ["pipeline", "run", "endless", "--config", "some.toml", *dry_run])
    assert isinstance(outcome.exception, CommandError)
    assert str(outcome.exception) == "no name server answers: 127.0.0.1:1"
    assert outcome.exception.hint.endswith("is its address the key namesrv of some.toml?")


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
        "rows_in_per_second": None,
        "batch_s": None,
        "restarts": 0,
        "details": {"place": "x:4"},
        "findings": ["orders has no key"],
    }


@pytest.mark.parametrize("given", ["nowhere", "0.0.0.0:0"])
def test_metrics_need_an_address_on_this_machine(given: str) -> None:
    outcome = CliRunner().invoke(
        app, ["pipeline", "run", "endless", "--config", "some.toml", "--metrics-listen", given]
    )
    assert isinstance(outcome.exception, ConfigError)
    assert ("HOST:PORT" if given == "nowhere" else "open to other machines") in str(outcome.exception)


def test_a_run_serves_its_metrics() -> None:
    _, stderr = command("run", "endless", "--config", "some.toml", "--metrics-listen", "127.0.0.1:0")
    assert "endless: metrics at http://127.0.0.1:" in stderr


def test_a_dry_run_prints_the_plan() -> None:
    stdout, _ = command("run", "endless", "--config", "some.toml", "--dry-run")
    assert stdout.splitlines()[0].split() == ["source", "here"]
    assert "a.[b]" in stdout
    assert "warning: mind the gap" in stdout
    assert "checked  here: it answers" in stdout
    stdout, _ = command("run", "endless", "--config", "some.toml", "--dry-run", "-o", "json")
    plan = json.loads(stdout)
    assert plan["tables"] == [{"table": "a.[b]", "rows": 3}]
    assert plan["checks"] == ["here: it answers"]


def test_the_list_has_every_pipeline() -> None:
    stdout, _ = command("list")
    assert all(name in stdout for name in pipelines.PIPELINES)
    stdout, _ = command("list", "-o", "json")
    assert [entry["name"] for entry in json.loads(stdout)] == list(pipelines.PIPELINES)


class Movable(Endless):
    """One whose work Spark does."""

    def __init__(self, master: str | None = "local", environment: str | None = None) -> None:
        self._master, self._environment = master, environment

    def on(self, master: str | None, environment: str | None = None) -> Movable:
        return Movable(master, environment)

    def plan(self) -> Plan:
        return Plan({"spark": self._master, "environment": self._environment})


def test_a_master_is_for_those_that_run_on_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("run", "some", "--config", "some.toml", "--dry-run", "--master", "spark://there:7077")
    outcome = CliRunner().invoke(app, ["pipeline", *there])
    assert outcome.exit_code != 0
    assert "some does not run on Spark" in str(outcome.exception)
    monkeypatch.setattr(pipelines, "load", lambda name: Movable)
    assert command(*there)[0].split()[:2] == ["spark", "spark://there:7077"]
    packed = (*there, "--environment", "e.tar.gz")
    assert command(*packed)[0].split() == ["spark", "spark://there:7077", "environment", "e.tar.gz"]


def test_an_environment_is_for_those_that_run_on_spark() -> None:
    outcome = CliRunner().invoke(
        app, ["pipeline", "run", "some", "--config", "some.toml", "--environment", "e.tar.gz"]
    )
    assert "some does not run on Spark and has no --environment" in str(outcome.exception)


class Compared(Endless):
    """One with a copy, of which a table differs until it is waited for."""

    def verify(self, limit: int, wait_s: float) -> Verification:
        same = TableVerification("a.same", source_rows=1234, mirror_rows=1234, chunks=16)
        if wait_s:
            assert wait_s == 2.5
            return Verification((same,))
        keys = (DifferingKey('["[b]"]', "only in the source"), DifferingKey("[2]", "different"))
        other = TableVerification(
            *("a.[other]", 3, 2, 16, 2),
            keys=keys[:limit],
            more_keys=max(len(keys) - limit, 0),
            quarantined=1,
        )
        return Verification((same, other, TableVerification("a.new", note="it has no mirror")))


def verify(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, ["pipeline", "verify", "some", "--config", "some.toml", *arguments])
    assert isinstance(outcome.exception, SystemExit | None), outcome.exception
    return outcome.exit_code, outcome.stdout


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "load", lambda name: Compared)


@pytest.mark.usefixtures("compared")
def test_verify_prints_what_differs_and_ends_with_1() -> None:
    code, stdout = verify()
    assert code == 1
    lines = [line.split() for line in stdout.splitlines()]
    assert ["a.same", "1,234", "1,234", "0", "16", "0", "same"] in lines
    assert ["a.[other]", "3", "2", "1", "16", "2", "different"] in lines
    assert ["a.new", "0", "0", "0", "0", "0", "it", "has", "no", "mirror"] in lines
    assert stdout.splitlines()[-2:] == ['a.[other] ["[b]"]: only in the source', "a.[other] [2]: different"]
    code, stdout = verify("--limit", "1")
    assert code == 1
    assert stdout.splitlines()[-2:] == ['a.[other] ["[b]"]: only in the source', "a.[other]: 1 more key"]


@pytest.mark.usefixtures("compared")
def test_verify_for_programs() -> None:
    code, stdout = verify("-o", "json")
    found = json.loads(stdout)
    assert (code, found["same"]) == (1, False)
    assert found["tables"][1]["keys"][1] == {"key": "[2]", "what": "different"}
    assert found["tables"][2]["note"] == "it has no mirror"


@pytest.mark.usefixtures("compared")
def test_verify_that_waits_until_all_is_the_same() -> None:
    code, stdout = verify("--wait", "2.5")
    assert code == 0
    assert [line.split()[-1] for line in stdout.splitlines() if "a." in line] == ["same"]


def test_verify_is_for_those_with_a_copy() -> None:
    outcome = CliRunner().invoke(app, ["pipeline", "verify", "some", "--config", "some.toml"])
    assert outcome.exit_code != 0
    assert isinstance(outcome.exception, CommandError)
    assert str(outcome.exception) == "some has no copy to compare"
    # It works even if the packages of the other pipelines are not installed.
    assert outcome.exception.hint == "these have one: binlog-mirror"


def test_those_with_a_copy_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert {name for name in pipelines.PIPELINES if hasattr(pipelines.load(name), "verify")} == {
        name for name, entry in pipelines.PIPELINES.items() if entry.has_copy
    }


def test_a_pipeline_that_cannot_read_again() -> None:
    outcome = CliRunner().invoke(
        app, ["pipeline", "reread", "endless", "--config", "some.toml", "--table", "a.b"]
    )
    assert isinstance(outcome.exception, CommandError)
    assert outcome.exception.hint == "these can: binlog-sync"
