"""Latencies in a histogram whose buckets grow by one percent, so that any number of them takes little
memory."""

from __future__ import annotations

import math
import threading

_GROWTH = math.log(1.01)


class Latencies:
    """Counts latencies; any thread may add one."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._count = 0
        self._max_ms = 0.0
        self._lock = threading.Lock()

    def add(self, milliseconds: float, count: int = 1) -> None:
        bucket = math.ceil(math.log(max(milliseconds, 0.001)) / _GROWTH)
        with self._lock:
            self._counts[bucket] = self._counts.get(bucket, 0) + count
            self._count += count
            self._max_ms = max(self._max_ms, milliseconds)

    def percentile(self, share: float) -> float | None:
        """The latency in milliseconds that this share stays below; None if nothing was measured."""
        with self._lock:
            wanted = math.ceil(share * self._count)
            for bucket in sorted(self._counts):
                wanted -= self._counts[bucket]
                if wanted <= 0:
                    return min(math.exp(bucket * _GROWTH), self._max_ms)
        return None

    def record(self) -> dict[str, float | None]:
        """The percentiles as programs read them."""
        found = {
            name: self.percentile(share)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
        }
        found["max"] = self._max_ms if self._count else None
        return {name: None if value is None else round(value, 3) for name, value in found.items()}
