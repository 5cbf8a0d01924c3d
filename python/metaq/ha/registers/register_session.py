"""One node's dealings with the register: reading, changing the record, beating."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from metaq.ha.actions import Swap
from metaq.ha.decisions import promises
from metaq.ha.group_record import (
    Beat,
    GroupKeys,
    GroupRecord,
    Member,
    Reader,
    RecordInvalid,
    RecordPromise,
)
from metaq.ha.node import Clock
from metaq.ha.register import Outcome, Register, RegisterUnavailable, Stored
from metaq.ha.settings import HaSettings
from metaq.ha.view import PendingSwap, RegisterView, SeenBeat, SwapPurpose

_log = logging.getLogger(__name__)


class RegisterSession:
    """Keeps the last acceptable content of the register, and at most one change of the record on its way."""

    def __init__(
        self,
        register: Register,
        keys: GroupKeys,
        settings: HaSettings,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._register = register
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._reading = asyncio.Lock()
        self._record: GroupRecord | None = None
        self._revision = 0
        self._read_ok = False
        self._read_at = float("-inf")
        self._readable_since = clock.now()
        self._complaint = ""
        self._fault = ""
        self._uncertain = False
        self._revisions: dict[str, int] = {}
        self._own_id = 0
        self._sequence_written = 0
        """The sequence number of the last own beat that the register certainly had."""
        self._swap_began_at = float("-inf")
        self.renewed_at = float("-inf")
        """The time at which the last successful renewal of a lease was sent."""
        self.namesake = ""
        """The address of another node that writes the beats of this one's id."""
        self._namesake_seen_at = float("-inf")
        self._has_beaten = False
        self._nothing = asyncio.Event()
        self.cluster_id = ""
        self.beats: dict[int, SeenBeat] = {}
        self.pending: PendingSwap | None = None
        self.read_now = asyncio.Event()
        self.urgent = False
        """Read often: an election is under way."""
        self.promised_record = RecordPromise()
        self.promised_epoch = 0
        self.joined = False
        """The node's store belongs to this register's group."""
        self.own: Member | None = None
        self.readers: frozenset[Member] = frozenset()
        """The nodes that read records with a version."""

    @property
    def _patience_s(self) -> float:
        """A read older than this says nothing about now."""
        return self._settings.poll_interval_s * 2 + 0.5

    def view(self, now: float) -> RegisterView:
        """Returns what is known of the register at this moment."""
        readable = self._read_ok and now - self._read_at <= self._patience_s
        return RegisterView(
            *(self._record, self._revision, readable, self._readable_since, self._fault),
            readers=self.readers,
            has_older_nodes=self.has_older_nodes(now),
            read_at=self._read_at,
        )

    def has_older_nodes(self, now: float) -> bool:
        """Whether a node takes part that cannot read a record with a version, and the group has none yet."""
        record = self._record
        if self.promised_record.version > 0 or (record is not None and record.version > 0):
            return False
        recent_s = self._settings.beat_interval_s * 2 + self._settings.poll_interval_s / 2
        part = {seen.beat.member for seen in self.beats.values() if now - seen.changed_at <= recent_s}
        part |= record.members if record is not None else frozenset()
        return not part <= self.readers | {self.own}

    async def first_read(self) -> str:
        """Waits until the register answers, and returns its identity. Its record may be refused even so."""
        while True:
            try:
                self.cluster_id = await self._register.cluster_id()
            except RegisterUnavailable as error:
                self._complain(f"the register does not answer: {error}")
            else:
                if await self.read() or self._fault:
                    return self.cluster_id
            await self._clock.wait(self._nothing, self._clock.now() + self._settings.tick_s)

    async def poll(self) -> None:
        """Reads regularly, and at once when `read_now` is set."""
        while True:
            self.read_now.clear()
            await self.read()
            urgent = self.urgent or self.pending is not None
            interval_s = self._settings.urgent_poll_interval_s if urgent else self._settings.poll_interval_s
            await self._clock.wait(self.read_now, self._clock.now() + interval_s)

    async def watch(self) -> None:
        """Reads at once when the register hints that the record has changed."""
        while True:
            try:
                async for _ in self._register.watch(self._keys.group):
                    self.read_now.set()
            except RegisterUnavailable:
                pass
            await self._clock.wait(self._nothing, self._clock.now() + self._settings.poll_interval_s)

    async def read(self) -> bool:
        """Reads the record and all beats. Returns whether that succeeded and the record may be believed."""
        async with self._reading:
            sequence_written = self._sequence_written
            try:
                if not self._read_ok and self.cluster_id != await self._register.cluster_id():
                    raise RegisterUnavailable("another register answers under the same address")
                found = await self._register.list(self._keys.prefix)
            except RegisterUnavailable as error:
                self._read_ok = False
                self._complain(str(error))
                self._changed()
                return False
            now = self._clock.now()
            is_new_row = not self._read_ok or now - self._read_at > self._patience_s
            is_new_row |= self._went_back(found, sequence_written)
            self._note_beats(found, now, is_new_row)
            self.readers = self._keys.readers_in({key: stored.value for key, stored in found.items()})
            try:
                record, revision = self._believed(found.get(self._keys.group))
            except RecordInvalid as error:
                self._read_ok = False
                self._fault = str(error)
                self._complain(
                    f"{self._fault}; put its newest state back, or choose a master with "
                    f"`metaq cluster switch {self._keys.broker_name} --to ID --force`"
                )
                self._changed()
                return False
            if is_new_row:
                self._readable_since = now
            if self._fault:
                _log.warning("the register has a record of the group again that this node can believe")
            self._read_ok, self._read_at, self._complaint, self._fault = True, now, "", ""
            moved = revision != self._revision
            self._record, self._revision = record, revision
            if self.pending is not None and revision != self.pending.expected_revision:
                # Whatever happened, a change that expects the old revision can no longer be applied.
                if self.pending.purpose is SwapPurpose.RENEW and self.pending.record == record:
                    self.renewed_at = self._swap_began_at
                self.pending = None
                moved = True
            if moved or self.urgent:
                self._changed()
            return True

    def _believed(self, stored: Stored | None) -> tuple[GroupRecord | None, int]:
        record = GroupRecord.decode(stored.value) if stored is not None else None
        beats = [seen.beat for seen in self.beats.values()]
        reason = promises.objection(record, self.promised_record, self.promised_epoch, self.joined, beats)
        if reason:
            raise RecordInvalid(f"{reason}: it went back to an older state, so nobody is elected")
        return record, stored.revision if stored is not None else 0

    def _went_back(self, found: dict[str, Stored], sequence_written: int) -> bool:
        """Whether the register was replaced by an older copy since the last read, as far as that shows.

        A read sees every beat of this node that was certainly written before it began.
        """
        revisions, self._revisions = self._revisions, {key: stored.revision for key, stored in found.items()}
        if any(stored.revision < revisions.get(key, 0) for key, stored in found.items()):
            return True
        if not sequence_written:
            return False
        own = found.get(self._keys.beat(self._own_id))
        try:
            return own is None or Beat.decode(own.value).sequence < sequence_written
        except RecordInvalid:
            return True

    def _note_beats(self, found: dict[str, Stored], now: float, is_new_row: bool) -> None:
        beats: dict[int, SeenBeat] = {}
        for key, stored in found.items():
            if not key.startswith(self._keys.beats):
                continue
            try:
                beat = Beat.decode(stored.value)
            except RecordInvalid as error:
                self._complain(f"{key}: {error}")
                continue
            if key != self._keys.beat(beat.id):
                self._complain(f"{key} holds the beat of node {beat.id}")
                continue
            before = self.beats.get(beat.id)
            if before is None:
                beats[beat.id] = SeenBeat(beat, now)
            elif before.beat == beat:
                beats[beat.id] = replace(before, is_fresh=before.is_fresh and not is_new_row)
            else:
                beats[beat.id] = SeenBeat(beat, now, is_fresh=not is_new_row)
        self.beats = beats

    async def write_beat(self, beat: Beat) -> bool:
        """Writes this node's beat. Returns whether that certainly succeeded."""
        key = self._keys.beat(beat.id)
        if self.has_older_nodes(self._clock.now()):
            beat = beat.for_older()
        try:
            if beat.member not in self.readers:
                await self._announce(beat.member)
            stored = await self._register.get(key)
            self._look_for_namesake(stored, beat)
            outcome = await self._register.compare_and_swap(
                key, stored.revision if stored is not None else 0, beat.encode()
            )
        except RegisterUnavailable as error:
            self._complain(str(error))
            return False
        if outcome is not Outcome.DONE:
            return False
        self._own_id, self._sequence_written, self._has_beaten = beat.id, beat.sequence, True
        return True

    async def _announce(self, own: Member) -> None:
        """Tells the others that this node reads records with a version, before they see its first beat.

        Raises RegisterUnavailable.
        """
        key, value = self._keys.reader(own.id), Reader(own.incarnation).encode()
        stored = await self._register.get(key)
        if stored is None or stored.value != value:
            revision = stored.revision if stored is not None else 0
            await self._register.compare_and_swap(key, revision, value)

    def _look_for_namesake(self, stored: Stored | None, own: Beat) -> None:
        """Notices a node that was given the same id by mistake. This node's own beats have its address."""
        now = self._clock.now()
        try:
            found = Beat.decode(stored.value) if stored is not None and self._has_beaten else own
        except RecordInvalid:
            return
        if found.replication_address != own.replication_address:
            self._namesake_seen_at = now
            if self.namesake != found.client_address:
                self.namesake = found.client_address
                _log.error("another node with id %d beats at %s", own.id, found.client_address)
        elif now - self._namesake_seen_at > self._settings.stand_back_s:
            self.namesake = ""

    def begin_swap(self, action: Swap) -> None:
        """Marks a change of the record as pending. From now on it may be applied at any time."""
        self._uncertain = self.pending is not None
        if not self._uncertain:
            self._swap_began_at = self._clock.now()
        self.pending = PendingSwap(action.purpose, action.expected_revision, action.record, in_flight=True)

    async def finish_swap(self) -> None:
        """Sends the pending change, and reads until it is known whether it is decided."""
        pending, uncertain = self.pending, self._uncertain
        assert pending is not None
        try:
            await self._register.compare_and_swap(
                self._keys.group, pending.expected_revision, pending.record.encode()
            )
        except RegisterUnavailable as error:
            self._complain(str(error))
            if not uncertain and self.pending is pending:
                # It was certainly not applied, and no earlier attempt is on its way.
                self.pending = None
        while not await self.read():
            await self._clock.wait(self._nothing, self._clock.now() + self._settings.urgent_poll_interval_s)
        if self.pending is pending:
            self.pending = replace(pending, in_flight=False)
        self._changed()

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("%s", complaint)
