"""The delivery progress of each delay level. The data plane keeps it; this module writes and loads it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from metaq._core import BrokerPlane, Clock
from metaq.broker.state.offsets import quoted_keys
from metaq.metadata import MetadataFile
from metaq.protocol.bodies import DataVersion, DelayOffsets
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.offsets import GetAllDelayOffset

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


class DelayProgress:
    """The file delayOffset.json."""

    def __init__(self, plane: BrokerPlane, clock: Clock, directory: Path) -> None:
        self._plane = plane
        self._clock = clock
        self._file = MetadataFile(directory / "delayOffset.json")
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self._kept: dict[int, int] | None = None
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Loads the file into a plane that has not started."""
        stored = self._file.load(lambda content: DelayOffsets.decode(quoted_keys(content)))
        if stored is not None:
            self._data_version = stored.data_version or self._data_version
            self._plane.load_delay_offsets(stored.offset_table)

    async def persist(self) -> bool:
        """Writes the offsets if they have changed; True if it did. Deliveries are flushed first, so a power
        failure can repeat a delivery but never lose one."""
        async with self._writing:
            offsets = await asyncio.to_thread(self._plane.delay_offsets)
            if offsets is None or offsets == self._kept:
                return False
            self._data_version = self._data_version.next(self._clock.now_ms())
            await asyncio.to_thread(self._file.write, self._encode(offsets), self._data_version.counter)
            self._kept = offsets
            return True

    @handles(GetAllDelayOffset)
    async def get_all_delay_offset(self, command: GetAllDelayOffset, request: Request) -> Response:
        offsets = await asyncio.to_thread(self._plane.delay_offsets)
        return Response(body=self._encode(offsets or {}))

    def _encode(self, offsets: dict[int, int]) -> bytes:
        table = DelayOffsets(data_version=self._data_version, offset_table=offsets)
        return table.encode(bare_integer_keys=True)
