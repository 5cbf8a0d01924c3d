"""A live move from an Apache master to this broker.

While an `ApacheMove` runs, this node is a slave of the Apache master. Its store copies the log byte for
byte, its journal takes the control state once a second, and nobody else may append. The operator then

1. takes the master out of the routes of producers (`mqadmin wipeWritePerm`, or brokerPermission=4),
2. waits for `state.is_complete`: everything is here, and nothing new has come for a while,
3. stops Apache's broker in order,
4. calls `take_over`, after which this node can start as master under the same name.

`apache_control.py` does this for a whole broker, and `metaq broker take-over` is the operator's command.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metaq._core import ApacheHaFollower, LinkSocket, Store
from metaq.broker.replication.apache_source import ApacheSource, LogRange, MasterFacts
from metaq.broker.replication.apache_state import ApacheState
from metaq.errors import CommandError, MetaqError
from metaq.journal.journal import Journal
from metaq.protocol.errors import Unreachable

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
STATE_SHARE: Final = 0.1
"""Control state is read for at most this share of the time, so that huge tables do not burden the master."""
CONNECT_TIMEOUT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
QUIET_S: Final = 5.0
"""A master whose log has not grown for this long counts as left by its producers."""
FENCE: Final = (
    "[APACHE_MOVE] this broker copies the log of the Apache master {address}: send to that one until this "
    "broker has taken over"
)


class MovePhase(StrEnum):
    CONNECTING = "connecting"
    """The master does not answer, or the link to it is being made."""
    COPYING = "copying"
    CAUGHT_UP = "caught_up"
    """At the last look this disk held everything that the master had."""
    START_OVER = "start_over"
    """The master has deleted what is needed next. Close the store, call `truncate_store` with
    `start_over_at`, open it and start a new move."""
    DIVERGED = "diverged"
    """This log is longer than the master's, which has lost its end. A person decides which one counts."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class MoveState:
    """How far a move is."""

    phase: MovePhase = MovePhase.CONNECTING
    held_offset: int = 0
    """The end of the log on this disk."""
    master_end_offset: int | None = None
    """The end of the master's log at the last look; None before the first."""
    quiet_s: float = 0.0
    """How long the master's log had not grown at the last look."""
    has_state: bool = False
    """Topics, groups and offsets were copied after the master's log grew for the last time."""
    is_master_reachable: bool = False
    start_over_at: int | None = None
    reason: str = ""
    """The present obstacle, or an empty text."""

    @property
    def bytes_behind(self) -> int | None:
        """None before the master was asked for the first time."""
        return None if self.master_end_offset is None else max(self.master_end_offset - self.held_offset, 0)

    @property
    def caught_up(self) -> bool:
        return self.phase is MovePhase.CAUGHT_UP and self.bytes_behind == 0

    @property
    def is_complete(self) -> bool:
        """Everything is here, the control state too, and the master has been quiet."""
        return self.caught_up and self.has_state and self.quiet_s >= QUIET_S


class ApacheMove:
    """Follows one Apache master with an open store and journal, until `take_over` or `stop`."""

    def __init__(self, address: str, store: Store, journal: Journal) -> None:
        """`address` is the master's `host:port` for clients."""
        self.address = address
        self.state = MoveState()
        self._store = store
        self._source = ApacheSource(address)
        self._control_state = ApacheState(self._source, journal)
        self._facts: MasterFacts | None = None
        self._link: ApacheHaFollower | None = None
        self._task: asyncio.Task[None] | None = None
        self._grown_at = time.monotonic()
        self._state_due_at = 0.0

    async def start(self) -> MasterFacts:
        """Checks that the master can be followed and begins. Returns its settings.

        Raises CommandError, Refused or Unreachable; nothing has changed then.
        """
        facts = await first_look(self.address, self._store.log_file_bytes())
        self.begin(facts)
        return facts

    def begin(self, facts: MasterFacts | None) -> None:
        """Begins without a question. Without `facts`, the master is checked as soon as it answers."""
        self._facts = facts
        self._store.fence(FENCE.format(address=self.address))
        self._task = asyncio.create_task(self._run(), name="Apache move")

    @property
    def failure(self) -> BaseException | None:
        """The error that nobody expected and that ended the following; None while all is as it should be."""
        task = self._task
        return None if task is None or not task.done() or task.cancelled() else task.exception()

    async def stop(self) -> None:
        """Stops following. The store stays fenced. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._drop_link()
        await self._source.close()
        self.state = dataclasses.replace(self.state, phase=MovePhase.ENDED)

    async def take_over(self, *, force: bool = False) -> MoveState:
        """Stops following and lets this store be written. Returns the final state.

        Raises CommandError unless the move is complete and the master has been stopped; the move goes on
        then. With `force` it need not be complete: whatever this disk does not have is lost.
        """
        if not force:
            self._check_complete()
        await self._check_stopped()
        await self.stop()
        self._store.lift_fence()
        _log.info("took over from the Apache master %s at offset %d", self.address, self._store.end_offset())
        self.state = dataclasses.replace(self.state, held_offset=self._store.held_offset())
        return self.state

    def _check_complete(self) -> None:
        state = self.state
        if state.is_complete and self._store.end_offset() == state.master_end_offset:
            return
        if state.is_complete:
            raise CommandError(
                f"the log of {self.address} grew after it was last asked for its end, so more may be missing",
                hint=_next_step(dataclasses.replace(state, is_master_reachable=False)),
            )
        behind = "an unknown number of" if state.bytes_behind is None else state.bytes_behind
        quiet = f"quiet for {state.quiet_s:.0f} s of {QUIET_S:.0f} s"
        reason = f" ({state.reason})" if state.reason else ""
        raise CommandError(
            f"this broker cannot take over from {self.address} yet: it is {behind} bytes behind, and the "
            f"master's log has been {quiet}{reason}",
            hint=_next_step(state),
        )

    async def _check_stopped(self) -> None:
        try:
            await self._source.log_range()
        except Unreachable:
            return
        raise CommandError(
            f"the Apache master {self.address} still runs: two masters would share one name",
            hint="stop it in order (mqshutdown broker), then take over",
        )

    # Following

    async def _run(self) -> None:
        told = ""
        while True:
            try:
                await self._look()
                reason = self.state.reason
            except (MetaqError, OSError) as error:
                reason = str(error)
                self._note(is_master_reachable=False, reason=reason)
            if reason != told:
                _log.log(
                    logging.WARNING if reason else logging.INFO,
                    "following the Apache master %s: %s",
                    self.address,
                    reason or f"all is well, {self.state.bytes_behind} bytes behind",
                )
                told = reason
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self) -> None:
        """Compares both logs, connects if there is no link, and copies the control state."""
        # Before the question: the link goes on, and the answer may be older than what it brings meanwhile.
        end_offset = self._store.end_offset()
        found = await self._source.log_range()
        if end_offset < found.start_offset or end_offset > found.end_offset:
            await self._drop_link()
            self._note_gap(end_offset, found)
            return
        reason = await self._keep_linked()
        if found.end_offset != self.state.master_end_offset:
            self._grown_at = time.monotonic()
            self._note(has_state=False)
        held_offset = self._store.held_offset()
        self._note(
            phase=self._linked_phase(reason, held_offset, found),
            held_offset=held_offset,
            master_end_offset=found.end_offset,
            quiet_s=time.monotonic() - self._grown_at,
            is_master_reachable=True,
            start_over_at=None,
            reason=reason,
        )
        await self._copy_state()

    def _linked_phase(self, reason: str, held_offset: int, found: LogRange) -> MovePhase:
        if reason or self._link is None:
            return MovePhase.CONNECTING
        # Only then has the link compared the ends of both logs.
        is_same_log = self._link.figures().received_offset >= held_offset
        return MovePhase.CAUGHT_UP if is_same_log and held_offset >= found.end_offset else MovePhase.COPYING

    def _note_gap(self, end_offset: int, found: LogRange) -> None:
        is_behind = end_offset < found.start_offset
        self._note(
            phase=MovePhase.START_OVER if is_behind else MovePhase.DIVERGED,
            held_offset=end_offset,
            master_end_offset=found.end_offset,
            has_state=False,
            is_master_reachable=True,
            start_over_at=found.start_offset if is_behind else None,
            reason=f"this log ends at {end_offset}, the master's begins at {found.start_offset}: start over"
            if is_behind
            else f"this log ends at {end_offset}, the master's at {found.end_offset}: it has lost its end. "
            "Keep this store by force, or empty it and follow again",
        )

    async def _keep_linked(self) -> str:
        """Makes a link if there is none. Returns why the last one was closed, or an empty text."""
        closed = "" if self._link is None else self._link.figures().closed
        if self._link is not None and closed is None:
            return ""
        await self._drop_link()
        if self._facts is None:
            self._facts = await first_look(self.address, self._store.log_file_bytes())
        connect = asyncio.to_thread(LinkSocket.connect, self._facts.ha_address, CONNECT_TIMEOUT_MS)
        try:
            socket = await connect
        except OSError as error:
            raise Unreachable(f"{self._facts.ha_address}: {error.strerror or error}") from None
        self._link = ApacheHaFollower(self._store, socket, silence_ms=SILENCE_MS)
        return f"the link was closed: {closed}" if closed else ""

    async def _copy_state(self) -> None:
        began = time.monotonic()
        if began < self._state_due_at:
            return
        await self._control_state.copy()
        took_s = time.monotonic() - began
        self._state_due_at = began + took_s / STATE_SHARE
        # The log may have grown while it was read; only a later copy counts then.
        self._note(has_state=began >= self._grown_at)

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.stop)

    def _note(self, **changes: object) -> None:
        self.state = dataclasses.replace(self.state, **changes)  # type: ignore[arg-type]


def _next_step(state: MoveState) -> str:
    """Returns what the operator of an unfinished move does next."""
    if not state.is_master_reachable:
        return (
            "start the Apache master again without producers and wait until nothing is missing; if it is "
            "lost for good, take over with --force"
        )
    if state.phase is MovePhase.DIVERGED:
        return "stop the Apache master and take over with --force, or copy again into an empty directory"
    if not state.caught_up:
        return "wait until it is 0 bytes behind"
    return (
        "take the master out of the routes of producers (mqadmin wipeWritePerm) and try again when its log "
        f"has been quiet for {QUIET_S:.0f} s"
    )


async def first_look(address: str, log_file_bytes: int) -> MasterFacts:
    """Returns the settings of a master that a store with files of this size can follow.

    Raises CommandError that names the setting to change, Refused or Unreachable.
    """
    source = ApacheSource(address)
    try:
        facts = await source.facts()
    finally:
        await source.close()
    if facts.log_file_bytes != log_file_bytes:
        raise CommandError(
            f"the Apache master {address} has mappedFileSizeCommitLog={facts.log_file_bytes}, this store has "
            f"files of {log_file_bytes} bytes",
            hint=f"set commit_log_file_bytes={facts.log_file_bytes} and use an empty directory",
        )
    return facts
