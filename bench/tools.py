"""Apache's benchmark programs: how each is called, and what its report lines say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.process_figures import CpuWatch
from bench.servers import BrokerUnderTest
from tests.support.apache import java_command
from tests.support.processes import Child

WINDOW_S = 10
"""Every report line of the tools covers the ten seconds before it."""

_PACKAGE = "org.apache.rocketmq.example.benchmark"
_POLL_S = 0.1
# The batch producer counts calls as TPS and messages as MPS; messages are what we compare.
_MESSAGES = re.compile(r"Send MPS: (\d+)")
_CALLS = re.compile(r"(?:Send|Consume) TPS:\s+(\d+)")
# A tool that has done nothing yet has no average.
_AVERAGE_MS = re.compile(r"(?:Average RT|AVG RT|AVG\(B2C\) RT)\(ms\):\s+([\d.]+|NaN)")
_FAILED = re.compile(r"(?:Send Failed|Response Failed|Consume Fail): (\d+)")


@dataclass(frozen=True)
class Tool:
    """One program with its fixed arguments."""

    program: str
    arguments: tuple[str, ...]
    takes_peak: bool = False
    """The best ten seconds count instead of the last: for work that may run out."""


PRODUCER = Tool("Producer", ("-w", "64", "-s", "128"))
BATCH_PRODUCER = Tool("BatchProducer", ("-w", "10", "-s", "128", "-b", "32"))
TRANSACTION_PRODUCER = Tool("TransactionProducer", ("-w", "64", "-s", "128"))
CONSUMER = Tool("Consumer", ("-w", "20"), takes_peak=True)


@dataclass(frozen=True)
class Report:
    """One report line of a tool, and when we saw it."""

    seen_at: float
    per_second: int
    average_ms: float
    failed: int


@dataclass(frozen=True)
class Measured:
    """One round of one tool against one broker."""

    server: str
    per_second: int
    average_ms: float
    failed: int
    broker_cpu_us: float
    """CPU time of the broker, or of both nodes of a pair, per message."""
    others_cpu_cores: float
    """CPU time of the brokers that were idle in this round."""

    def figures(self) -> dict[str, float]:
        return {
            "per_second": self.per_second,
            "average_ms": self.average_ms,
            "failed": self.failed,
            "broker_cpu_us": self.broker_cpu_us,
            "others_cpu_cores": self.others_cpu_cores,
        }


def measure(
    tool: Tool,
    server: BrokerUnderTest,
    others: Sequence[BrokerUnderTest],
    home: Path,
    topic: str,
    round_s: float,
    extra: Sequence[str] = (),
) -> Measured:
    """Runs the tool for `round_s`, of which all but the last ten seconds warm its own virtual machine up."""
    watched = {one.name: one.pids for one in (server, *others)}
    with CpuWatch(watched) as watch:
        reports = _run(tool, server, home, topic, round_s, extra)
    chosen = max(reports, key=lambda report: report.per_second) if tool.takes_peak else reports[-1]
    begin, end = chosen.seen_at - WINDOW_S, chosen.seen_at
    return Measured(
        server=server.name,
        per_second=chosen.per_second,
        average_ms=chosen.average_ms,
        failed=chosen.failed,
        broker_cpu_us=watch.spent_s(server.name, begin, end) * 1e6 / max(1, chosen.per_second * WINDOW_S),
        others_cpu_cores=sum(watch.spent_s(other.name, begin, end) for other in others) / WINDOW_S,
    )


def run_until(
    tool: Tool, server: BrokerUnderTest, home: Path, topic: str, enough: Callable[[], bool], timeout_s: float
) -> None:
    """Runs the tool until `enough` says so."""
    child = _start(tool, server, home, topic)
    deadline = time.monotonic() + timeout_s
    try:
        while not enough():
            if not child.alive or time.monotonic() > deadline:
                raise RuntimeError(f"{tool.program} did not do enough in {timeout_s} s\n{child.tail()}")
            time.sleep(_POLL_S)
    finally:
        child.kill()


def _start(tool: Tool, server: BrokerUnderTest, home: Path, topic: str, extra: Sequence[str] = ()) -> Child:
    return Child(
        java_command(
            f"{_PACKAGE}.{tool.program}",
            home,
            *tool.arguments,
            *("-n", server.nameserver, "-t", topic, "-ri", "1000"),
            *extra,
            heap="1g",
        ),
        home / f"{server.name}-{tool.program}-{time.monotonic_ns()}.log",
    )


def _run(
    tool: Tool, server: BrokerUnderTest, home: Path, topic: str, round_s: float, extra: Sequence[str]
) -> list[Report]:
    """Yields the tool's reports: one per second, from the tenth second on."""
    child = _start(tool, server, home, topic, extra)
    reports: list[Report] = []
    deadline = time.monotonic() + round_s
    try:
        while time.monotonic() < deadline:
            if not child.alive:
                raise RuntimeError(f"{tool.program} ended early\n{child.tail()}")
            lines = report_lines(child.log.read_text(errors="replace"))
            reports += [parse_report(line, time.monotonic()) for line in lines[len(reports) :]]
            time.sleep(_POLL_S)
    finally:
        child.kill()
    if not reports:
        raise RuntimeError(f"{tool.program} reported nothing within {round_s} s\n{child.tail()}")
    return reports


def report_lines(text: str) -> list[str]:
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n") and _CALLS.search(line)]


def parse_report(line: str, seen_at: float) -> Report:
    per_second = _MESSAGES.search(line) or _CALLS.search(line)
    average_ms = _AVERAGE_MS.search(line)
    if per_second is None or average_ms is None:
        raise ValueError(f"not a report line: {line!r}")
    failed = sum(int(count) for count in _FAILED.findall(line))
    return Report(seen_at, int(per_second[1]), float(average_ms[1]), failed)
