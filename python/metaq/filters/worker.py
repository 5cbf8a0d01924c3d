"""The process that runs filter functions: `python -m metaq.filters.worker`, which only the broker starts.

It talks to the broker over standard input and output and gets nothing else from it: no descriptor, no
setting, no secret. `sandbox` takes the rest away before a function is loaded. It ends when the broker ends.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from metaq._core import decode_records
from metaq.filters.declared import Declared, load
from metaq.filters.exchange import (
    ASK_BYTES_MAX,
    FAILED,
    LENGTH,
    UNDER_WAY,
    UNWANTED,
    VERDICTS_MAX,
    WANTED,
    Answer,
    Ask,
    Hello,
    frame,
)
from metaq.filters.message import FilterMessage
from metaq.filters.sandbox import restrict

PR_SET_PDEATHSIG = 1
NICENESS = 5
"""The broker comes first if both want the processor."""
ERROR_CHARACTERS_MAX = 500


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--verdicts", type=int, required=True)
    parser.add_argument("--readable", action="append", default=[])
    parser.add_argument("--private", action="append", default=[])
    parser.add_argument("--network", action="store_true")
    parser.add_argument("sources", nargs="*")
    arguments = parser.parse_args()
    if not _die_with(arguments.parent):
        return 1
    verdicts = mmap.mmap(arguments.verdicts, VERDICTS_MAX)
    os.close(arguments.verdicts)
    requests, answers = _take_over_pipes()
    _limit(arguments.memory_bytes)
    try:
        folders = [source for source in arguments.sources if Path(source).is_absolute()]
        # Before the operator's code runs for the first time.
        unprotected = restrict([*folders, *arguments.readable], arguments.private, network=arguments.network)
        functions = load(arguments.sources)
        hello = Hello(tuple(known.description for known in functions.values()), unprotected=unprotected)
    except BaseException as error:
        functions, hello = {}, Hello(error=_describe(error))
    _write(answers, hello)
    while not hello.error and (ask := _read(requests)) is not None:
        answer = check_batch(ask, functions, verdicts)
        _write(answers, answer)
        if answer.ends:
            break
    # Exits even if a function has left an exit handler or a thread behind.
    os._exit(0)


def check_batch(ask: Ask, functions: Mapping[str, Declared], verdicts: mmap.mmap | bytearray) -> Answer:
    """Calls the function for each message and writes its verdicts, which must be zero before."""
    answer = Answer()
    end = time.monotonic() + ask.budget_ms / 1000
    wanted = 0
    verdicts[0] = UNDER_WAY
    try:
        messages = decode_records(ask.records)
        function = functions[ask.function].function
    except BaseException as error:
        answer.failed, answer.error, answer.ends = 1, _describe(error), True
        verdicts[0] = FAILED
        return answer
    for index, record in enumerate(messages):
        verdicts[index] = UNDER_WAY
        try:
            verdict = function(FilterMessage.of(record), *ask.arguments)
            if not isinstance(verdict, bool):
                raise TypeError(f"it returned {type(verdict).__name__}, not True or False")
        except BaseException as error:
            answer.failed += 1
            answer.error = answer.error or _describe(error)
            answer.ends = isinstance(error, MemoryError)
            verdicts[index] = FAILED
            wanted += 1
        else:
            wanted += verdict
            verdicts[index] = WANTED if verdict else UNWANTED
        if answer.ends or wanted >= ask.wanted_max or time.monotonic() >= end:
            break
    return answer


def _describe(error: BaseException) -> str:
    """Returns the error and its line in the function as one line of text. Never raises."""
    try:
        text = f"{type(error).__name__}: {str(error)[:ERROR_CHARACTERS_MAX]}"
        frames = traceback.extract_tb(error.__traceback__)
        if frames:
            text += f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"  # noqa: PTH119
    except BaseException:
        text = "an error that cannot be shown"
    return " ".join(text[: 2 * ERROR_CHARACTERS_MAX].encode("utf-8", "replace").decode().split())


def _die_with(parent: int) -> bool:
    """Makes the system kill this process with the broker, even if a function never returns."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Takes the pipes away from functions: they read nothing, and what they print goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)


def _read(requests: BinaryIO) -> Ask | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    payload = requests.read(size) if size <= ASK_BYTES_MAX else b""
    return msgspec.msgpack.decode(payload, type=Ask) if len(payload) == size else None


def _write(answers: BinaryIO, value: Hello | Answer) -> None:
    answers.write(frame(value))
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
