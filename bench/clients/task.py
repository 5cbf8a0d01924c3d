"""The task of one client process, the figures it reports, and the clock that times all of them.

A process that sends does the same for a while first, so that neither connections nor first batches count.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

BODY = b"x" * 128
SEND_BLOCK = 500
"""Messages between two looks at the clock."""
READ_COUNT = 1000
"""Messages that a reader asks for at once."""
READ_TIMEOUT_S = 5.0
EMPTY_READS_MAX = 3
RESULT = "RESULT "


@dataclass(frozen=True)
class Task:
    """The one argument of a client process, as JSON."""

    program: str
    server: str
    """The name server of MetaQ, the bootstrap server of Kafka."""
    topic: str
    queues: int
    warmup_s: float
    round_s: float
    messages_max: int = 0
    """Messages to send, or to read; 0 sends until the time is over."""
    group: str = "bench"

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Task:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Result:
    """Between `begin` and `end`, by the monotonic clock that all processes of a machine share."""

    count: int
    begin: float
    end: float
    client_cpu_s: float
    total: int = 0
    """Includes the messages of the warm-up."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0

    def written(self) -> str:
        return RESULT + json.dumps(asdict(self))

    @classmethod
    def found_in(cls, log: str) -> Result | None:
        for line in log.splitlines(keepends=True):
            if line.startswith(RESULT) and line.endswith("\n"):
                return cls(**json.loads(line.removeprefix(RESULT)))
        return None


class Stopwatch:
    """Wall time and the CPU of this process."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self.begin = time.monotonic()

    def passed_s(self) -> float:
        return time.monotonic() - self.begin

    def result(self, count: int, total: int, p50_ms: float = 0.0, p99_ms: float = 0.0) -> Result:
        end = time.monotonic()
        return Result(count, self.begin, end, time.process_time() - self._cpu_s, total, p50_ms, p99_ms)


def time_sending(task: Task, send: Callable[[int], None], flush: Callable[[], object]) -> Result:
    """`send` sends that many messages without waiting; the clock stops when `flush` has confirmed all."""

    def run(seconds: float) -> tuple[int, Stopwatch]:
        sent, watch = 0, Stopwatch()
        while watch.passed_s() < seconds:
            send(SEND_BLOCK)
            sent += SEND_BLOCK
        flush()
        return sent, watch

    warm, _ = run(task.warmup_s)
    sent, watch = run(task.round_s)
    return watch.result(sent, warm + sent)


def time_filling(task: Task, send: Callable[[int], None], flush: Callable[[], object]) -> Result:
    """Sends a number of messages instead of sending for a time, for others to read."""
    watch = Stopwatch()
    whole, rest = divmod(task.messages_max, SEND_BLOCK)
    for _ in range(whole):
        send(SEND_BLOCK)
    send(rest)
    flush()
    return watch.result(task.messages_max, task.messages_max)


def time_reading(task: Task, read: Callable[[], int]) -> Result:
    """`read` reads some and says how many. The clock starts with the second that came, after the warm-up,
    and stops when the time is over or the backlog is read."""
    watch: Stopwatch | None = None
    total = before = empty = 0
    first_at = 0.0
    while total < task.messages_max:
        count = read()
        total += count
        empty = 0 if count else empty + 1
        if empty == EMPTY_READS_MAX:
            raise RuntimeError(f"{total} of {task.messages_max} messages came, and then nothing")
        if watch is not None:
            if watch.passed_s() >= task.round_s:
                break
        elif count and not first_at:
            first_at = time.monotonic()
        elif first_at and time.monotonic() - first_at >= task.warmup_s:
            watch, before = Stopwatch(), total
    if watch is None:
        raise RuntimeError(
            f"{total} messages were read before the clock was started: the backlog is too short"
        )
    return watch.result(total - before, total)


async def time_sending_async(
    task: Task, send: Callable[[int], Awaitable[None]], flush: Callable[[], Awaitable[object]]
) -> Result:
    async def run(seconds: float) -> tuple[int, Stopwatch]:
        sent, watch = 0, Stopwatch()
        while watch.passed_s() < seconds:
            await send(SEND_BLOCK)
            sent += SEND_BLOCK
        await flush()
        return sent, watch

    warm, _ = await run(task.warmup_s)
    sent, watch = await run(task.round_s)
    return watch.result(sent, warm + sent)


async def time_each_send(task: Task, send: Callable[[], Awaitable[object]]) -> Result:
    """One at a time, each awaited."""

    async def run(seconds: float) -> tuple[list[int], Stopwatch]:
        took_ns: list[int] = []
        watch = Stopwatch()
        while watch.passed_s() < seconds:
            began = time.perf_counter_ns()
            await send()
            took_ns.append(time.perf_counter_ns() - began)
        return took_ns, watch

    warm, _ = await run(task.warmup_s)
    took_ns, watch = await run(task.round_s)
    percent = statistics.quantiles(took_ns, n=100)
    return watch.result(len(took_ns), len(warm) + len(took_ns), percent[49] / 1e6, percent[98] / 1e6)
