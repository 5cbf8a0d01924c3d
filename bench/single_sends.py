"""Sends one message after the other at a steady pace, for the time that a single one takes."""

from __future__ import annotations

import time

from bench.switch import percentile
from tests.support.plain_client import SUCCESS, PlainClient, send

INTERVAL_S = 0.002
BODY = b"x" * 128


def single_sends(broker: str, topic: str, seconds: float) -> dict[str, float]:
    """Sends at a steady pace, and returns the percentiles of the times."""
    times_ms: list[float] = []
    until = time.monotonic() + seconds
    with PlainClient(broker) as client:
        while time.monotonic() < until:
            began = time.perf_counter()
            assert send(client, topic, 0, BODY).code == SUCCESS
            times_ms.append((time.perf_counter() - began) * 1000)
            time.sleep(INTERVAL_S)
    return {"p50_ms": percentile(times_ms, 50), "p99_ms": percentile(times_ms, 99)}
