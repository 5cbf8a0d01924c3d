"""One node's dealings with the register: reading, changing the record, beating."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from metaq.ha.actions import Swap
from metaq.ha.decisions import membership
from metaq.ha.group_record import Beat, GroupKeys, GroupRecord, RecordInvalid
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
        self._uncertain = False
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
        self.promised_epoch = 0
        self.joined = False

    @property
    def _patience_s(self) -> float:
        """A read older than this says nothing about now."""
        return self._settings.poll_interval_s * 2 + 0.5

    def view(self, now: float) -> RegisterView:
        """Returns what is known of the register at this moment."""
        readable = self._read_ok and now - self._read_at <= self._patience_s
        return RegisterView(self._record, self._revision, readable, self._readable_since)

    async def first_read(self) -> str:
        """Waits until the register answers, and returns its identity."""
        while True:
            try:
                self.cluster_id = await self._register.cluster_id()
            except RegisterUnavailable as error:
                self._complain(f"the register does not answer: {error}")
            else:
                if await self.read():
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
        """Reads the record and all beats. Returns whether that succeeded."""
        async with self._reading:
            try:
                if not self._read_ok and self.cluster_id != await self._register.cluster_id():
                    raise RegisterUnavailable("another register answers under the same address")
                found = await self._register.list(self._keys.prefix)
                record, revision = self._decode(found.get(self._keys.group))
            except (RegisterUnavailable, RecordInvalid) as error:
                self._read_ok = False
                self._complain(str(error))
                self._changed()
                return False
            now = self._clock.now()
            if not self._read_ok or now - self._read_at > self._patience_s:
                self._readable_since = now
            self._read_ok, self._read_at, self._complaint = True, now, ""
            moved = revision != self._revision
            self._record, self._revision = record, revision
            if self.pending is not None and revision != self.pending.expected_revision:
                # Whatever happened, a change that expects the old revision can no longer be applied.
                if self.pending.purpose is SwapPurpose.RENEW and self.pending.record == record:
                    self.renewed_at = self._swap_began_at
                self.pending = None
                moved = True
            self._note_beats(found, now)
            if moved:
                self._changed()
            return True

    def _decode(self, stored: Stored | None) -> tuple[GroupRecord | None, int]:
        record = GroupRecord.decode(stored.value) if stored is not None else None
        if not membership.is_acceptable(record, self.promised_epoch, self.joined):
            had = f"epoch {record.epoch}" if record is not None else "no record"
            raise RecordInvalid(
                f"the register has {had} of the group, but epoch {self.promised_epoch} was seen before; "
                "it lost its newest state"
            )
        return record, stored.revision if stored is not None else 0

    def _note_beats(self, found: dict[str, Stored], now: float) -> None:
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
            same = before is not None and before.beat == beat
            beats[beat.id] = before if before is not None and same else SeenBeat(beat, now)
        self.beats = beats

    async def write_beat(self, beat: Beat) -> bool:
        """Writes this node's beat. Returns whether that certainly succeeded."""
        key = self._keys.beat(beat.id)
        try:
            stored = await self._register.get(key)
            self._look_for_namesake(stored, beat)
            outcome = await self._register.compare_and_swap(
                key, stored.revision if stored is not None else 0, beat.encode()
            )
        except RegisterUnavailable as error:
            self._complain(str(error))
            return False
        self._has_beaten |= outcome is Outcome.DONE
        return outcome is Outcome.DONE

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
