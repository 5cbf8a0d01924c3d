"""One node of a group: implements `metaq.ha.node.Node` over a broker's store, journal and links."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from metaq._core import LinkSocket, ReplicationFollower, Store, StoreFailure, rewrite_log, truncate_store
from metaq.broker.replication.log_repair import PIECE_BYTES_MAX, VERIFY_BYTES_MAX, SoundBytes
from metaq.broker.replication.options import ReplicationOptions
from metaq.broker.replication.replica_links import ReplicaLinks
from metaq.broker.replication.source_link import SourceLink
from metaq.broker.replication.state_stream import StateIntake
from metaq.ha.epochs import History, HistoryInvalid
from metaq.ha.group_record import Member
from metaq.ha.handshake import Follow, Identity, LinkRefused, OwnLog, Refused, SendTail, Welcome
from metaq.ha.node import Clock, NodeFacts, Offer, Opened
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk, Range, SendGate, Source, SourceState
from metaq.journal.journal import Entry, Journal
from metaq.settings import StoreSettings

_log = logging.getLogger(__name__)

HANGING_AFTER_MS = 1_000
"""A sync that takes longer than this makes the disk count as hanging."""
OFFER_WAIT_S = 5.0
"""How long a replica that offers its log waits for the decision of a starting master."""
TAIL_POLL_S = 0.01
ADMIT_AFTER_S = 0.25
"""How long a new master that refuses messages waits before it lets replicas in."""
HOLD_MS_MAX = 8_000
"""How long requests are held during a planned switch. It is longer than a switch may take."""
BETWEEN_MASTERS_MS_MAX = 3_000
"""How long a replica that has lost its master holds requests for the next one before it refuses them."""


class Roles(Protocol):
    """The broker, as far as its roles are concerned."""

    @property
    def store(self) -> Store: ...
    async def become_master(self, epoch: int) -> None: ...
    async def become_replica(self) -> None: ...
    async def step_down(self, *, deposed: bool = False, leaves: bool = False) -> None: ...
    async def reopen_store(self, change: Callable[[StoreSettings], None]) -> None: ...
    async def hold_deliveries(self) -> None: ...
    async def drain_state(self) -> None: ...
    async def follow_state(self, entries: Sequence[Entry]) -> None: ...
    def hold_requests(self, timeout_ms: int) -> None: ...
    def release_requests(self) -> None: ...
    def relay_to(self, address: str | None) -> None: ...


class GroupNode:
    """The store, the stream and the role of one broker. Its methods belong to the event loop, except
    `welcome` and the looks at the log, which handshakes call from their threads."""

    def __init__(
        self,
        roles: Roles,
        journal: Journal,
        options: ReplicationOptions,
        store_settings: StoreSettings,
        cluster: str,
        group: str,
        client_address: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._roles = roles
        self._options = options
        self._store_settings = store_settings
        self._cluster = cluster
        self._group = group
        self._client_address = client_address
        self._clock = clock
        self._wake: Callable[[], None] = lambda: None
        self._member = Member(options.node_id, "none")
        self._history = History()
        self._epoch = 0
        self._links: ReplicaLinks | None = None
        self._link: SourceLink | None = None
        self.journal = journal
        self._opened = self._look_at_store()
        self._lock = threading.Lock()
        """Guards what handshakes see and change from their threads."""
        self._peer_epoch = 0
        self._offers: dict[Member, tuple[Offer, Future[SendTail | None]]] = {}
        self._serves = False
        self._relays = False
        self._fetched = asyncio.Event()
        self.on_repair: Callable[[int], None] = lambda _: None
        """Is called with the number of damaged ranges after each repair."""
        self.file_bytes = store_settings.commit_log_file_bytes

    # ---- what links and handshakes ask

    @property
    def store(self) -> Store:
        """The store of now; it is opened anew when its log is cut."""
        return self._roles.store

    @property
    def identity(self) -> Identity:
        """How this node introduces itself."""
        return Identity(self._cluster, self._group, self._member.id, self._member.incarnation)

    @property
    def history(self) -> History:
        """The epochs of the log."""
        return self._history

    @property
    def epoch(self) -> int:
        """The epoch that this node serves as master, otherwise 0."""
        return self._epoch

    @property
    def links(self) -> ReplicaLinks | None:
        """The links to replicas, while this node is master."""
        return self._links

    @property
    def source_link(self) -> SourceLink | None:
        """The link to the master, while this node follows one."""
        return self._link

    def checksum(self, from_offset: int, to_offset: int) -> int | None:
        """Returns the checksum of a range of the log; None if it is not all there, or too much at once."""
        if not 0 <= from_offset <= to_offset <= from_offset + VERIFY_BYTES_MAX:
            return None
        return self.store.raw_checksum(from_offset, to_offset)

    def damaged_ranges(self, from_offset: int, to_offset: int) -> list[Range] | None:
        """Verifies a range of the log for a replica, and learns of the damage itself.

        None if the log lacks some of it, or if that is too much for one request.
        """
        if not 0 <= from_offset <= to_offset <= from_offset + VERIFY_BYTES_MAX:
            return None
        damaged = self.store.damaged_ranges(from_offset, to_offset)
        if damaged:
            _log.error("a replica asked, and the log of this node is damaged in %s", damaged)
            self._wake_later()
        return damaged

    def piece(self, from_offset: int, to_offset: int) -> bytes | None:
        """Returns the first bytes of a range of the log, None if it does not have them."""
        if not 0 <= from_offset < to_offset:
            return None
        return self.store.log_bytes(from_offset, min(to_offset - from_offset, PIECE_BYTES_MAX))

    def welcome(self, member: Member, log: OwnLog) -> Welcome | Refused | SendTail:
        """Decides about a replica that has proved who it is. A starting fixed master may take its time."""
        fixed = self._options.fixed
        if fixed is not None and member.id not in fixed.replica_ids:
            return Refused(f"node {member.id} is not among the replica_ids of this master")
        if not self._serves and fixed is not None and self._options.broker_id == 0:
            asked = self._consider_offer(member, log)
            if asked is not None:
                return asked
        with self._lock:
            epoch = self._epoch
            if log.epoch > epoch:
                self._peer_epoch = max(self._peer_epoch, log.epoch)
        if log.epoch > epoch:
            self._wake_later()
        if not self._serves:
            return Refused("this node is not a master now")
        if log.epoch != epoch and self._options.register is not None:
            return Refused(f"this node serves epoch {epoch}, and the replica wants {log.epoch}")
        return Welcome(
            epoch=epoch,
            epochs=self._history.pairs(),
            start_offset=self.store.start_offset(),
            end_offset=self.store.end_offset(),
            file_bytes=self.file_bytes,
            client_address=self._client_address(),
            verifies=True,
        )

    def _consider_offer(self, member: Member, log: OwnLog) -> Refused | SendTail | None:
        """Shows a replica's log to the decisions and waits for what they make of it; None: serve it."""
        try:
            offer = Offer(History.of(log.epochs), log.end_offset)
        except HistoryInvalid as error:
            return Refused(str(error))
        decided: Future[SendTail | None] = Future()
        with self._lock:
            self._offers[member] = (offer, decided)
        self._wake_later()
        try:
            return decided.result(OFFER_WAIT_S)
        except FutureTimeoutError:
            return Refused("this node does not serve yet")
        finally:
            with self._lock:
                if self._offers.get(member, (None, None))[1] is decided:
                    del self._offers[member]

    async def admitted(self, socket: LinkSocket, member: Member, request: Follow | SendTail) -> None:
        """Takes over the socket of a replica after its handshake. Raises LinkRefused or OSError."""
        if isinstance(request, SendTail):
            await self._receive_tail(socket, request)
        elif self._links is None:
            raise LinkRefused("this node is no longer master")
        elif not 0 <= request.from_offset <= self.store.end_offset():
            raise LinkRefused(f"node {member.id} wants offset {request.from_offset}, which is not in the log")
        else:
            self._links.add(socket, member, request)

    # ---- facts

    def on_change(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()

    def _wake_later(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._wake())

    def opened(self) -> Opened:
        return self._opened

    def _look_at_store(self) -> Opened:
        found, state = self.store.opened(), self.journal.found
        return Opened(
            boot_id=found.boot_id,
            flush_is_sync=self._store_settings.flush == "sync",
            log_end=found.log_end,
            flushed_mark=found.flushed_mark,
            stopped_cleanly=found.stopped_cleanly,
            state_version=state.point,
            state_mark=state.mark,
        )

    def facts(self) -> NodeFacts:
        store, point = self.store, self.journal.point
        with self._lock:
            offers = {member: offer for member, (offer, _) in self._offers.items()}
            peer_epoch = self._peer_epoch
        damage = store.known_damage()
        return NodeFacts(
            appended_end=store.end_offset(),
            flushed_end=store.held_offset(),
            confirmed_end=store.confirmed_offset(),
            state_version=(point.epoch, point.version),
            disk=self._health(),
            links=self._links.look() if self._links is not None else {},
            offers=offers,
            source=self._link.look() if self._link is not None else None,
            peer_epoch=peer_epoch,
            damaged_at=damage[0][0] if damage else None,
        )

    def _health(self) -> Disk:
        if self.store.is_log_cut():
            return Disk.CUT
        if self.store.sync_failed() or self.journal.has_failed:
            return Disk.FAILED
        if self.store.sync_age_ms() > HANGING_AFTER_MS:
            return Disk.HANGING
        return Disk.FULL if self.store.is_full() else Disk.HEALTHY

    # ---- identity

    async def identify(self, member: Member) -> None:
        await self._leave_master()
        self._member = member
        self.store.accept_flushed_mark()
        await self.journal.accept_mark()

    def set_history(self, history: History) -> None:
        self._history = history

    # ---- the replica's role

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        await self._leave_master()
        self.store.acknowledge_until(None)
        # The store shows what was confirmed and nothing else, so it may be read before the link is up.
        await self._roles.become_replica()
        self._link = SourceLink(
            self,
            self._options,
            self._clock,
            Source(master_id, epoch, SourceState.CONNECTING),
            address,
            self._source_changed,
            self._state_replaced,
        )

    async def compare_below(self, end: int) -> None:
        if self._link is not None:
            await self._link.compare_below(end)

    async def stream(self, end: int) -> None:
        if self._link is None:
            return
        await self._link.stream(end)
        if self._link is not None and self._link.source.state is SourceState.STREAMING:
            self._relays = True
            self._roles.relay_to(self._link.client_address)
            self._roles.release_requests()

    async def stop_following(self) -> None:
        await self._leave_master()
        await asyncio.to_thread(self.store.sync)

    async def truncate(self, end: int) -> None:
        _log.warning("cuts its log at %d; the tail is kept in the folder cut", end)
        await self._reopen_store(lambda settings: truncate_store(settings, cut_at=end))

    async def start_over(self, log_start: int) -> None:
        _log.warning("drops its log and starts over at %d", log_start)
        await self._reopen_store(lambda settings: truncate_store(settings, start_over_at=log_start))

    async def reopen(self) -> None:
        await self._leave_master()
        await self._reopen_store(lambda _: None)

    async def check_damage(self, physical_offset: int) -> None:
        await asyncio.to_thread(self.store.damaged_ranges, physical_offset, physical_offset + 1)

    async def repair(self, ranges: Sequence[Range]) -> None:
        link = self._link
        if link is None:
            return
        fetched = await link.fetch_sound_bytes(ranges)
        if not fetched:
            return
        failure = await self._rewrite(fetched)
        damaged = [
            found
            for part in fetched
            for found in self.store.known_damage()
            if found[0] <= part.physical_offset < found[1]
        ]
        if not failure and damaged:
            failure = f"the disk does not keep what was written at {damaged[0][0]}"
        if not failure:
            _log.warning("repaired its log; the folder cut has the damaged bytes of %s", list(ranges))
            self.on_repair(len(fetched))
        link.repaired(failure)

    async def _rewrite(self, fetched: Sequence[SoundBytes]) -> str:
        """Writes sound bytes into the log, and returns why that failed."""
        failures: list[str] = []
        lacking = [await asyncio.to_thread(self.store.lacks_entries, part.data) for part in fetched]

        def rewrite(settings: StoreSettings) -> None:
            for part, rebuild in zip(fetched, lacking, strict=True):
                try:
                    rewrite_log(settings, part.physical_offset, part.data, rebuild)
                except StoreFailure as error:
                    failures.append(str(error))

        await self._reopen_store(rewrite)
        return "; ".join(failures)

    async def _reopen_store(self, change: Callable[[StoreSettings], None]) -> None:
        """Changes the closed store. What was known to be damaged before is looked at again."""
        damage = self.store.known_damage()
        await self._roles.reopen_store(change)
        for start, end in damage:
            await asyncio.to_thread(self.store.damaged_ranges, start, min(end, self.store.end_offset()))

    def _source_changed(self) -> None:
        link = self._link
        if link is not None and link.source.state is not SourceState.STREAMING:
            self._stop_relaying()
        self._wake()

    def _stop_relaying(self) -> None:
        """Holds requests that only a master can handle. With a register the next one is known soon, and the
        clients notice nothing but a pause."""
        if self._relays and self._options.register is not None:
            self._roles.hold_requests(BETWEEN_MASTERS_MS_MAX)
        self._relays = False
        self._roles.relay_to(None)

    async def _state_replaced(self, entries: Sequence[Entry]) -> None:
        _log.info("has taken over the control state of its master")
        await self._roles.follow_state(entries)

    async def _leave_master(self) -> None:
        link, self._link = self._link, None
        self._stop_relaying()
        if link is not None:
            await link.stop()

    # ---- a fixed master that starts

    async def fetch_tail(self, member: Member, start: int) -> None:
        with self._lock:
            found = self._offers.get(member)
        if found is None:
            return
        offer, decided = found
        point = self.journal.point
        self._fetched.clear()
        decided.set_result(SendTail(start, (point.epoch, point.version)))
        try:
            async with asyncio.timeout(self._options.handshake_timeout_ms / 1000):
                await self._fetched.wait()
        except TimeoutError:
            _log.warning("node %d did not send its log up to %d", member.id, offer.log_end)

    async def _receive_tail(self, socket: LinkSocket, request: SendTail) -> None:
        """Copies a replica's log and control state until the replica has nothing more to send."""
        store = self.store
        follower = ReplicationFollower(
            store, self._options.link, socket, self._history.last_epoch, request.state
        )
        intake = StateIntake(self.journal)
        try:
            while (figures := follower.figures()).closed is None:
                await intake.take(follower.take_state())
                # The log may be ahead of control state that is sent in many parts.
                if 0 < figures.master_end_offset <= store.held_offset() and not intake.is_replacing:
                    break
                await asyncio.sleep(TAIL_POLL_S)
        finally:
            await asyncio.to_thread(follower.stop)
        await asyncio.to_thread(store.sync)
        _log.info("has fetched the log up to %d", store.end_offset())
        self._fetched.set()
        self._wake()

    # ---- the master's role

    async def become_master(self, epoch: int, required: frozenset[Member]) -> None:
        await self._leave_master()
        self.store.fence("[ROLE] this broker has just become master and is not ready yet")
        if self._options.ha.replicas is ReplicaMode.ASYNC:
            # No lease yet, so nothing is acknowledged.
            self.store.acknowledge_until(0)
        self.journal.begin_epoch(epoch)
        links = ReplicaLinks(
            self.store, self.journal, self._options.link, self._history, self._member, self._clock, self._wake
        )
        links.require(required)
        self._links = links
        with self._lock:
            self._epoch = epoch
        self.store.use_own_retention()
        await self._roles.become_master(epoch)
        # Replicas that follow relay requests here, so they are let in once messages are accepted; or a little
        # later, because messages may be refused until they follow.
        self._loop.call_later(ADMIT_AFTER_S, self._admit_replicas, epoch)

    def _admit_replicas(self, epoch: int) -> None:
        with self._lock:
            if self._serves or self._epoch != epoch:
                return
            self._serves = True
            offers = list(self._offers.values())
        for _, decided in offers:
            if not decided.done():
                decided.set_result(None)

    async def step_down(self) -> None:
        links = self._links
        with self._lock:
            self._links, self._epoch, self._serves = None, 0, False
        self.store.fence("[ROLE] this broker is no longer master: ask another broker of its group")
        if links is not None:
            await links.stop()
        await self._roles.step_down(deposed=True)

    def set_required(self, members: frozenset[Member]) -> None:
        if self._links is not None:
            self._links.require(members)

    async def set_gate(self, gate: SendGate, reason: str) -> None:
        match gate:
            case SendGate.OPEN:
                self.store.lift_fence()
                self._roles.release_requests()
                self._admit_replicas(self._epoch)
            case SendGate.REFUSE:
                self.store.fence(f"[REPLICAS] the master takes no messages now: {reason}")
                self._roles.release_requests()
            case SendGate.HOLD:
                self._roles.hold_requests(HOLD_MS_MAX)
                # Before the fence: a delivery that it refused half-way would not be in the progress.
                await self._roles.hold_deliveries()
                self.store.fence("[ROLE] this broker hands its mastership over")
                await self._roles.drain_state()

    def acknowledge_until(self, deadline: float) -> None:
        if self._options.ha.replicas is ReplicaMode.ASYNC:
            self.store.acknowledge_until(int(deadline * 1000))

    async def close(self) -> None:
        """Ends all links; for the end of the process."""
        self._relays = False
        await self._leave_master()
        links = self._links
        with self._lock:
            self._links, self._serves = None, False
        if links is not None:
            await links.stop()
