"""Threads for work whose cost a client chooses.

Such work never runs on the event loop. Each kind has threads of its own, so that no kind starves another.
Within a kind, addresses take turns, then the connections of an address: newcomers and those that have used
little time are next (`turns.py`). If the processors are busy, the threads that serve connections run first.

Work that nobody waits for any more does not begin. If it runs already, it ends at its next step
(`let_event_loop_run`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import Asker, Peer, asker_of
from metaq.turns import Turns

WAITING_MAX = 1_024
"""Pieces of work of one connection that may wait for a thread. A Java client with several groups gives
hundreds of messages back at the same time."""
COMPILATIONS_WAITING_MAX = 64
READS_WAITING_MAX = 16
"""Long bodies of one connection. A client sends one now and then, such as a heartbeat with many filters."""
NICENESS = 5
"""Added to the priority number of threads that compute for a client. A third of the time of other threads is
left to them: a thread that holds Python's lock must not wait for long."""
HELD_S = 0.0005
"""Time for which long work holds Python's lock. To give it away more often is dear on a busy machine: the
thread waits for a processor each time."""

_T = TypeVar("_T")


class GivenUp(Exception):
    """Ends work on a thread: nobody waits for its result any more."""


class _Work(Generic[_T]):
    """One piece of work, which can be given up while it runs."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self.is_given_up = False
        self.took_s = 0.0

    def __call__(self) -> _T:
        if self.is_given_up:
            raise GivenUp
        _current.work = self
        began_s = time.monotonic()
        try:
            return self._work()
        finally:
            _current.work = None
            self.took_s = time.monotonic() - began_s


class _Current(threading.local):
    work: _Work[Any] | None = None
    let_run_s: float = 0.0
    """When the event loop could run last."""


_current = _Current()
"""The work of the current thread."""


class WorkPool:
    """A few threads for one kind of work. It belongs to one event loop."""

    def __init__(
        self,
        kind: str,
        threads: int,
        waiting_max: int = WAITING_MAX,
        *,
        niceness: int = NICENESS,
        is_by_address: bool = False,
    ) -> None:
        """`waiting_max` counts for each connection. If the pool is by address, all connections of an address
        count as one."""
        self._kind = kind
        self._free = threads
        self._waiting_max = waiting_max
        self._is_by_address = is_by_address
        self._threads = ThreadPoolExecutor(
            threads, f"metaq-{kind}", initializer=_yield_to_others, initargs=(niceness,)
        )
        self._turns = Turns()

    async def run(self, peer: Peer, work: Callable[[], _T]) -> _T:
        """Runs the work on a thread, in the turn of the peer's address and connection. Raises Refused if too
        much of it waits already. If the caller is cancelled, the work does not begin, or ends at its next
        step."""
        asker = self._asker(peer)
        await self._take_thread(asker)
        piece = _Work(work)
        result = asyncio.get_running_loop().run_in_executor(self._threads, piece)
        # The thread is free when the work has ended, which may be after the caller has given it up.
        result.add_done_callback(lambda ended: self._ended(asker, piece, ended))
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            piece.is_given_up = True
            raise

    def _asker(self, peer: Peer) -> Asker:
        asker = asker_of(peer)
        return asker._replace(connection=0) if self._is_by_address else asker

    def _ended(self, asker: Asker, piece: _Work[_T], result: asyncio.Future[_T]) -> None:
        if not result.cancelled():
            result.exception()  # Marks it as seen: a caller that was cancelled does not look.
        self._pass_on(asker, piece.took_s)

    def waiting(self, peer: Peer) -> int:
        return self._turns.waiting(self._asker(peer))

    async def _take_thread(self, asker: Asker) -> None:
        if self._free > 0:
            self._free -= 1
            return
        if self._turns.waiting(asker) >= self._waiting_max:
            whose = "address" if self._is_by_address else "connection"
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {self._waiting_max} requests of this {whose} wait for a thread "
                f"({self._kind}), the limit; try again later",
            )
        turn = asyncio.get_running_loop().create_future()
        self._turns.add(asker, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(asker, 0.0)
            raise

    def _pass_on(self, asker: Asker, took_s: float) -> None:
        """Gives the thread that this one had to the next one that waits."""
        self._turns.charge(asker, took_s)
        turn = self._turns.take()
        if turn is None:
            self._free += 1
        else:
            turn.set_result(None)


def let_event_loop_run() -> None:
    """Gives Python's lock away for a moment, if this thread has held it for half a millisecond. Long work on
    a thread calls it often. Raises GivenUp if nobody waits for the work any more.

    Otherwise the event loop waits for 5 ms each time it wants to run, and longer if the processors are busy:
    then the thread may lose its processor while it holds the lock.
    """
    now_s = time.monotonic()
    if now_s - _current.let_run_s >= HELD_S:
        time.sleep(0)
        _current.let_run_s = time.monotonic()
    if _current.work is not None and _current.work.is_given_up:
        raise GivenUp


def _yield_to_others(niceness: int) -> None:
    """Lowers the priority of the current thread. Only Linux has one for each thread."""
    if niceness > 0 and sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


def compilation_pool() -> WorkPool:
    return WorkPool("compilation", 1, COMPILATIONS_WAITING_MAX)


@dataclass(frozen=True, slots=True)
class WorkPools:
    """The pools of one broker. Persistence has threads of its own as well: see `Journal`."""

    look_ups: WorkPool = field(default_factory=lambda: WorkPool("look-ups", 2))
    """Searches for messages, and figures about queues."""
    compilation: WorkPool = field(default_factory=compilation_pool)
    """Filters. They are compiled in Python, so a second thread would only take time from the event loop."""
    administration: WorkPool = field(default_factory=lambda: WorkPool("administration", 1))
    """Rare and long work: deletions, resets, tables of the whole broker."""
    reading: WorkPool = field(default_factory=lambda: WorkPool("reading", 1, READS_WAITING_MAX))
    """Long bodies of requests, and of the answers of clients. JSON is decoded under Python's lock."""
    storing: WorkPool = field(default_factory=lambda: WorkPool("storing", 8, niceness=0))
    """Copies of messages; each is read and waits until the store confirms it. So consumers that give messages
    back do not wait for those who look things up."""
