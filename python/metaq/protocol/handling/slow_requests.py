"""Log lines about requests that took long, with the parts of their time.

The data plane measures the requests that it answers itself, and keeps the slow ones until they are written
here. The requests that Python answers are measured by the pump.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Final

from metaq._core import FrameError, Listener, Request, SlowRequest
from metaq.protocol.command import Command, commands
from metaq.protocol.errors import ProtocolError
from metaq.protocol.handling.peer_log import PeerLog, peer_log

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
"""How often the slow requests of the data plane are written."""
NAME_LENGTH_MAX: Final = 127
_PARTS: Final = {
    "queue": "waited in the queue",
    "handled": "handled",
    "clients": "waited for other clients",
    "flush": "waited for the disk",
    "replicas": "waited for replicas",
    "written": "waited until the client read",
}


class SlowRequests:
    """Writes the slow requests of one listener to the log, from `start` to `stop`."""

    def __init__(self, listener: Listener, limit_ms: int, lines: PeerLog = peer_log) -> None:
        self._listener = listener
        self._lines = lines
        self._task: asyncio.Task[None] | None = None
        self.limit_ms = limit_ms

    @property
    def limit_ms(self) -> int:
        """Requests that take at least this long are slow; 0 means that none is."""
        return self._limit_ms

    @limit_ms.setter
    def limit_ms(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._listener.set_slow_request_ms(limit_ms)

    def start(self) -> None:
        """Safe to call again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="log slow requests")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.write_native()

    def check(self, request: Request, began_s: float, clients_s: float = 0.0) -> None:
        """Writes a line if a request of Python's was slow. Its handler began at `began_s`, by
        `time.monotonic`, and waited `clients_s` of the time for other clients."""
        if not self._limit_ms:
            return
        age_ms = request.age_ms
        if age_ms < self._limit_ms:
            return
        clients_ms = int(clients_s * 1000)
        handled_ms = min(age_ms, int((time.monotonic() - began_s) * 1000))
        parts = {
            "queue": age_ms - handled_ms,
            "clients": clients_ms,
            "handled": max(0, handled_ms - clients_ms),
        }
        command = _command(request.code)
        self._write(request.remote, request.code, 1, parts, _named(command, request))

    def write_native(self) -> None:
        """Writes the slow requests of the data plane since the last call."""
        slow, left_out = self._listener.take_slow_requests()
        for request in slow:
            self._write_native(request)
        if left_out:
            _log.warning("%d more requests were slow and are not in this log", left_out)

    def _write_native(self, slow: SlowRequest) -> None:
        parts = dict(slow.parts)
        if slow.code is None:
            self._lines.write(
                _log,
                logging.WARNING,
                slow.remote,
                "slow client %s: answers to it waited %d ms until it read them",
                slow.remote,
                sum(parts.values()),
            )
        else:
            topic = "" if slow.topic is None else f"topic {_shown(slow.topic)}"
            self._write(slow.remote, slow.code, slow.requests, parts, topic)

    def _write(self, remote: str, code: int, requests: int, parts: Mapping[str, int], resources: str) -> None:
        command = _command(code)
        name = f"{command.__name__} ({code})" if command is not None else str(code)
        self._lines.write(
            _log,
            logging.WARNING,
            remote,
            "slow request %s from %s%s took %d ms: %s%s",
            name,
            remote,
            f" for {resources}" if resources else "",
            sum(parts.values()),
            ", ".join(f"{_PARTS.get(part, part)} {ms} ms" for part, ms in parts.items() if ms),
            "" if requests == 1 else f" ({requests} such requests were handled together)",
            reason=("slow request", code),
        )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.write_native()


def _command(code: int) -> type[Command] | None:
    return next((command for command in commands() if command.code == code), None)


def _named(command: type[Command] | None, request: Request) -> str:
    """Returns the topics and groups that a request names."""
    if command is None or isinstance(command.resources, str):
        return ""
    try:
        header = command.parse(request.fields)
    except (FrameError, ProtocolError):
        return ""
    named = ((kind, getattr(header, name)) for name, kind in command.resources.items())
    return ", ".join(f"{kind} {_shown(name)}" for kind, name in named if name)


def _shown(name: str) -> str:
    name = name[:NAME_LENGTH_MAX]
    return name if name.isprintable() else ascii(name)
