"""Runs the scrub of one broker as long as its process lives, through reopened stores and changes of role."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from metaq._core import Clock, Store, StoreClosed, StoreFailure
from metaq.broker.replication.log_repair import VerifiedPiece
from metaq.broker.scrubbing.pace import ScrubSettings, due_ms, rate
from metaq.broker.scrubbing.record import RANGES_MAX, ScrubRecord, load, save
from metaq.ha.handshake import LinkRefused
from metaq.ha.view import Range
from metaq.protocol.commands.health import ScrubReport

_log = logging.getLogger(__name__)

STEP_BYTES: Final = 1024 * 1024
COMPARED_BYTES: Final = 8 * 1024 * 1024
"""How much of the log is compared with the master's on one connection."""
SAVE_S: Final = 30.0
RETRY_S: Final = 1.0
RETRIES_MAX: Final = 5
"""Attempts to read a part of the log before the scrub goes on with the next file."""
IDLE_S: Final = 60.0
_NICE: Final = 19
"""The thread's priority for the CPU, from which the kernel takes the priority of its reads."""


class Peer(Protocol):
    """The connection to the master, on a replica."""

    async def compare_pieces(self, pieces: Sequence[VerifiedPiece]) -> int | None:
        """Compares verified pieces with the master's log. Where they differ, both nodes verify again.

        Returns the first offset at which the logs differ although both verify. Raises LinkRefused or OSError.
        """
        ...


class Scrubbed(Protocol):
    """The broker whose log is read."""

    @property
    def store(self) -> Store:
        """The store of now."""
        ...

    @property
    def scrub_peer(self) -> Peer | None:
        """The master that this node follows, if it does."""
        ...


class Scrubber:
    """All methods belong to the event loop; the log is read on a thread of low priority."""

    def __init__(self, settings: ScrubSettings, owner: Scrubbed, directory: Path, clock: Clock) -> None:
        self._settings = settings
        self._owner = owner
        self._directory = directory
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "metaq-scrub", initializer=_lower_priority)
        self._task: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._pieces: list[VerifiedPiece] = []
        self._saved_at = 0.0
        self._failures = 0
        self._fault = ""
        self.record = load(directory)

    def start(self) -> None:
        """Begins to read, if that is switched on."""
        if self._settings.is_on:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Reads no more and keeps the progress."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown)
        await self._save()

    # ---- what others note and see

    def note_repair(self, ranges: int) -> None:
        """Counts damaged ranges that were repaired."""
        self._change(repaired=self.record.repaired + ranges, repaired_ms=max(self._clock.now_ms(), 0))
        self._saved_at = 0.0

    def report(self) -> ScrubReport:
        """Returns the progress and the findings."""
        record, store = self.record, self._owner.store
        start, end = store.start_offset(), store.confirmed_offset()
        done = 100 if end <= start else (record.position - start) * 100 // (end - start)
        return ScrubReport(
            interval_ms=int(self._settings.interval_s * 1000),
            percent=max(min(done, 100), 0) if record.is_under_way else None,
            began_ms=record.began_ms,
            completed_ms=record.completed_ms,
            damaged=record.damaged,
            repaired=record.repaired,
            repaired_ms=record.repaired_ms,
            unrepaired=len(store.known_damage()),
            differs_at=record.differs_at,
            fault=self._fault[:1_024] or None,
        )

    # ---- the work

    async def _run(self) -> None:
        has_looked = False
        while True:
            try:
                if not has_looked:
                    await self._look_at_known_damage()
                    has_looked = True
                if not self.record.is_under_way:
                    await self._wait_until_due()
                pause_s = await self._step()
            except StoreClosed:
                # It is being opened anew.
                pause_s = RETRY_S
            except StoreFailure as error:
                pause_s = self._failed(error)
            except Exception:
                _log.exception("the scrub of the log failed, and is tried again")
                pause_s = IDLE_S
            await self._save_now_and_then()
            await asyncio.sleep(pause_s)

    async def _look_at_known_damage(self) -> None:
        """A store forgets its damage when it is closed."""
        for start, end in self.record.known:
            store = self._owner.store
            if end <= store.end_offset():
                await self._call(store.damaged_ranges, start, end)
                await self._name(store, [(start, end)])

    async def _wait_until_due(self) -> None:
        while True:
            now_ms, record = self._clock.now_ms(), self.record
            wait_s = (due_ms(self._settings, record.began_ms, record.completed_ms, now_ms) - now_ms) / 1000
            if wait_s <= 0:
                break
            await asyncio.sleep(min(wait_s, IDLE_S))
        self._change(position=0, began_ms=max(self._clock.now_ms(), 0), is_under_way=True)

    async def _step(self) -> float:
        """Reads one part of the log; returns how long to wait before the next one."""
        store, began = self._owner.store, asyncio.get_running_loop().time()
        start = store.start_offset()
        if store is not self._store:
            # A truncation may have moved the records, so go on where a file begins.
            self._store, self._pieces = store, []
            self._change(position=self.record.position // store.log_file_bytes() * store.log_file_bytes())
        position = max(self.record.position, start)
        step_bytes = min(STEP_BYTES, self._settings.bytes_per_second)
        part = await self._call(store.scrub, position, step_bytes)
        self._failures = 0
        if part is None:
            await self._compare(store)
            self._complete(store)
            return 0.0
        end, checksum, damaged = cast("tuple[int, int | None, list[Range]]", part)
        if damaged:
            await self._found(store, damaged)
        elif checksum is not None:
            self._pieces.append(VerifiedPiece(position, end, checksum))
            if sum(piece.end - piece.start for piece in self._pieces) >= COMPARED_BYTES:
                await self._compare(store)
        self._change(position=end)
        wanted_s = (end - position) / rate(self._settings, max(store.confirmed_offset() - start, 0))
        return max(wanted_s - (asyncio.get_running_loop().time() - began), 0.0)

    async def _found(self, store: Store, damaged: Sequence[Range]) -> None:
        known = {start for start, _ in self.record.known}
        new = [found for found in damaged if found[0] not in known]
        if new:
            _log.error("the scrub found damage in the log: %s", new)
            self._change(
                damaged=self.record.damaged + len(new), known=(*self.record.known, *new)[-RANGES_MAX:]
            )
            self._saved_at = 0.0
        await self._name(store, damaged)

    async def _name(self, store: Store, damaged: Sequence[Range]) -> None:
        """Names the messages of damaged ranges. In a group they are repaired instead."""
        if self._owner.scrub_peer is None:
            for start, end in damaged:
                await self._call(store.name_damaged, start, end)

    async def _compare(self, store: Store) -> None:
        pieces, self._pieces = self._pieces, []
        peer = self._owner.scrub_peer
        if peer is None or not pieces or store is not self._owner.store:
            return
        try:
            differs_at = await peer.compare_pieces(pieces)
        except (LinkRefused, OSError) as error:
            # The master changes, or is busy. The next pass compares them.
            _log.debug("the log was not compared with the master's: %s", error)
            return
        if differs_at is not None and differs_at != self.record.differs_at:
            _log.error("the log differs from the master's at %d, although both verify", differs_at)
            self._change(differs_at=differs_at)
        elif differs_at is None and self._is_within(pieces, self.record.differs_at):
            self._change(differs_at=None)

    def _is_within(self, pieces: Sequence[VerifiedPiece], offset: int | None) -> bool:
        return offset is not None and any(piece.start <= offset < piece.end for piece in pieces)

    def _complete(self, store: Store) -> None:
        still = {start for start, _ in store.known_damage()}
        # Nobody else may need this store any more, and the next pass begins much later.
        self._store, self._fault = None, ""
        self._change(
            is_under_way=False,
            completed_ms=max(self._clock.now_ms(), 0),
            known=tuple(found for found in self.record.known if found[0] in still),
        )
        self._saved_at = 0.0

    def _failed(self, error: StoreFailure) -> float:
        """The disk may not be readable there, so after some attempts the scrub goes on with the next file."""
        self._failures += 1
        if self._failures >= RETRIES_MAX:
            self._failures = 0
            if str(error) != self._fault:
                _log.error("the scrub cannot read the log at %d: %s", self.record.position, error)
            self._fault = str(error)
            file_bytes = self._owner.store.log_file_bytes()
            self._change(position=(self.record.position // file_bytes + 1) * file_bytes)
        return RETRY_S

    # ---- the thread, and the file

    async def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _change(self, **changes: object) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)

    async def _save_now_and_then(self) -> None:
        if asyncio.get_running_loop().time() - self._saved_at >= SAVE_S:
            await self._save()

    async def _save(self) -> None:
        self._saved_at = asyncio.get_running_loop().time()
        if self.record == ScrubRecord():
            return
        try:
            await asyncio.to_thread(save, self._directory, self.record)
        except OSError as error:
            _log.warning("the progress of the scrub cannot be saved: %s", error)


def _lower_priority() -> None:
    # Linux counts the calling thread as a process of its own here.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
