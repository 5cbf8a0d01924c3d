"""Pipelines and Spark queries that run, as commands print them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from metaq.admin import PipelineReport
from metaq.cli.printing.formats import UNKNOWN, printable, rate, size, span
from metaq.cli.printing.output import Column

ERROR_CHARACTERS_MAX = 120


def status_columns() -> list[Column]:
    now_ms = time.time() * 1000

    def age(reported_ms: int | None) -> str:
        return UNKNOWN if reported_ms is None else f"{span(max(now_ms - reported_ms, 0))} ago"

    return [
        Column("name", "pipeline", printable),
        Column("kind", show=printable, is_optional=True),
        Column("state"),
        Column("rows_in_per_second", "rows in", rate, right=True),
        Column("rows_out_per_second", "rows out", rate, right=True),
        Column("lag", right=True),
        Column("reported_ms", "reported", age, right=True),
        Column("host", show=printable, is_optional=True),
        Column("last_error", "last error", _error, is_optional=True),
        Column("findings", show=_findings, is_optional=True),
        Column("last_remark", "last remark", _error, is_optional=True),
    ]


def status_row(report: PipelineReport) -> dict[str, Any]:
    """Returns a report for programs."""
    return {**asdict(report), "topics": list(report.topics), "findings": list(report.findings)}


def table_row(report: PipelineReport) -> dict[str, Any]:
    """Returns a report for people, with its lag as one text."""
    return {**status_row(report), "lag": _lag(report)}


def _lag(report: PipelineReport) -> str:
    parts = [
        None if report.lag_messages is None else f"{report.lag_messages:,} messages",
        None if report.lag_bytes is None else size(report.lag_bytes),
        None if report.lag_ms is None else span(report.lag_ms),
    ]
    return ", ".join(part for part in parts if part is not None) or UNKNOWN


def _findings(findings: list[str]) -> str:
    return _error("; ".join(findings) or None)


def _error(text: str | None) -> str:
    if text is None:
        return UNKNOWN
    line = printable(" ".join(text.split()))
    return line if len(line) <= ERROR_CHARACTERS_MAX else f"{line[: ERROR_CHARACTERS_MAX - 1]}…"
