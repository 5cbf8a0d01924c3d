"""Reports of a pipeline that runs, as the administration client and the command line show them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from metaq.admin import Admin, PipelineReport
from metaq.protocol.names import PIPELINE_REPORTS_TOPIC
from tests.support.metaq import Metaq
from tests.support.processes import Child
from tests.support.waiting import eventually

COMMAND = [sys.executable, "-m", "metaq", "pipeline", "run", "log-transport"]
TIMEOUT_S = 60.0


def config(folder: Path, nameserver: str, report: str) -> Path:
    path = folder / "shop logs.toml"
    path.write_text(
        '[files]\npaths = ["*.log"]\n'
        f'[topic]\nnamesrv = "{nameserver}"\nname = "Reported"\n[state]\nfile = "state.json"\n'
        f"[report]\n{report}\n"
    )
    return path


def run_pipeline(path: Path, log: str, *more: str) -> Child:
    command = [*COMMAND, "--config", str(path), *more]
    return Child(command, path.parent / log, dict(os.environ), directory=path.parent)


def seen(
    admin: Admin, name: str, good: Callable[[PipelineReport], bool], *, run: str | None = None
) -> PipelineReport:
    """Returns the first report of the pipeline that is good; of one run, if it is named."""

    def newest() -> PipelineReport | None:
        found = [report for report in admin.pipelines.list().reports if report.name == name]
        return next((report for report in found if run in (None, report.run)), None)

    found = eventually(
        newest,
        lambda report: report is not None and good(report),
        TIMEOUT_S,
        "such a report",
        interval_s=0.1,
    )
    assert found is not None
    return found


def test_a_run_reports_its_life(served: Metaq, tmp_path: Path) -> None:
    path = config(tmp_path, served.nameserver, "interval_s = 0.2")
    (tmp_path / "app.log").write_text("one\ntwo\n")
    with Admin(served.nameserver) as admin:
        admin.topics.create("Reported", queues=1)
        child = run_pipeline(path, "out.txt", "--metrics-listen", "127.0.0.1:0")
        try:
            report = seen(admin, "shop logs", lambda report: report.rows == 2)
            assert (report.kind, report.state, report.phase) == ("log-transport", "running", "following")
            assert (report.pid, report.topics, report.group) == (child.process.pid, ("Reported",), None)
            assert (report.lag_bytes, report.lag_messages, report.lag_ms) == (0, None, None)
            assert report.rows_in_per_second == report.rows_out_per_second is not None
            assert report.metrics is not None and report.metrics.endswith("/metrics")
            assert (report.last_error, report.spark_ui, report.interval_s) == (None, None, 0.2)

            shown = served.run("pipeline", "status", "-o", "json")
            [row] = [row for row in json.loads(shown.stdout) if row["run"] == report.run]
            assert (row["state"], row["topics"]) == ("running", ["Reported"])
            assert "shop logs" in served.run("pipeline", "status").stdout

            # A second run must not use the same file of positions: it fails, and the first one goes on.
            second = run_pipeline(path, "second.txt")
            assert second.process.wait(TIMEOUT_S) == 1, second.tail()
            failed = seen(admin, "shop logs", lambda report: report.run != row["run"])
            assert failed.state == "failed" and failed.last_error is not None
            assert "state.json" in failed.last_error and failed.last_error_ms is not None
            later = seen(
                admin, "shop logs", lambda later: later.reported_ms != report.reported_ms, run=report.run
            )
            assert later.state == "running"

            assert child.stop() == 0, child.tail()
        finally:
            child.kill()
        ended = seen(admin, "shop logs", lambda report: report.state == "ended", run=report.run)
        assert (ended.rows, ended.is_silent, ended.rows_out_per_second) == (2, False, None)
        [topic] = admin.topics.show(PIPELINE_REPORTS_TOPIC).settings
        assert topic.write_queues == 1
        assert {name.name: name.kind for name in admin.topics.list()}[PIPELINE_REPORTS_TOPIC] == "system"
    # A new client finds both runs. One line is enough for people.
    rows = json.loads(served.run("pipeline", "status", "--runs", "-o", "json").stdout)
    assert {row["state"] for row in rows if row["name"] == "shop logs"} == {"ended", "failed"}
    rows = json.loads(served.run("pipeline", "status", "-o", "json").stdout)
    assert [row["state"] for row in rows if row["name"] == "shop logs"] == ["failed"]


def test_a_killed_run_is_unknown_and_not_running(served: Metaq, tmp_path: Path) -> None:
    path = config(tmp_path, served.nameserver, 'interval_s = 0.2\nname = "killed"')
    with Admin(served.nameserver) as admin:
        admin.topics.create("Reported", queues=1)
        child = run_pipeline(path, "out.txt")
        try:
            seen(admin, "killed", lambda report: report.state == "running")
        finally:
            child.kill()
        silent = seen(admin, "killed", lambda report: report.is_silent)
        assert silent.state == "unknown"


def test_a_pipeline_works_while_its_reports_are_refused(tmp_path: Path) -> None:
    """The test has its own broker, because nobody may write to the topic of reports there."""
    served = Metaq.serve(tmp_path / "broker")
    try:
        with Admin(served.nameserver) as admin:
            admin.topics.create("Reported", queues=1)
            admin.topics.create(PIPELINE_REPORTS_TOPIC, queues=1, permission=4)
            path = config(tmp_path, served.nameserver, "interval_s = 0.2")
            (tmp_path / "app.log").write_text("one\n")
            child = run_pipeline(path, "out.txt", "-o", "json")
            try:
                child.wait_for(lambda log: '"rows":1,' in log or None, TIMEOUT_S, "a report of 1 row")
                child.wait_for(
                    lambda log: "the work goes on" in log or None, TIMEOUT_S, "a warning about reports"
                )
                assert child.stop() == 0, child.tail()
            finally:
                child.kill()
            assert child.log.read_text().count("the work goes on") == 1, child.tail()
            assert admin.pipelines.list().reports == ()
    finally:
        served.stop()
