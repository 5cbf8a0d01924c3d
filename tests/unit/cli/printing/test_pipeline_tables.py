"""Reports of pipelines, as people read them."""

from __future__ import annotations

import json

import pytest

from metaq.admin import PipelineReport
from metaq.cli.invocation import Format
from metaq.cli.printing.output import print_rows
from metaq.cli.printing.pipeline_tables import status_columns, status_row, table_row

KNOWN = PipelineReport(
    name="shop\x1b[2J",
    kind="log-lake",
    run="r1",
    host="here",
    pid=7,
    started_ms=1,
    state="failing",
    rows_in_per_second=0.0,
    lag_messages=1_200,
    lag_bytes=2_048,
    lag_ms=1_500,
    last_error="line one\nline two " + "x" * 500,
    topics=("a",),
    findings=("shop.t is left out: it is system-versioned",),
    last_remark="shop.u will be read again",
)
UNKNOWN = PipelineReport(
    name="[b]", kind="spark-query", run="r2", host="here", pid=7, started_ms=1, state="unknown"
)


def test_unknown_values_are_dashes_and_strange_characters_are_harmless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows(Format.table, map(table_row, (KNOWN, UNKNOWN)), status_columns(), empty="")
    printed = capsys.readouterr().out
    _, known, unknown = printed.splitlines()
    assert known.split()[:4] == ["shop\\x1b[2J", "log-lake", "failing", "0.0/s"]
    assert "1,200 messages, 2.0 KiB, 1.5 s" in known
    assert "line one line two xxx" in known and "x… " in known
    assert "shop.t is left out: it is system-versioned" in known
    assert known.rstrip().endswith("shop.u will be read again")
    assert unknown.split() == ["[b]", "spark-query", "unknown", *"––––", "here", *"–––"]


def test_programs_get_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(Format.json, [status_row(KNOWN)], status_columns(), empty="")
    [row] = json.loads(capsys.readouterr().out)
    assert (row["lag_ms"], row["topics"], row["rows_out_per_second"]) == (1_500, ["a"], None)
    assert "lag" not in row and row["last_error"] == KNOWN.last_error
