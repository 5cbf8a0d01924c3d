"""The store and the replication stream of one simulated process; implements `metaq.ha.node.Node`.

A replica connects, shows its identity and the epoch that it follows, and gets the master's history. It then
cuts its log where needed and names the end from which it wants the log:

    replica → master   hello(member, epoch) · compare(end) · verify(end) · repair(places) · start(end) ·
                       ack(epoch, flushed, state)
    master → replica   welcome(epoch, history, log start, log end) · compared(end, records) ·
                       verified(end, records, places) · repaired(records) · refuse(epoch) ·
                       log(epoch, start, records, confirmed) · beat(epoch, confirmed, state)

Records are damaged unnoticed. A node learns of that when it verifies its log, or when a consumer reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from metaq.ha.epochs import History
from metaq.ha.group_record import Member
from metaq.ha.node import LinkFacts, NodeFacts, Offer, Opened
from metaq.ha.settings import ReplicaMode
from metaq.ha.view import Disk as DiskHealth
from metaq.ha.view import SendGate, Source, SourceState, StateVersion
from tests.simulation.control_state import ControlState
from tests.simulation.damaged_log import DamagedLog

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.network import Connection

BEAT_S = 0.25
SILENCE_S = 3.0
RETRY_S = 0.1
HANGING_AFTER_S = 1.0
BATCH = 16

Reply = Callable[[str, int, int], None]
"""Takes a code, a queue offset and an epoch."""


@dataclass
class _Replica:
    """A connection from a replica, at its master."""

    connection: Connection
    member: Member
    contact_at: float
    streaming: bool = False
    sent: int = 0
    flushed: int = 0
    state: StateVersion = (0, 0)


class SimNode(DamagedLog):
    """One process's store and stream."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.member = Member(host.name, "unknown")
        self.is_master = False
        self.epoch = 0
        self.history = History()
        self.confirmed = host.disk.log_start
        self.required: frozenset[Member] = frozenset()
        self.gate = SendGate.REFUSE
        self.deadline = float("-inf")
        self.peer_epoch = 0
        self.replicas: dict[Connection, _Replica] = {}
        self.offers: dict[Connection, tuple[Member, Offer]] = {}
        self._attempt = 0
        self._master_contact_at = 0.0
        self._heard_at: float | None = None
        self._following_epoch = 0
        self._waiting: deque[tuple[int, int, Reply]] = deque()
        self._held: list[tuple[int, Reply]] = []
        self._pumping = False
        self._flushing_since: float | None = None
        self._failed = False
        disk, sync = host.disk, self.world.flush_is_sync
        self._opened = Opened(
            *(str(disk.boot), sync, disk.end, disk.mark, disk.stopped_cleanly),
            *(disk.state_version, disk.state_mark),
        )
        self.state = ControlState(host)
        disk.sync(disk.end)
        self.flushed = disk.end

    def start(self) -> None:
        self.host.after(BEAT_S, self._regularly)

    # ---- facts

    def on_change(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def opened(self) -> Opened:
        return self._opened

    def facts(self) -> NodeFacts:
        links = {
            replica.member: LinkFacts(replica.member, replica.flushed, replica.state, replica.contact_at)
            for replica in self.replicas.values()
            if replica.streaming
        }
        return NodeFacts(
            appended_end=self.disk.end,
            flushed_end=self.flushed,
            confirmed_end=self.confirmed,
            state_version=self.state.version,
            disk=self._health(),
            links=links,
            offers=dict(self.offers.values()),
            source=self._heard_source(),
            peer_epoch=self.peer_epoch,
            damaged_at=self.damaged_at(),
        )

    def _heard_source(self) -> Source | None:
        return replace(self.source, heard_at=self._heard_at) if self.source is not None else None

    def _health(self) -> DiskHealth:
        if self._failed:
            return DiskHealth.FAILED
        since = self._flushing_since
        if since is not None and self.host.now() - since >= HANGING_AFTER_S:
            return DiskHealth.HANGING
        return DiskHealth.FULL if self.disk.is_full else DiskHealth.HEALTHY

    # ---- roles

    async def identify(self, member: Member) -> None:
        self.member = member
        # From now on, a lower end belongs to the new incarnation.
        self.disk.mark = min(self.disk.mark, self.disk.end)
        self.disk.synced = min(self.disk.synced, self.disk.end)
        self.state.accept_mark()
        self._leave_master()

    async def stop_following(self) -> None:
        self._leave_master()
        await self._sync_all()

    def set_history(self, history: History) -> None:
        self.history = history

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        self._leave_master()
        self.world.oracle.took_role(self.host.name, self.disk.log())
        self._following_epoch = epoch
        self.source = Source(master_id, epoch, SourceState.CONNECTING)
        self._heard_at = None
        self._connect()

    async def become_master(self, epoch: int, required: frozenset[Member]) -> None:
        self._leave_master()
        self.is_master, self.epoch = True, epoch
        self._refuse_offers()
        self.gate, self.required = SendGate.REFUSE, required
        self.deadline = float("-inf")
        self.world.note(
            f"node {self.host.name} is master of epoch {epoch} from {self.disk.end} on, with "
            f"{sorted(map(str, required))}"
        )
        self.world.oracle.took_role(self.host.name, self.disk.log())
        self.world.oracle.became_master(self.host.name, epoch)
        self._check_election(required)
        self._confirm()

    async def step_down(self) -> None:
        self.world.note(f"node {self.host.name} steps down from epoch {self.epoch}")
        self.is_master = False
        self.gate, self.required = SendGate.REFUSE, frozenset()
        for replica in list(self.replicas.values()):
            replica.connection.close(self.host)
        self.replicas.clear()
        waiting, self._waiting = self._waiting, deque()
        for _, _, reply in waiting:
            reply("unknown", 0, 0)
        held, self._held = self._held, []
        for _, reply in held:
            reply("refused", 0, 0)

    def set_required(self, members: frozenset[Member]) -> None:
        self.required = members
        self._confirm()

    async def set_gate(self, gate: SendGate, reason: str) -> None:
        self.gate = gate
        if gate is not SendGate.HOLD:
            held, self._held = self._held, []
            for record, reply in held:
                self.send(record, reply)

    def acknowledge_until(self, deadline: float) -> None:
        self.deadline = deadline

    # ---- the disk

    def _flush(self) -> None:
        if self.world.flush_is_sync:
            if self._flushing_since is None and self.disk.end > self.flushed:
                self._flushing_since = self.host.now()
                sync_s = 0.0005 + self.world.rng.random() * 0.004 * self.disk.slowness
                self.host.after(sync_s, self._flush_returned, self.disk.end)
        else:
            self.flushed = self.disk.end
            self.disk.note_flushed(self.flushed)
            self._progressed()

    def _flush_returned(self, end: int) -> None:
        if self.disk.hangs:
            self.host.after(0.1, self._flush_returned, end)
            return
        if self.disk.fails:
            self._failed = True
            self._wake()
            return
        self._flushing_since = None
        if "fsync_dropped" not in self.world.mutants:
            self.disk.sync(min(end, self.disk.end))
        self.flushed = max(self.flushed, min(end, self.disk.end))
        self.disk.note_flushed(self.flushed)
        self._progressed()
        self._flush()

    async def _sync_all(self) -> None:
        """Returns when everything appended is flushed. Never, if the disk hangs or failed."""
        while self.flushed < self.disk.end or self.disk.hangs or self._failed:
            self._flush()
            await self.host.sleep(0.001)

    def _progressed(self) -> None:
        if self.is_master:
            self._confirm()
        else:
            self._acknowledge()

    async def reopen(self) -> None:
        self._leave_master()
        self._failed = False

    async def truncate(self, end: int) -> None:
        await self._sync_all()
        self.world.note(f"node {self.host.name} cuts its log from {self.disk.end} to {end}")
        self.world.oracle.truncated(self.host.name, end, self.confirmed)
        self.flushed = min(self.flushed, end)
        tail = [record for record in self.disk.places[end:] if record > 0]
        self._known_damage = {place for place in self._known_damage if place < end}
        while True:
            self.world.truncation_step(self.host)
            await self.host.sleep(0.002)
            more = self.disk.cut_step(end)
            self.world.oracle.cut(self.host.name, tail)
            if not more:
                break
        self.world.truncation_step(self.host)

    async def start_over(self, log_start: int) -> None:
        self.world.note(f"node {self.host.name} drops its log of {self.disk.end} records")
        await self.host.sleep(0.002)
        self.disk.start_over(log_start)
        self._known_damage.clear()
        self.flushed = self.confirmed = log_start

    # ---- the replica's end

    def _leave_master(self) -> None:
        self._attempt += 1
        self.source = None
        if self._to_master is not None:
            self._to_master.close(self.host)
            self._to_master = None

    def _connect(self) -> None:
        source, attempt = self.source, self._attempt
        if source is None:
            return
        master = self.world.hosts[source.node_id]

        def opened(connection: Connection) -> None:
            if attempt != self._attempt:
                connection.close(self.host)
                return
            self._to_master = connection
            self._master_contact_at = self.host.now()
            side = connection.side(self.host)
            if connection.closed[side]:
                lost()
                return
            connection.receivers[side] = lambda message: self._from_master(connection, message)
            connection.closers[side] = lost
            self.source = Source(source.node_id, source.epoch, SourceState.CONNECTING)
            hello = ("hello", self.member, self._following_epoch, self.history, self.disk.end)
            connection.send(self.host, hello)

        def failed(refused: bool) -> None:
            if attempt != self._attempt or self.source is None:
                return
            since = self.source.refused_since
            if refused:
                since = since if since is not None else self.host.now()
                self.source = Source(source.node_id, source.epoch, SourceState.REFUSED, since)
            else:
                self.source = Source(source.node_id, source.epoch, SourceState.CONNECTING)
            self._wake()
            self.host.after(RETRY_S, self._connect_again, attempt)

        def lost() -> None:
            if attempt == self._attempt:
                self._lost_master()

        self.world.network.connect(self.host, master, opened, failed)

    def _connect_again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._connect()

    def _lost_master(self) -> None:
        """Tries again after the connection broke."""
        source = self.source
        if self._to_master is not None:
            self._to_master.close(self.host)
            self._to_master = None
        if source is not None:
            self._attempt += 1
            self.source = Source(source.node_id, source.epoch, SourceState.CONNECTING)
            self.host.after(RETRY_S / 2, self._connect_again, self._attempt)
            self._wake()

    def _from_master(self, connection: Connection, message: tuple[Any, ...]) -> None:
        if connection is not self._to_master or self.source is None:
            return
        self._master_contact_at = self._heard_at = self.host.now()
        kind, *values = message
        if kind == "log":
            self._receive_log(*values)
        elif kind == "beat":
            epoch, confirmed, state = values
            # Before the stream has started, this log may still have a tail that the master's has not.
            if epoch == self._following_epoch and self.source.state is SourceState.STREAMING:
                self._learn_confirmed(confirmed)
                self.state.take(state)
        elif kind == "welcome":
            epoch, history, log_start, log_end = values
            right = epoch >= self._following_epoch if self.world.fixed else epoch == self._following_epoch
            if not right and "epoch_check_skipped" not in self.world.mutants:
                self._lost_master()
                return
            if self.world.fixed:
                self._following_epoch = epoch
            self.source = Source(
                self.source.node_id,
                epoch if self.world.fixed else self.source.epoch,
                SourceState.CONNECTED,
                None,
                history,
                log_start,
                log_end,
            )
            self._wake()
        elif kind == "compared":
            self._compared(connection, *values)
        elif kind == "verified":
            self._verified(*values)
        elif kind == "repaired":
            (self._fetched,) = values
        elif kind == "fetch":
            (start,) = values
            tail = self.disk.places[start : self.flushed]
            connection.send(self.host, ("tail", start, tail, self.state.entries))
        elif kind == "refuse":
            self._lost_master()

    async def compare_below(self, end: int) -> None:
        connection = self._to_master
        if connection is None:
            return
        connection.send(self.host, ("compare", end))
        while (
            connection is self._to_master
            and self.source is not None
            and (self.source.compared is None or self.source.compared.end != end)
        ):
            await self.host.sleep(0.01)

    async def stream(self, end: int) -> None:
        source, connection = self.source, self._to_master
        if source is None or connection is None or source.state is not SourceState.CONNECTED:
            return
        if end != self.disk.end:
            self._lost_master()
            return
        self.source = Source(source.node_id, source.epoch, SourceState.STREAMING)
        connection.send(self.host, ("start", self.disk.end))
        self._acknowledge()

    def _receive_log(self, epoch: int, start: int, records: list[int], confirmed: int) -> None:
        if epoch != self._following_epoch and "epoch_check_skipped" not in self.world.mutants:
            self._lost_master()
            return
        if start != self.disk.end or self.disk.is_full:
            self._lost_master()
            return
        if any(record < 0 for record in records):
            self._refused_at = start
            self._lost_master()
            return
        self.disk.append(records)
        self.world.oracle.received(self.host.name, records)
        self._learn_confirmed(confirmed)
        if "acknowledged_when_appended" in self.world.mutants:
            self._acknowledge()
        self._flush()

    def _learn_confirmed(self, confirmed: int) -> None:
        self.confirmed = max(self.confirmed, min(confirmed, self.flushed))

    def _acknowledge(self) -> None:
        if (
            self._to_master is not None
            and self.source is not None
            and self.source.state is SourceState.STREAMING
        ):
            flushed = self.disk.end if "acknowledged_when_appended" in self.world.mutants else self.flushed
            self._to_master.send(self.host, ("ack", self._following_epoch, flushed, self.state.version))

    # ---- the master's end

    def accept(self, connection: Connection) -> None:
        side = connection.side(self.host)
        connection.receivers[side] = lambda message: self._from_replica(connection, message)
        connection.closers[side] = lambda: self._lost_replica(connection)

    def _from_replica(self, connection: Connection, message: tuple[Any, ...]) -> None:
        kind, *values = message
        if kind == "hello":
            self._hello(connection, *values)
            return
        if kind == "tail":
            self._receive_tail(*values)
            return
        replica = self.replicas.get(connection)
        if replica is None:
            return
        replica.contact_at = self.host.now()
        if kind == "ack":
            epoch, flushed, replica.state = values
            if epoch != self.epoch or flushed > replica.sent:
                self.world.oracle.closed_links += 1
                connection.close(self.host)
                self._lost_replica(connection)
                return
            replica.flushed = max(replica.flushed, flushed)
            self._confirm()
        elif kind == "compare":
            (end,) = values
            connection.send(self.host, ("compared", end, self.disk.places[self.disk.log_start : end]))
        elif kind == "verify":
            (end,) = values
            self._verify()
            records = self.disk.places[self.disk.log_start : end]
            connection.send(self.host, ("verified", end, records, sorted(self._known_damage)))
            self._wake()
        elif kind == "repair":
            (places,) = values
            connection.send(self.host, ("repaired", {place: self.disk.places[place] for place in places}))
        elif kind == "start":
            (end,) = values
            if end > self.disk.end:
                connection.close(self.host)
                self._lost_replica(connection)
                return
            replica.streaming, replica.sent, replica.flushed = True, end, 0
            self._wake()
            self._pump()

    async def fetch_tail(self, member: Member, start: int) -> None:
        connection = next((link for link, (who, _) in self.offers.items() if who == member), None)
        if connection is None:
            return
        log_end = self.offers[connection][1].log_end
        connection.send(self.host, ("fetch", start))
        while connection in self.offers and self.disk.end < log_end:
            await self.host.sleep(0.01)
        await self._sync_all()

    def _receive_tail(self, start: int, records: list[int], state: tuple[StateVersion, ...]) -> None:
        if start == self.disk.end and not self.is_master:
            self.world.note(f"node {self.host.name} fetches {len(records)} records")
            self.disk.append(records)
            self.state.take(state)
            self.world.oracle.received(self.host.name, records)
            self._flush()

    def _refuse_offers(self) -> None:
        offers, self.offers = self.offers, {}
        for connection in offers:
            connection.send(self.host, ("refuse", self.epoch))
            connection.close(self.host)

    def _hello(
        self, connection: Connection, member: Member, epoch: int, history: History, log_end: int
    ) -> None:
        if self.world.fixed and not self.is_master:
            self.offers[connection] = (member, Offer(history, log_end))
            self._wake()
            return
        if self.world.fixed and epoch <= self.epoch:
            epoch = self.epoch
        careless = "epoch_check_skipped" in self.world.mutants
        if epoch > self.epoch and not careless:
            self.peer_epoch = max(self.peer_epoch, epoch)
            self._wake()
        if not self.is_master or (epoch != self.epoch and not careless):
            connection.send(self.host, ("refuse", self.epoch))
            connection.close(self.host)
            return
        for other in list(self.replicas.values()):
            if other.member.id == member.id:
                other.connection.close(self.host)
                self._lost_replica(other.connection)
        self.replicas[connection] = _Replica(connection, member, self.host.now())
        connection.send(self.host, ("welcome", self.epoch, self.history, self.disk.log_start, self.disk.end))

    def _lost_replica(self, connection: Connection) -> None:
        self.offers.pop(connection, None)
        if self.replicas.pop(connection, None) is not None:
            self._wake()

    def _pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.host.after(0.0, self._pump_now)

    def _pump_now(self) -> None:
        self._pumping = False
        if not self.is_master:
            return
        for replica in self.replicas.values():
            while replica.streaming and replica.sent < self.disk.end:
                end = min(replica.sent + BATCH, self.disk.end)
                records = self.disk.places[replica.sent : end]
                replica.connection.send(self.host, ("log", self.epoch, replica.sent, records, self.confirmed))
                replica.sent = end

    def _confirm(self) -> None:
        """Moves `confirmed` to the lowest flushed end over everybody who must acknowledge."""
        if not self.is_master:
            return
        lowest = self.flushed
        flushed = {replica.member: replica.flushed for replica in self.replicas.values() if replica.streaming}
        for member in self.required:
            if member != self.member:
                if member not in flushed:
                    return
                lowest = min(lowest, flushed[member])
        if lowest > self.confirmed:
            self.confirmed = lowest
        held = [(replica.member, replica.state) for replica in self.replicas.values() if replica.streaming]
        self.state.confirm(self.epoch, self.required - {self.member}, held)
        self._answer()

    def _answer(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.confirmed:
            end, record, reply = self._waiting.popleft()
            if self._lease_is_over():
                reply("unknown", 0, 0)
            else:
                self.world.oracle.acknowledged(self.host.name, self.epoch, end - 1, record)
                reply("ok", end - 1, self.epoch)

    def _lease_is_over(self) -> bool:
        return self.world.settings.replicas is ReplicaMode.ASYNC and self.host.now() >= self.deadline

    def _regularly(self) -> None:
        now = self.host.now()
        if not self.world.flush_is_sync and self.world.rng.random() < 0.3:
            self.disk.sync(self.disk.end)
        self.disk.mark_synced = min(self.disk.mark, self.disk.synced)
        if self._flushing_since is not None:
            self._wake()
        if self.is_master:
            self.state.change_regularly(self.epoch)
            for replica in list(self.replicas.values()):
                if now - replica.contact_at > SILENCE_S:
                    replica.connection.close(self.host)
                    self._lost_replica(replica.connection)
                else:
                    replica.connection.send(
                        self.host, ("beat", self.epoch, self.confirmed, self.state.entries)
                    )
        for connection in self.offers:
            connection.send(self.host, ("beat", 0, 0, ()))
        if not self.is_master and self._to_master is not None:
            if now - self._master_contact_at > SILENCE_S:
                self._lost_master()
            else:
                self._acknowledge()
        self.host.after(BEAT_S, self._regularly)

    # ---- clients

    def send(self, record: int, reply: Reply) -> None:
        """Appends a client's record, and replies when it is confirmed."""
        if self.is_master and self.gate is SendGate.HOLD:
            self._held.append((record, reply))
            return
        is_closed = self.gate is not SendGate.OPEN or self._failed or self.disk.is_full
        if not self.is_master or is_closed or self._lease_is_over():
            reply("refused", 0, 0)
            return
        self.disk.append([record])
        if "master_acknowledges_appended" in self.world.mutants:
            self.world.oracle.acknowledged(self.host.name, self.epoch, self.disk.end - 1, record)
            reply("ok", self.disk.end - 1, self.epoch)
        else:
            self._waiting.append((self.disk.end, record, reply))
        self._flush()
        self._pump()

    def read(self, start: int) -> list[int]:
        """Returns what a consumer may see from a queue offset on."""
        end = self.disk.end if "visible_early" in self.world.mutants else min(self.confirmed, self.disk.end)
        if start < self.disk.log_start:
            return []
        records = self.disk.places[start:end]
        for place, record in enumerate(records, start):
            if record < 0:
                # A read notices damage. The consumer comes again.
                self._known_damage.add(place)
                self._wake()
                return records[: place - start]
        return records
