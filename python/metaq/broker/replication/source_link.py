"""A replica's end of the link to its master: connects, compares, follows, and connects again.

`log_repair.py` judges logs that differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from metaq._core import LinkSocket, ReplicationFollower, ReplicationHub, Store, StoreFailure
from metaq.broker.replication.log_repair import (
    SoundBytes,
    VerifiedPiece,
    compare_logs,
    compare_pieces,
    fetch_sound_bytes,
)
from metaq.broker.replication.options import ReplicationOptions
from metaq.broker.replication.state_stream import StateFeed, StateIntake, StateInvalid
from metaq.ha.epochs import History, HistoryInvalid
from metaq.ha.group_record import shown_id
from metaq.ha.handshake import (
    Identity,
    LinkRefused,
    OwnLog,
    SendTail,
    Welcome,
    ask_to_follow,
    introduce,
)
from metaq.ha.node import Clock
from metaq.ha.view import Range, Source, SourceState
from metaq.journal.journal import Entry, Journal, Point

_log = logging.getLogger(__name__)

RETRY_S = 0.1
FULL_RETRY_S = 5.0
TAIL_POLL_S = 0.05


class Own(Protocol):
    """The node at this end. Its store is opened anew when its log is cut."""

    @property
    def identity(self) -> Identity: ...
    @property
    def history(self) -> History: ...
    @property
    def store(self) -> Store: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def file_bytes(self) -> int: ...


class SourceLink:
    """Follows one master of one epoch, from `start` to `stop`. All methods belong to the event loop."""

    def __init__(
        self,
        own: Own,
        options: ReplicationOptions,
        clock: Clock,
        source: Source,
        address: str,
        changed: Callable[[], None],
        replaced: Callable[[Sequence[Entry]], Awaitable[None]],
    ) -> None:
        """`changed` is called when `source` changes, `replaced` when the whole control state has, with its
        entries."""
        self._own = own
        self._options = options
        self._clock = clock
        self._address = address
        self._changed = changed
        self._replaced = replaced
        self._is_fixed = options.register is None
        self._socket: LinkSocket | None = None
        self._follower: ReplicationFollower | None = None
        self._intake: StateIntake | None = None
        self._streaming = asyncio.Event()
        self._lost = asyncio.Event()
        self._state_came = asyncio.Event()
        self._complaint = ""
        self._can_verify = False
        self._refused_at: int | None = None
        """The offset at which the master sent a damaged record, on an earlier connection."""
        self._repair_failed = ""
        """Why the log is still damaged after a repair."""
        self.source = source
        self._heard_at: float | None = None
        self.client_address = ""
        """The address of the master for clients, once it has named one."""
        self._task = asyncio.create_task(self._run())

    def look(self) -> Source:
        """Returns `source` with the time at which the master was last heard."""
        if self._follower is not None:
            self._heard(self._follower.figures().silent_ms)
        return replace(self.source, heard_at=self._heard_at)

    def _heard(self, silent_ms: int = 0) -> None:
        heard_at = self._clock.now() - silent_ms / 1000
        self._heard_at = heard_at if self._heard_at is None else max(heard_at, self._heard_at)

    @property
    def complaint(self) -> str:
        """Why the link failed; empty while it works."""
        return self._complaint

    @property
    def confirmed_offset(self) -> int:
        """The offset up to which the master has confirmed its log, as far as this replica knows."""
        return self._follower.figures().confirmed_offset if self._follower is not None else 0

    @property
    def is_caught_up(self) -> bool:
        """Whether this log has everything that the master's has, as far as this replica knows."""
        if self._follower is None:
            return False
        return self._own.store.end_offset() >= self._follower.figures().master_end_offset

    async def stop(self) -> None:
        """Ends the link. Nothing is appended or acknowledged through it after this returns."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._disconnect()

    async def compare_below(self, end: int) -> None:
        """Compares both logs just below an end and notes the result in `source`."""
        socket, source = self._socket, self.source
        if socket is None or source.state is not SourceState.CONNECTED:
            return
        store, refused_at = self._own.store, self._refused_at
        try:
            compared = await asyncio.to_thread(
                compare_logs, socket, store, end, source.log_start, refused_at, can_verify=self._can_verify
            )
        except (LinkRefused, OSError) as error:
            self._lose(str(error))
            return
        if refused_at is not None and compared.peer_damage == ():
            # Something on the way changed the bytes.
            self._refused_at = None
        if not compared.agrees or compared.own_damage:
            _log.warning(
                "below %d the logs of this node and of node %d %s; damaged here: %s, there: %s",
                *(end, shown_id(source.node_id), "agree" if compared.agrees else "differ"),
                *(list(compared.own_damage), _listed(compared.peer_damage)),
            )
        self._set(replace(source, compared=replace(compared, complaint=self._repair_failed)))

    async def compare_pieces(self, pieces: Sequence[VerifiedPiece]) -> int | None:
        """Compares pieces of the log on a short connection of its own, while this one streams.

        Returns the first offset at which the logs differ although both verify. Raises LinkRefused or OSError.
        """
        source, own = self.source, self._own
        if source.state is not SourceState.STREAMING:
            raise LinkRefused("this node does not follow its master")
        log = OwnLog(source.epoch, own.history.pairs(), own.store.end_offset())
        return await asyncio.to_thread(self._compare_pieces, log, own.store, pieces)

    def _compare_pieces(self, log: OwnLog, store: Store, pieces: Sequence[VerifiedPiece]) -> int | None:
        socket = LinkSocket.connect(self._address, self._options.handshake_timeout_ms)
        try:
            welcome = introduce(socket, self._own.identity, self._options.key, log)
            if not isinstance(welcome, Welcome) or not welcome.verifies or welcome.epoch != log.epoch:
                raise LinkRefused("the master cannot compare its log now")
            return compare_pieces(socket, store, pieces)
        finally:
            socket.close()

    async def fetch_sound_bytes(self, ranges: Sequence[Range]) -> list[SoundBytes]:
        """Copies damaged ranges aside and returns the master's bytes for them; nothing if that fails."""
        socket, own, compared = self._socket, self._own, self.source.compared
        if socket is None or compared is None:
            return []
        try:
            return await asyncio.to_thread(fetch_sound_bytes, socket, own.store, ranges, own.file_bytes)
        except StoreFailure as error:
            complaint = f"the damaged bytes cannot be copied aside: {error}"
            self._set(replace(self.source, compared=replace(compared, complaint=complaint)))
        except (LinkRefused, OSError) as error:
            self._lose(str(error))
        return []

    def repaired(self, failure: str) -> None:
        """Notes the end of a repair; the logs are compared anew. A repair that failed is not tried again."""
        self._repair_failed = failure
        self._set(replace(self.source, compared=None))

    async def stream(self, end: int) -> None:
        """Asks for the log from this end on, which must be the end of the own log."""
        socket, own = self._socket, self._own
        if socket is None or self.source.state is not SourceState.CONNECTED:
            return
        if end != own.store.end_offset():
            self._lose(f"the log ends at {own.store.end_offset()} instead of {end}")
            return
        point = own.journal.point
        state = (point.epoch, point.version)
        try:
            await asyncio.to_thread(ask_to_follow, socket, end, state)
            self._follower = ReplicationFollower(
                own.store, self._options.link, socket, self.source.epoch, state
            )
        except (LinkRefused, OSError) as error:
            self._lose(str(error))
            return
        self._intake = StateIntake(own.journal)
        asyncio.get_running_loop().add_reader(self._follower.fileno(), self._noticed)
        self._streaming.set()
        self._complaint = ""
        self._set(Source(self.source.node_id, self.source.epoch, SourceState.STREAMING))
        _log.info("follows node %d from %d on", shown_id(self.source.node_id), end)

    # ---- the connection

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
                await self._follow()
            except ConnectionRefusedError:
                since = self.source.refused_since
                now = self._clock.now()
                refused = SourceState.REFUSED
                self._set(
                    Source(self.source.node_id, self.source.epoch, refused, now if since is None else since)
                )
            except (LinkRefused, HistoryInvalid, StateInvalid, OSError) as error:
                self._complain(str(error) or type(error).__name__)
                self._set(Source(self.source.node_id, self.source.epoch, SourceState.CONNECTING))
            finally:
                await self._disconnect()
            await self._pause()

    async def _pause(self) -> None:
        """Waits before the next try. A store without room would lose each connection at the first record, but
        it must connect now and then, because its master tells it which old files may be deleted."""
        ends_at = self._clock.now() + FULL_RETRY_S
        await asyncio.sleep(RETRY_S)
        while self._own.store.is_full() and self._clock.now() < ends_at:
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> None:
        """Connects and exchanges the first words; returns when the master waits for the stream's start."""
        own, timeout_ms = self._own, self._options.handshake_timeout_ms
        self._lost.clear()
        self._streaming.clear()
        socket = await asyncio.to_thread(LinkSocket.connect, self._address, timeout_ms)
        self._socket = socket
        log = OwnLog(self.source.epoch, own.history.pairs(), own.store.end_offset())
        answer = await asyncio.to_thread(introduce, socket, own.identity, self._options.key, log)
        if isinstance(answer, SendTail):
            await self._send_tail(socket, answer)
            raise LinkRefused("the master fetched the records that it lacked")
        self._heard()
        self._check(answer)
        self._can_verify = answer.verifies
        self.client_address = answer.client_address
        self._set(
            Source(
                self.source.node_id,
                answer.epoch,
                SourceState.CONNECTED,
                None,
                History.of(answer.epochs),
                answer.start_offset,
                answer.end_offset,
            )
        )

    def _check(self, welcome: Welcome) -> None:
        wanted = self.source.epoch
        if welcome.epoch < wanted or (welcome.epoch > wanted and not self._is_fixed):
            raise LinkRefused(f"the node serves epoch {welcome.epoch}, but {wanted} is wanted")
        if welcome.file_bytes != self._own.file_bytes:
            raise LinkRefused(
                f"the master's log files have {welcome.file_bytes} bytes, those of this node "
                f"{self._own.file_bytes}",
                hint="give every node of the group the same commit_log_file_bytes",
            )

    async def _follow(self) -> None:
        """Waits for the stream and applies its control state until the link is lost."""
        timeout_s = self._options.handshake_timeout_ms / 1000
        async with asyncio.timeout(timeout_s):
            await _first(self._streaming, self._lost)
        while not self._lost.is_set():
            await _first(self._state_came, self._lost)
            self._state_came.clear()
            await self._take_state()

    async def _take_state(self) -> None:
        follower, intake = self._follower, self._intake
        if follower is None or intake is None or not (messages := follower.take_state()):
            return
        replaced = await intake.take(messages)
        point = self._own.journal.point
        follower.acknowledge_state(point.epoch, point.version)
        if replaced:
            await self._replaced(replaced)

    def _noticed(self) -> None:
        follower = self._follower
        if follower is None:
            return
        self._state_came.set()
        figures = follower.figures()
        if (reason := figures.closed) is not None:
            self._refused_at = figures.refused_offset
            asyncio.get_running_loop().remove_reader(follower.fileno())
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._complain(reason)
        self._lost.set()
        self._set(Source(self.source.node_id, self.source.epoch, SourceState.CONNECTING))

    async def _disconnect(self) -> None:
        socket, self._socket = self._socket, None
        self.look()
        follower, self._follower = self._follower, None
        if follower is not None:
            asyncio.get_running_loop().remove_reader(follower.fileno())
            await asyncio.to_thread(follower.stop)
        if socket is not None:
            socket.close()

    async def _send_tail(self, socket: LinkSocket, asked: SendTail) -> None:
        """Sends a starting master what it lacks, and returns when it has all of it."""
        own = self._own
        end = own.store.end_offset()
        _log.warning("sends its master the log from %d to %d", asked.from_offset, end)
        hub = ReplicationHub(own.store, self._options.link, own.history.pairs())
        feed = StateFeed(own.journal, hub, self._options.link.state_bytes_max)
        try:
            hub.require([1])
            feed.begin(hub.add_link(socket, 1, asked.from_offset), Point(*asked.state))
            while any(link.closed is None for link in hub.links()):
                await asyncio.sleep(TAIL_POLL_S)
        finally:
            feed.stop()
            await asyncio.to_thread(hub.stop)

    # ---- what others see

    def _set(self, source: Source) -> None:
        self.source = source
        self._changed()

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("does not follow node %d: %s", shown_id(self.source.node_id), complaint)


def _listed(ranges: Sequence[Range] | None) -> str:
    return "unknown" if ranges is None else str(list(ranges))


async def _first(*events: asyncio.Event) -> None:
    """Returns when one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
