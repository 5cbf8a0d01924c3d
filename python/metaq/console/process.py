"""The console of `metaq serve`: this process owns the socket and the links, a child process serves the pages.

So a page that takes long to render never delays the broker, and a console that fails is started again while
browsers wait in the socket's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from typing import Final, Self

from metaq.console.child import Start, encode_start
from metaq.console.listener import address_of_socket, bind
from metaq.console.place import Announcement, Place
from metaq.dev.child import described_end

_log = logging.getLogger("metaq.console")

HOST: Final = "127.0.0.1"
_PAUSE_S_MIN: Final = 0.5
_PAUSE_S_MAX: Final = 30.0
_STEADY_S: Final = 60.0
"""After this time a console counts as healthy, and its next end is followed by a short pause."""
_STOP_TIMEOUT_S: Final = 5.0


class ConsoleProcess:
    """The console beside a broker, from `bind` to `stop`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._place: Place | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def bind(cls, port: int, *, may_move: bool) -> Self:
        """Takes the port, or a free one if it is taken and the console may move. Raises OSError."""
        return cls(bind(HOST, port, may_move=may_move))

    async def start(self, start: Start) -> Announcement:
        """Starts the child process and returns the links. Raises CommandError and OSError."""
        self._place = Place.claim(start.settings.state_folder, flag="--data")
        announcement = self._place.announce(address_of_socket(self._listener))
        await self._begin(start)
        self._watching = asyncio.create_task(self._watch(start))
        return announcement

    async def stop(self) -> None:
        """Ends the child process. Safe to call twice."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            await _end(process)
        self._listener.close()
        if self._place is not None:
            self._place.leave()

    async def _begin(self, start: Start) -> None:
        descriptor = self._listener.fileno()
        process = await asyncio.create_subprocess_exec(
            # -P: a file in this directory must not take the place of a module.
            *(sys.executable, "-P", "-m", "metaq.console.child", str(descriptor), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
            # Ctrl-C in a terminal reaches only this process, which then stops the child in order.
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(encode_start(start))
            await process.stdin.drain()

    async def _watch(self, start: Start) -> None:
        """Starts the child again whenever it ends."""
        pause_s = _PAUSE_S_MIN
        while True:
            assert self._process is not None
            began_s = time.monotonic()
            code = await self._process.wait()
            if time.monotonic() - began_s >= _STEADY_S:
                pause_s = _PAUSE_S_MIN
            _log.warning("the console %s; it starts again in %g s", described_end(code), pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)
            while True:
                try:
                    await self._begin(start)
                    break
                except OSError as error:
                    _log.warning("the console cannot be started: %s; next try in %g s", error, pause_s)
                    await asyncio.sleep(pause_s)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks a process to stop, and kills it if it does not in time."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
