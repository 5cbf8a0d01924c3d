"""The delivery progress of each delay level, and of messages that wait for a given moment.

The data plane keeps it; this module writes and loads it, so that the next master of a group goes on exactly
where this one stopped.
"""

from __future__ import annotations

import asyncio
import re

import msgspec

from metaq._core import BrokerPlane, Clock
from metaq.broker.state.versions import VERSIONS, stored_version
from metaq.journal.journal import Change, Journal
from metaq.protocol.bodies import DataVersion, DelayOffsets
from metaq.protocol.commands.offsets import GetAllDelayOffset
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.ranges import Count, Int64
from metaq.work_pools import WorkPools

TABLE = "delay"
"""In the journal: level → the queue offset at which its delivery goes on."""
TIMER_TABLE = "timer"
"""In the journal: how far messages that wait for a given moment were delivered, under one key."""
TIMER_KEY = "progress"

_LEVEL = re.compile(r"(\d+)([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """Reads `1s 5s 10s 30s 1m` as milliseconds. Raises ValueError, which names the bad level."""
    levels = []
    for word in text.split():
        found = _LEVEL.fullmatch(word)
        if found is None:
            raise ValueError(f"{word!r} is not a delay such as 10s, 5m, 2h or 1d")
        levels.append(int(found[1]) * _UNIT_MS[found[2]])
    return tuple(levels)


def decode_offset(value: bytes) -> int:
    """Raises ValidationError."""
    return msgspec.convert(value.decode(), Int64, strict=False)


def decode_level(key: str) -> int:
    """Raises ValidationError."""
    return msgspec.convert(key, Count, strict=False)


def decode_timer(value: bytes) -> tuple[int, int, int]:
    """Raises ValidationError."""
    return msgspec.convert(value.decode().split(" "), tuple[Int64, Int64, Int64], strict=False)


class DelayProgress:
    """The progress of all levels and of all given moments."""

    def __init__(
        self, plane: BrokerPlane, clock: Clock, journal: Journal, pools: WorkPools | None = None
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._journal = journal
        self._pools = pools or WorkPools()
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Loads the journal into a plane that has not started. Raises MetadataDamaged."""
        self._data_version = stored_version(self._journal, TABLE) or self._data_version
        offsets = self._journal.decoded(TABLE, decode_offset, decode_level)
        self._plane.load_delay_offsets({int(level): offset for level, offset in offsets.items()})
        for progress in self._journal.decoded(TIMER_TABLE, decode_timer).values():
            self._plane.load_timer_progress(*progress)

    async def persist(self) -> bool:
        """Writes the offsets if they have changed; True if it did. Deliveries are flushed first, so a power
        failure can repeat a delivery but never lose one."""
        async with self._writing:
            offsets = await asyncio.to_thread(self._plane.delay_offsets)
            changes: list[Change] = [
                (TABLE, str(level), b"%d" % queue_offset)
                for level, queue_offset in (offsets or {}).items()
                if self._journal.get(TABLE, str(level)) != b"%d" % queue_offset
            ]
            version = self._data_version
            if changes:
                version = version.next(self._clock.now_ms())
                changes.append((VERSIONS, TABLE, version.encode()))
            if (timers := await asyncio.to_thread(self._plane.timer_progress)) is not None:
                value = b"%d %d %d" % timers
                if self._journal.get(TIMER_TABLE, TIMER_KEY) != value:
                    changes.append((TIMER_TABLE, TIMER_KEY, value))
            if not changes:
                return False
            await self._journal.write(changes)
            self._data_version = version
            return True

    async def hold(self) -> bool:
        """Delivers nothing until `release`, so that `persist` writes all of the progress. False if a delivery
        that is under way takes too long; then it may be repeated."""
        return await asyncio.to_thread(self._plane.hold_deliveries)

    def release(self) -> None:
        self._plane.release_deliveries()

    @handles(GetAllDelayOffset)
    async def get_all_delay_offset(self, command: GetAllDelayOffset, request: Request) -> Response:
        offsets = await self._pools.administration.run(request, self._plane.delay_offsets)
        return Response(body=self._encode(offsets or {}))

    def _encode(self, offsets: dict[int, int]) -> bytes:
        table = DelayOffsets(data_version=self._data_version, offset_table=offsets)
        return table.encode(bare_integer_keys=True)
