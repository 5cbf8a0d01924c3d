"""Reports of our own and of strangers: their JSON, silence, and the order of runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from metaq.admin import PipelineReport, PipelineReports
from metaq.admin.pipelines.reports import BODY_BYTES_MAX, decode, encode, in_order, judged

REPORT = PipelineReport(
    name="shop",
    kind="binlog-sync",
    run="r1",
    host="here",
    pid=7,
    started_ms=1_000,
    state="running",
    rows=3,
    rows_in_per_second=1.5,
    lag_ms=20,
    topics=("a", "b"),
    metrics="http://127.0.0.1:1/metrics",
)


def test_a_report_comes_back_with_the_time_at_which_it_was_stored() -> None:
    assert decode(encode(REPORT), 5_000) == replace(REPORT, reported_ms=5_000)


def test_a_report_of_a_newer_version_is_read() -> None:
    document = {**json.loads(encode(REPORT)), "more": [1]}
    del document["lag_bytes"], document["topics"]
    found = decode(json.dumps(document).encode(), 1)
    assert found is not None and (found.topics, found.lag_ms) == ((), 20)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        encode(REPORT).replace(b'"host":"', b'"host":"\xff'),
        b"[]",
        b"{}",
        b"[" * 20_000,
        json.dumps({**asdict(REPORT), "pid": "x"}).encode(),
        json.dumps({**asdict(REPORT), "state": "fine"}).encode(),
        json.dumps({**asdict(REPORT), "phase": "x" * BODY_BYTES_MAX}).encode(),
        json.dumps({**asdict(REPORT), "lag_messages": 10**400}).encode(),
        json.dumps({**asdict(REPORT), "lag_ms": -(2**63)}).encode(),
        json.dumps({**asdict(REPORT), "rows_in_per_second": 1e300}).encode(),
    ],
    ids=["empty", "bytes", "text", "list", "object", "deep", "kind", "state", "large", "huge", "low", "fast"],
)
def test_other_messages_are_no_reports(body: bytes) -> None:
    assert decode(body, 1) is None


def test_only_addresses_of_web_pages_become_links() -> None:
    found = decode(encode(replace(REPORT, spark_ui="javascript:alert(1)", is_silent=True)), 1)
    assert found is not None
    assert (found.spark_ui, found.metrics) == (None, "http://127.0.0.1:1/metrics")
    assert not found.is_silent, "only the reader decides that"


def test_long_texts_are_cut() -> None:
    long = replace(REPORT, findings=("f" * 999,) * 999, last_remark="r" * 9_999)
    found = decode(encode(long), 1)
    assert found is not None and found.last_remark is not None
    assert (len(found.findings), len(found.findings[0]), len(found.last_remark)) == (20, 300, 1_000)
    long = replace(REPORT, last_error="x" * 100_000, topics=tuple(map(str, range(1_000))), name="n" * 999)
    found = decode(encode(long), 1)
    assert found is not None and found.last_error is not None
    assert (len(found.last_error), len(found.topics), len(found.name)) == (1_000, 50, 200)


def test_long_texts_of_strangers_are_cut() -> None:
    texts = ("name", "kind", "run", "host", "phase", "group")
    stranger = {
        **asdict(REPORT),
        **dict.fromkeys(texts, "x" * 1_001),
        "last_error": "x" * 1_001,
        "topics": ["t" * 201] * 51,
        "spark_ui": "https://" + "x" * 2_000,
    }
    found = decode(json.dumps(stranger).encode(), 1)
    assert found is not None
    assert [len(getattr(found, text)) for text in texts] == [200] * len(texts)
    assert found.last_error == "x" * 1_000
    assert found.topics == ("t" * 200,) * 50
    assert found.spark_ui is None, "a part of an address leads elsewhere"


def test_the_state_of_a_silent_run_is_unknown() -> None:
    stored = replace(REPORT, reported_ms=100_000, interval_s=10.0)
    assert judged(stored, 130_000) == stored
    silent = judged(stored, 130_001)
    assert (silent.state, silent.is_silent) == ("unknown", True)
    assert judged(replace(stored, interval_s=60.0), 130_001).state == "running"
    # The clock of the broker may be ahead.
    assert judged(stored, 0).state == "running"
    over = replace(stored, state="failed")
    assert judged(over, 10**12) == over


def test_current_runs_are_those_that_go_on_and_the_last_ones() -> None:
    def run(name: str, started_ms: int, state: str, host: str = "here") -> PipelineReport:
        return replace(REPORT, run=name, started_ms=started_ms, state=state, host=host)  # type: ignore[arg-type]

    reports = PipelineReports(
        in_order(
            [
                run("first", 1, "ended"),
                run("goes on", 2, "running"),
                run("fails", 3, "failed"),
                run("there", 1, "unknown", "there"),
                run("before", 0, "unknown", "there"),
            ]
        )
    )
    assert [report.run for report in reports.reports] == ["fails", "goes on", "first", "there", "before"]
    assert [report.run for report in reports.current] == ["fails", "goes on", "there"]
