"""The process that runs filter functions: `python -m metaq.filters.worker`, started by the broker alone.

It has the broker's word on its standard input and nothing else of the broker's: no descriptor, no setting, no
secret. It ends when the broker does.
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
    Ask,
    Hello,
    Told,
    frame,
)
from metaq.filters.message import FilterMessage

PR_SET_PDEATHSIG = 1
NICENESS = 5
"""Functions give way to the broker where both want the processor."""
ERROR_CHARACTERS_MAX = 500


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--verdicts", type=int, required=True)
    parser.add_argument("sources", nargs="*")
    arguments = parser.parse_args()
    if not _die_with(arguments.parent):
        return 1
    verdicts = mmap.mmap(arguments.verdicts, VERDICTS_MAX)
    os.close(arguments.verdicts)
    asked, told = _take_over_pipes()
    _limit(arguments.memory_bytes)
    try:
        functions = load(arguments.sources)
        hello = Hello(tuple(known.description for known in functions.values()))
    except BaseException as error:
        functions, hello = {}, Hello(error=_say(error))
    _tell(told, hello)
    while not hello.error and (ask := _read(asked)) is not None:
        answer = look_at(ask, functions, verdicts)
        _tell(told, answer)
        if answer.ends:
            break
    # No handler or thread that a function has left behind may keep the process.
    os._exit(0)


def look_at(ask: Ask, functions: Mapping[str, Declared], verdicts: mmap.mmap | bytearray) -> Told:
    """Asks the function about each message and notes its verdicts, which stand at zero before."""
    told = Told()
    end = time.monotonic() + ask.budget_ms / 1000
    wanted = 0
    verdicts[0] = UNDER_WAY
    try:
        messages = decode_records(ask.records)
        function = functions[ask.function].function
    except BaseException as error:
        told.failed, told.error, told.ends = 1, _say(error), True
        verdicts[0] = FAILED
        return told
    for index, record in enumerate(messages):
        verdicts[index] = UNDER_WAY
        try:
            verdict = function(FilterMessage.of(record), *ask.arguments)
            if not isinstance(verdict, bool):
                raise TypeError(f"it returned {type(verdict).__name__}, not True or False")
        except BaseException as error:
            told.failed += 1
            told.error = told.error or _say(error)
            told.ends = isinstance(error, MemoryError)
            verdicts[index] = FAILED
            wanted += 1
        else:
            wanted += verdict
            verdicts[index] = WANTED if verdict else UNWANTED
        if told.ends or wanted >= ask.wanted_max or time.monotonic() >= end:
            break
    return told


def _say(error: BaseException) -> str:
    """The error in one line, and where in the function it came from; whatever it is made of."""
    try:
        text = f"{type(error).__name__}: {str(error)[:ERROR_CHARACTERS_MAX]}"
        frames = traceback.extract_tb(error.__traceback__)
        if frames:
            text += f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"  # noqa: PTH119
    except BaseException:
        text = "an error that cannot be told"
    return " ".join(text[: 2 * ERROR_CHARACTERS_MAX].encode("utf-8", "replace").decode().split())


def _die_with(parent: int) -> bool:
    """Has the system end this process with the broker's, even where a function never returns."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keeps the pipes to ourselves: a function reads nothing, and what it prints goes to standard error."""
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return asked, told


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)


def _read(asked: BinaryIO) -> Ask | None:
    head = asked.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    payload = asked.read(size) if size <= ASK_BYTES_MAX else b""
    return msgspec.msgpack.decode(payload, type=Ask) if len(payload) == size else None


def _tell(told: BinaryIO, value: Hello | Told) -> None:
    told.write(frame(value))
    told.flush()


if __name__ == "__main__":
    sys.exit(main())
