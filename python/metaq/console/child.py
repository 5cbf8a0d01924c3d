"""The console of `metaq serve`, as a process of its own.

    python -m metaq.console.child SOCKET PARENT_PID

The first line of standard input has the settings. The process ends with standard input, with SIGTERM, or with
its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from metaq.console.settings import ConsoleSettings
from metaq.dev.leash import end_with_parent
from metaq.server_logging import LogFormat, LogLevels, set_up

_NICENESS: Final = 5
_OOM_SCORE: Final = 500
"""From 1000, which the system ends first, to -1000."""


class Start(msgspec.Struct, frozen=True):
    """Everything that the process gets from its parent."""

    settings: ConsoleSettings
    log_level: str
    log_format: LogFormat


def encode_start(start: Start) -> bytes:
    """Returns one line. It may hold the password of a cluster's user."""
    return msgspec.json.encode(start, enc_hook=_encode_path) + b"\n"


def decode_start(line: bytes) -> Start:
    return msgspec.json.decode(line, type=Start, dec_hook=_decode_path)


def main() -> None:
    # Nothing that this process writes is for others.
    os.umask(0o077)
    end_with_parent(int(sys.argv[2]))
    _give_way()
    start = decode_start(sys.stdin.buffer.readline())
    set_up(LogLevels.parse(start.log_level), start.log_format)
    listener = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_run(start.settings, listener))


def _give_way() -> None:
    """Lets the broker go first, for CPU time and if memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


async def _run(settings: ConsoleSettings, listener: socket.socket) -> None:
    from metaq.console.run import run_console

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), _read_end, stop)
    await run_console(settings, listener, stop)


def _read_end(stop: asyncio.Event) -> None:
    """Stops when the parent has closed its end of the pipe."""
    with contextlib.suppress(BlockingIOError):
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            stop.set()


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind.__name__)


if __name__ == "__main__":
    main()
