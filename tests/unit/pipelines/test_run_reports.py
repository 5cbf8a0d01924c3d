"""The state of a run, as it is reported."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from metaq.errors import CommandError, ConfigError
from metaq.pipelines import PIPELINES, ClusterUse, Plan, Progress, Report, Reportable, load, run_reports
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.run_reports import RunRecord, reported
from metaq.pipelines.settings import read_report_settings, read_sections

USE = ClusterUse("127.0.0.1:1", ("orders",), "group")


class Clock:
    """The time that the module sees."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_reports, "time", clock)
    return clock


def record(kind: str = "binlog-sync") -> RunRecord:
    return RunRecord(kind, "shop", 10.0, "http://127.0.0.1:2/metrics")


def warn(record: RunRecord, text: str, logger: str = "metaq.pipelines") -> None:
    record.handle(logging.LogRecord(logger, logging.WARNING, "", 0, text, (), None))


def test_a_run_that_starts_knows_nothing_yet(clock: Clock) -> None:
    report = record().report(USE)
    assert (report.name, report.kind, report.state, report.phase) == (
        *("shop", "binlog-sync"),
        *("running", "starting"),
    )
    assert (report.topics, report.group, report.started_ms) == (("orders",), "group", 1_000_000)
    assert report.metrics == "http://127.0.0.1:2/metrics"
    assert report.rows is report.rows_in_per_second is report.lag_ms is report.last_error is None


def test_rates_are_those_of_the_last_seconds(clock: Clock) -> None:
    run = record()
    for number in range(60):
        run.update(Progress("following", rows=100 * max(number - 40, 0), lag_s=0.25))
        clock.now_s += 1
    report = run.report(USE)
    assert report.rows_in_per_second == report.rows_out_per_second == pytest.approx(100)
    assert (report.lag_ms, report.rows) == (250, 1_900)
    clock.now_s += 30
    report = run.report(USE)
    assert report.rows_in_per_second is None, "nobody knows the rate of a pipeline that does not report"


@pytest.mark.parametrize(
    ("kind", "rates"), [("binlog-sync", (7, 7)), ("log-lake", (5, 7)), ("stream-sql", (7, None))]
)
def test_a_pipeline_counts_rows_that_it_reads_or_writes(
    clock: Clock, kind: str, rates: tuple[float, float | None]
) -> None:
    run = record(kind)
    details: dict[str, object] = {"messages_left": 3, "bytes behind": None}
    run.update(Progress("running", rows=9, rows_per_second=7, rows_in_per_second=5, details=details))
    report = run.report(USE)
    assert (report.rows_in_per_second, report.rows_out_per_second) == rates
    assert (report.lag_messages, report.lag_bytes) == (3, None)


def test_a_run_fails_while_no_row_gets_through_after_an_error(clock: Clock) -> None:
    run = record()
    run.update(Progress("following", rows=1))
    clock.now_s += 1
    warn(run, "the connection is lost")
    clock.now_s += 45
    report = run.report(USE)
    assert (report.state, report.last_error, report.last_error_ms) == (
        *("failing", "the connection is lost"),
        1_001_000,
    )
    run.update(Progress("following", rows=1))
    assert run.report(USE).state == "running", "it reports again, and the error is old"
    warn(run, "a broker refuses")
    run.update(Progress("following", rows=1))
    assert run.report(USE).state == "failing"
    run.update(Progress("following", rows=2))
    report = run.report(USE)
    assert (report.state, report.last_error) == ("running", "a broker refuses")
    clock.now_s += 61
    assert run.report(USE).state == "failing", "it hangs"


def test_a_remark_is_no_error(clock: Clock) -> None:
    run = record()
    log = logging.getLogger("metaq.pipelines.test_remarks")
    log.addHandler(run)
    try:
        run.update(Progress("following", rows=1, findings=("shop.t is left out: it is system-versioned",)))
        log.warning("shop.t will be read again", extra=REMARK)
    finally:
        log.removeHandler(run)
    report = run.report(USE)
    assert (report.state, report.last_error, report.last_error_ms) == ("running", None, None)
    assert (report.last_remark, report.last_remark_ms) == ("shop.t will be read again", 1_000_000)
    assert report.findings == ("shop.t is left out: it is system-versioned",)
    warn(run, "the connection is lost")
    report = run.report(USE)
    assert (report.last_error, report.last_remark) == ("the connection is lost", "shop.t will be read again")


def test_its_own_trouble_with_reports_is_no_error_of_the_pipeline(clock: Clock) -> None:
    run = record()
    warn(run, "reports cannot be sent", "metaq.admin.pipelines.report_sender")
    assert run.report(USE).last_error is None


def test_the_last_report_has_the_error_that_ended_the_run(clock: Clock) -> None:
    run = record()
    run.update(Progress("following", rows=4, rows_per_second=3.0))
    ended = run.last_report(USE, None)
    assert (ended.state, ended.rows, ended.rows_out_per_second) == ("ended", 4, None)
    failed = run.last_report(USE, CommandError("there is no topic orders"))
    assert (failed.state, failed.last_error) == ("failed", "there is no topic orders")
    assert run.last_report(USE, ValueError()).last_error == "ValueError"


class Quiet:
    """A pipeline that names its cluster."""

    def __init__(self) -> None:
        self.asked = 0

    @classmethod
    def from_file(cls, path: Path) -> Quiet:
        return cls()

    def plan(self) -> Plan:
        return Plan({})

    def clusters(self) -> list[ClusterUse]:
        self.asked += 1
        return []

    def run(self, report: Report, stop: threading.Event) -> Progress:
        return Progress()


def test_reports_can_be_switched_off(tmp_path: Path) -> None:
    path, pipeline, seen = tmp_path / "a.toml", Quiet(), list[Progress]()
    for text, asked in (("", 1), ("[report]\ninterval_s = 0\n", 1), ("[report]\ninterval_s = 5\n", 2)):
        path.write_text(text)
        with reported("binlog-sync", pipeline, path, seen.append) as report:
            report(Progress("following"))
        assert pipeline.asked == asked, text
    assert len(seen) == 3
    handlers = logging.getLogger().handlers
    assert not any(isinstance(handler, RunRecord) for handler in handlers)


def test_the_section_is_in_every_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[report]\nname = "Shop"\n')
    assert read_sections(path, {}) == {}
    assert (read_report_settings(path).interval_s, read_report_settings(path).name) == (10.0, "Shop")
    path.write_text("[report]\nintervals = 1\n")
    with pytest.raises(ConfigError, match=r"there is no key report.intervals \(did you mean interval_s\?\)"):
        read_sections(path, {})
    path.write_text("[report]\ninterval_s = -1\n")
    with pytest.raises(ConfigError, match=r"report.interval_s = -1: it must be seconds from 0 to 3600"):
        read_sections(path, {})


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_says_which_clusters_it_uses(name: str) -> None:
    assert issubclass(load(name), Reportable)
