"""How the benchmark reads the output of Apache's tools and computes its figures."""

from __future__ import annotations

import json

import pytest

from bench import report, tools
from bench.workloads import Outcome

SENT = (
    "Current Time: 2026-01-02 03:04:05,678 | Send TPS: 33012 | Max RT(ms): 215 | Average RT(ms):   1.936 "
    "| Send Failed: 0 | Response Failed: 2\n"
)
BATCHED = (
    "Current Time: 2026-01-02 03:04:05,678 | Send TPS: 8031 | Send MPS: 256992 | Max RT(ms): 96 "
    "| Average RT(ms):   1.094 | Average Message RT(ms):   0.034 | Send Failed: 1 | Send Message Failed: 32\n"
)
CONSUMED = (
    "Current Time: 2026-01-02 03:04:05,678 | Consume TPS: 451234 | AVG(B2C) RT(ms): 910.500 "
    "| AVG(S2C) RT(ms): 909.100 | MAX(B2C) RT(ms): 2000 | MAX(S2C) RT(ms): 1999 | Consume Fail: 3\n"
)


@pytest.mark.parametrize(
    ("line", "per_second", "average_ms", "failed"),
    [(SENT, 33_012, 1.936, 2), (BATCHED, 256_992, 1.094, 1), (CONSUMED, 451_234, 910.5, 3)],
    ids=["producer", "batch", "consumer"],
)
def test_a_report_line_is_read(line: str, per_second: int, average_ms: float, failed: int) -> None:
    assert tools.parse_report(line, 7.0) == tools.Report(7.0, per_second, average_ms, failed)


def test_a_tool_that_has_done_nothing_yet_is_read_too() -> None:
    line = CONSUMED.replace("451234", "0").replace("910.500", "    NaN")
    assert tools.parse_report(line, 7.0).per_second == 0


def test_only_whole_report_lines_count() -> None:
    text = f"Consumer Started.\n{SENT}{SENT[:40]}"
    assert tools.report_lines(text) == [SENT]


def _outcome() -> Outcome:
    outcome = Outcome("producer")
    for per_second in (50_000, 70_000, 60_000):
        outcome.add("metaq", {"per_second": per_second, "average_ms": 1.0, "broker_cpu_us": 4.0, "failed": 0})
    for per_second in (20_000, 40_000, 30_000):
        outcome.add(
            "rocketmq", {"per_second": per_second, "average_ms": 2.0, "broker_cpu_us": 32.0, "failed": 0}
        )
    outcome.memory = {
        "metaq": {"resident": 500_000_000, "own": 40_000_000},
        "rocketmq": {"resident": 5_000_000_000, "own": 4_000_000_000},
    }
    return outcome


def test_ratios_are_those_of_medians() -> None:
    rows = {row.what: row for row in report.rows(_outcome())}
    assert rows["messages per second"].ratio == 2.0
    assert rows["broker CPU per message, µs"].ratio == 0.125
    assert rows["resident memory afterwards, MB"].ratio == 0.1


def test_both_forms_say_the_same() -> None:
    told = json.loads(report.machine_form([_outcome()], "a setting"))
    assert told["setting"] == "a setting"
    assert told["workloads"]["producer"]["ratios"]["per_second"] == 2.0
    assert told["workloads"]["producer"]["sides"] == {"ours": "metaq", "peer": "rocketmq"}
    table = report.table([_outcome()], "a setting")
    assert "60,000" in table
    assert "2.000   ≥ 1.5 ×" in table


def test_the_limit_is_not_part_of_the_ratio() -> None:
    outcome = _outcome()
    assert report.limit_line(outcome) is None
    outcome.add("nothing", {"per_second": 75_000, "average_ms": 0.8, "broker_cpu_us": 1.0, "failed": 0})
    assert {row.ratio for row in report.rows(outcome) if row.what == "messages per second"} == {2.0}
    line = report.limit_line(outcome)
    assert line is not None and line.split()[-2:] == ["0.80", "0.40"] and "75,000" in line
    assert line in report.table([outcome], "here")
