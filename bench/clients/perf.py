"""Kafka's own `kafka-producer-perf-test`: the figures of its Java client, for comparison."""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.clients.kafka import KafkaBroker, java_command
from bench.clients.task import BODY
from bench.process_figures import cpu_s
from tests.support.processes import Child

WINDOW_S = 5
"""Seconds that each report line covers, except the last line of a run."""
WINDOWS = 3
"""The last one counts: the virtual machine is warm by then."""
TIMEOUT_S = 60
_REPORT = re.compile(r"^\d+ records sent, ([\d.]+) records/sec .* ms avg latency, .* ms max latency\.?$")
_POLL_S = 0.05


def measure(server: KafkaBroker, topic: str, home: Path) -> dict[str, float]:
    """Messages a second that were confirmed in the last window."""
    child = Child(
        java_command(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--record-size", str(len(BODY)), "--throughput", "-1"),
            *("--num-records", "1000000000"),
            *("--producer-props", f"bootstrap.servers={server.broker}", "acks=all"),
            heap="512m",
            jvm_flags=(),
        ),
        home / f"perf-{time.monotonic_ns()}.log",
    )
    try:
        _wait_for(child, WINDOWS - 1)
        broker_before_s, client_before_s = cpu_s(server.pid), cpu_s(child.process.pid)
        per_second = _wait_for(child, WINDOWS)
        count = per_second * WINDOW_S
        return {
            "per_second": per_second,
            "client_cpu_us": (cpu_s(child.process.pid) - client_before_s) * 1e6 / count,
            "broker_cpu_us": (cpu_s(server.pid) - broker_before_s) * 1e6 / count,
        }
    finally:
        child.kill()


def _wait_for(child: Child, windows: int) -> float:
    deadline = time.monotonic() + TIMEOUT_S
    while len(found := reports(child.log.read_text(errors="replace"))) < windows:
        if not child.alive or time.monotonic() > deadline:
            raise RuntimeError(f"ProducerPerformance said too little\n{child.tail()}")
        time.sleep(_POLL_S)
    return found[windows - 1]


def reports(text: str) -> list[float]:
    """Messages a second, by window."""
    lines = (line for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [float(found[1]) for line in lines if (found := _REPORT.match(line.strip()))]
