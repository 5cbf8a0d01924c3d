"""The report of a pipeline or a Spark query about its run, and its JSON in a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

import msgspec

from metaq.admin.results import BrokerFailure

PipelineState = Literal["running", "failing", "ended", "failed", "unknown"]

SPARK_QUERY: Final = "spark-query"
"""The kind of a query that a user wrote. Other kinds are the names of our pipelines."""
REPORT_INTERVAL_S: Final = 10.0
SILENT_INTERVALS: Final = 3
"""After this number of intervals without a report, nobody knows the state of a run."""
BODY_BYTES_MAX: Final = 32 * 1024
ERROR_CHARACTERS_MAX: Final = 1_000
FINDING_CHARACTERS_MAX: Final = 300
FINDINGS_MAX: Final = 20
NAME_CHARACTERS_MAX: Final = 200
ADDRESS_CHARACTERS_MAX: Final = 2_000
TOPICS_MAX: Final = 50
NUMBERS_END: Final = 2**63
"""No report has a number of this size or more."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The newest report about one run of a pipeline or a Spark query. None means unknown."""

    name: str
    """The name of the TOML file without its ending, or the name of a Spark query."""
    kind: str
    """`binlog-sync`, `log-lake` and so on, or `spark-query`."""
    run: str
    """An id that each start of the pipeline has anew."""
    host: str
    pid: int
    started_ms: int
    state: PipelineState
    """`failing`: it tries again after an error. `unknown`: it neither ended nor reports any more."""
    interval_s: float = REPORT_INTERVAL_S
    """The time between two reports."""
    phase: str = ""
    """The pipeline's own word for the work that it does, such as `snapshot`."""
    rows: int | None = None
    """The number of rows since the start of the run."""
    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    lag_messages: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    topics: tuple[str, ...] = ()
    """Topics that it reads or writes in this cluster; a pattern stands between slashes."""
    group: str | None = None
    """The consumer group that it commits offsets to."""
    last_error: str | None = None
    last_error_ms: int | None = None
    last_remark: str | None = None
    """The newest routine remark, such as a table that is read again."""
    last_remark_ms: int | None = None
    findings: tuple[str, ...] = ()
    """Faults that stay until somebody acts, such as a table that is left out."""
    spark_ui: str | None = None
    """The address of Spark's own pages."""
    metrics: str | None = None
    """The address of its metrics."""
    reported_ms: int | None = None
    """When a broker stored the report."""
    is_silent: bool = False
    """Whether reports are missing: the last one is older than three intervals."""

    @property
    def is_over(self) -> bool:
        """Whether the run said that it is over."""
        return self.state in ("ended", "failed")


@dataclass(frozen=True, slots=True)
class PipelineReports:
    """The newest report of each run."""

    reports: tuple[PipelineReport, ...]
    """Sorted by name; of one pipeline the newest run comes first."""
    since_ms: int | None = None
    """Older reports were not read, except last ones. None if there are none."""
    failures: tuple[BrokerFailure, ...] = ()

    @property
    def current(self) -> tuple[PipelineReport, ...]:
        """The runs that go on, and the last run of each pipeline of which none does."""
        seen: set[tuple[str, str, str]] = set()
        found = []
        for report in self.reports:
            pipeline = (report.name, report.kind, report.host)
            if report.state in ("running", "failing") or pipeline not in seen:
                found.append(report)
            seen.add(pipeline)
        return tuple(found)


def encode(report: PipelineReport) -> bytes:
    """Returns the body of a message. Long texts are cut."""
    return msgspec.json.encode(_cut(report))


def decode(body: bytes, reported_ms: int) -> PipelineReport | None:
    """Returns a report that a broker stored at that time; None if the body is not a report. Anybody who may
    send to the topic may have written it."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        report = msgspec.json.decode(body, type=PipelineReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    values = (getattr(report, field.name) for field in fields(report))
    if any(isinstance(value, int | float) and abs(value) >= NUMBERS_END for value in values):
        return None
    return replace(
        _cut(report),
        spark_ui=_web_address(report.spark_ui),
        metrics=_web_address(report.metrics),
        reported_ms=reported_ms,
        is_silent=False,
    )


def judged(report: PipelineReport, now_ms: int) -> PipelineReport:
    """Returns the report as it counts now: the state of a run that fell silent is unknown."""
    silent_ms = SILENT_INTERVALS * max(report.interval_s, 1.0) * 1000
    if report.is_over or report.reported_ms is None or now_ms - report.reported_ms <= silent_ms:
        return report
    return replace(report, state="unknown", is_silent=True)


def in_order(reports: Iterable[PipelineReport]) -> tuple[PipelineReport, ...]:
    """Returns reports by name; of one pipeline the newest run comes first."""
    return tuple(
        sorted(reports, key=lambda report: (report.name, report.kind, report.host, -report.started_ms))
    )


def _cut(report: PipelineReport) -> PipelineReport:
    """Returns the report with texts and lists of a length that people can read."""
    group, error, remark = report.group, report.last_error, report.last_remark
    return replace(
        report,
        name=report.name[:NAME_CHARACTERS_MAX],
        kind=report.kind[:NAME_CHARACTERS_MAX],
        run=report.run[:NAME_CHARACTERS_MAX],
        host=report.host[:NAME_CHARACTERS_MAX],
        phase=report.phase[:NAME_CHARACTERS_MAX],
        topics=tuple(topic[:NAME_CHARACTERS_MAX] for topic in report.topics[:TOPICS_MAX]),
        group=None if group is None else group[:NAME_CHARACTERS_MAX],
        last_error=None if error is None else error[:ERROR_CHARACTERS_MAX],
        last_remark=None if remark is None else remark[:ERROR_CHARACTERS_MAX],
        findings=tuple(finding[:FINDING_CHARACTERS_MAX] for finding in report.findings[:FINDINGS_MAX]),
    )


def _web_address(address: str | None) -> str | None:
    """Returns an address only if it is one of a web page: consoles make links of them."""
    if address is None or len(address) > ADDRESS_CHARACTERS_MAX:
        return None
    return address if address.startswith(("http://", "https://")) else None
