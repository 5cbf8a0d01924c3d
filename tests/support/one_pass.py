"""Checks that a decoder reads its input in one pass: eight times the bytes cost eight times the work.

Work in Python is counted in byte codes, which are the same in every run. Work in C, such as a regular
expression or a copy of the rest of the input, has no such count without tools that not every machine has. It
is measured in the processor time of the thread, the best of several runs, and compared with the time for an
eighth of the input, never with a clock. A quadratic decoder takes 64 times as long for eight times the bytes.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TIMES = 8
FACTOR_MAX = 24
"""Between the factors of a linear and of a quadratic decoder."""
BYTES_MAX = 512 * 1024
COUNTED_BYTES = 4 * 1024
"""Shorter, because to count byte codes takes a hundred times as long as to run them."""
COUNT_TOLERANCE = 1_000
"""Byte codes that do not depend on the input, such as those of an error message."""
RUNS = 3
TRIES = 12
"""A busy machine may disturb some of them. One that works out is enough: none of a quadratic decoder does."""
LEAST_S = 0.00005
HARMLESS_S = 0.01
"""The longest input of a decoder with a limit of its own may take this long, whatever a shorter one takes."""


def byte_codes(work: Callable[[], object]) -> int:
    """How many byte codes the work executes on this thread."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return note

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return note

    former = sys.gettrace()
    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(former)
    return count


def cpu_s(work: Callable[[], object]) -> float:
    spent = []
    # The cost of a collection depends on everything that earlier tests have left.
    gc.disable()
    try:
        for _ in range(RUNS):
            began_s = time.thread_time()
            work()
            spent.append(time.thread_time() - began_s)
    finally:
        gc.enable()
    return min(spent)


def assert_one_pass(
    read: Callable[[bytes], object], make: Callable[[int], bytes], bytes_max: int = BYTES_MAX
) -> None:
    """`make` returns about as many bytes as asked for, and `read` takes them. `bytes_max` is the limit of the
    decoder, if it has one."""
    short, long = (make(min(COUNTED_BYTES, bytes_max // 2) * times) for times in (1, 2))
    once, twice = (byte_codes(lambda data=data: read(data)) for data in (short, long))  # type: ignore[misc]
    assert twice <= 2.2 * once + COUNT_TOLERANCE, f"{once} byte codes became {twice} for twice the bytes"
    short, long = make(bytes_max // TIMES), make(bytes_max)
    factors = []
    for _ in range(TRIES):
        long_s = cpu_s(lambda: read(long))
        factors.append(long_s / max(cpu_s(lambda: read(short)), LEAST_S))
        if factors[-1] < FACTOR_MAX or (bytes_max < BYTES_MAX and long_s < HARMLESS_S):
            return
    raise AssertionError(f"{TIMES} times the bytes take {min(factors):.0f} times the processor time")
