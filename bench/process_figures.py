"""CPU, memory and disk use of one process, read from /proc and from its folder."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SAMPLE_EVERY_S = 0.25


def cpu_s(pid: int) -> float:
    """User and system time of all its threads since it started."""
    # The second field, the name, may hold spaces and brackets: count from the last bracket on.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def processor_times(pid: int) -> tuple[float, float]:
    """How many seconds its present threads have run, and waited for a processor that others had."""
    ran = waited = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            on, off, _ = (task / "schedstat").read_text().split()
            ran, waited = ran + int(on), waited + int(off)
    return ran / 1e9, waited / 1e9


def memory_bytes(pid: int) -> dict[str, int]:
    """Resident memory: `resident` is everything, `own` leaves out the pages of mapped files."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            values[name] = int(value.split()[0]) * 1024
    return {"resident": values["VmRSS"], "own": values["RssAnon"]}


def disk_bytes(directory: Path) -> int:
    """Returns the disk space of the folder, without holes, as `du` counts it."""
    blocks = 0
    for entry in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # A file that is replaced has another name for a moment.
            blocks += entry.lstat().st_blocks
    return blocks * 512


class CpuWatch:
    """Samples the CPU time of processes, and returns it for any period in the past."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def spent_s(self, name: str, begin: float, end: float) -> float:
        """CPU seconds of these processes between two moments of `time.monotonic`."""
        return self._at(name, end) - self._at(name, begin)

    def _at(self, name: str, moment: float) -> float:
        return min(self._samples, key=lambda sample: abs(sample[0] - moment))[1][name]

    def _watch(self) -> None:
        while True:
            spent = {name: sum(map(cpu_s, pids)) for name, pids in self._pids.items()}
            self._samples.append((time.monotonic(), spent))
            if self._ended.wait(_SAMPLE_EVERY_S):
                return
