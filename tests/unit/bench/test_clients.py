"""How the benchmark times rounds of Python clients and reads the output of Kafka's tool."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench import report
from bench.clients import perf
from bench.clients.task import BODY, SEND_BLOCK, Result, Task, time_each_send, time_reading, time_sending
from bench.workloads import Outcome


def _task(**changes: object) -> Task:
    given = {
        "program": "with_metaq.produce",
        "server": "127.0.0.1:1",
        "topic": "bench",
        "queues": 8,
        "warmup_s": 0.01,
        "round_s": 0.02,
    }
    return Task(**{**given, **changes})  # type: ignore[arg-type]


def test_a_task_and_a_result_survive_being_written() -> None:
    task = _task(messages_max=7)
    assert Task.read(task.written()) == task
    result = Result(10, 1.0, 2.0, 0.5, 12, 0.3, 2.0)
    assert Result.found_in(f"a warning\n{result.written()}\n") == result
    assert Result.found_in(result.written()[:-3]) is None


def test_messages_of_the_warm_up_are_reported_but_do_not_count() -> None:
    sent: list[int] = []
    flushes: list[int] = []
    result = time_sending(_task(), sent.append, lambda: flushes.append(len(sent)))
    assert set(sent) == {SEND_BLOCK}
    warm, everything = flushes
    assert result.count == (everything - warm) * SEND_BLOCK
    assert result.total == everything * SEND_BLOCK
    assert result.end - result.begin >= 0.02


def test_reading_ends_with_the_backlog() -> None:
    result = time_reading(_task(warmup_s=0.0, round_s=60.0, messages_max=50), lambda: 10)
    assert (result.count, result.total) == (30, 50)


def test_a_backlog_that_does_not_come_is_an_error() -> None:
    counts = iter([10, 10, 0, 0, 0])
    with pytest.raises(RuntimeError, match="20 of 50"):
        time_reading(_task(round_s=60.0, messages_max=50), lambda: next(counts))
    with pytest.raises(RuntimeError, match="too short"):
        time_reading(_task(warmup_s=60.0, messages_max=50), lambda: 10)


def test_each_send_is_timed() -> None:
    async def send() -> None:
        await asyncio.sleep(0.001)

    result = asyncio.run(time_each_send(_task(warmup_s=0.2, round_s=1.0), send))
    assert 1.0 <= result.p50_ms <= result.p99_ms
    assert 1 < result.count < result.total


def test_the_windows_of_kafkas_tool_are_read() -> None:
    line = "24 records sent, 480000.0 records/sec (58.5 MB/sec), 9.1 ms avg latency, 210.0 ms max latency.\n"
    last = (
        "9 records sent, 460000.5 records/sec (56.1 MB/sec), 9.00 ms avg latency, 99.00 ms max latency, "
        "1 ms 50th, 2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
    )
    assert perf.reports(f"[main] INFO something\n{line}{last}{line[:-1]}") == [480_000.0]
    assert len(BODY) == 128


def test_a_side_measurement_has_a_ratio_and_is_not_a_peer() -> None:
    outcome = Outcome("client-produce")
    for side, per_second in (("metaq", 900.0), ("confluent", 1000.0), ("kafka-java", 450.0)):
        outcome.add(side, {"per_second": per_second, "client_cpu_us": 1.0, "broker_cpu_us": 1.0})
    assert report.sides(outcome) == ("metaq", "confluent")
    assert report.rows(outcome)[0].ratio == 0.9
    (line,) = report.beside_lines(outcome)
    assert line.split() == ["beside:", "kafka-java", "900", "450", "2.000"]
    assert line in report.table([outcome], "here")
    told = json.loads(report.machine_form([outcome], "here"))["workloads"]["client-produce"]
    assert told["beside"] == {"kafka-java": 2.0}
