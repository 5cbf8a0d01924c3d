"""Offsets that were committed on a replica while its group had no master go to the next master.

With a register, such a commit was refused, because it can be lost with this process; to keep it is a favour.
With fixed roles the replica stands in for its master and has answered with success, so it keeps them in a
file.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from metaq.durable import replace_file
from metaq.errors import MetaqError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.groups import GetSubscriptionGroupConfig
from metaq.protocol.commands.offsets import QueryConsumerOffset, QueueOffset, UpdateConsumerOffset
from metaq.protocol.errors import Refused
from metaq.protocol.ranges import Int32, Int64
from metaq.remoting import Connection

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0

Place = tuple[str, str, int]
"""Group, topic and queue."""

FILE_NAME = "kept_offsets.json"
"""In the folder config of the store. The first line is the checksum of the second."""


class OffsetMerge:
    """The offsets that a replica keeps for its master. They only ever move a master's offset forward."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads and writes the file `path`, if there is one. Raises OSError."""
        self._path = path
        self._kept: dict[Place, int] = _read(path) if path is not None else {}
        self._is_changed = False
        """Since the last save."""
        self._writing = asyncio.Lock()
        self._complaint = ""

    async def save(self) -> None:
        """Writes what has changed to the file, if there is one. The next call tries again what failed."""
        async with self._writing:
            if self._path is None or not self._is_changed:
                return
            self._is_changed = False
            try:
                await asyncio.to_thread(_write, self._path, dict(self._kept))
            except OSError as error:
                self._is_changed = True
                self._complain(f"{self._path} cannot be written: {error}")

    def all(self) -> list[tuple[str, str, int, int]]:
        """Returns everything: (group, topic, queue, offset)."""
        return [(*place, committed_offset) for place, committed_offset in self._kept.items()]

    def keep(self, offsets: list[tuple[str, str, int, int]]) -> None:
        """Notes offsets that were committed here: (group, topic, queue, offset)."""
        for group, topic, queue_id, committed_offset in offsets:
            place = (group, topic, queue_id)
            if committed_offset > self._kept.get(place, -1):
                self._kept[place] = committed_offset
                self._is_changed = True

    def take(self) -> list[tuple[str, str, int, int]]:
        """Returns everything and keeps nothing: this node has become the master."""
        kept = self.all()
        self._kept = {}
        self._is_changed = True
        return kept

    def __bool__(self) -> bool:
        return bool(self._kept)

    async def send(self, master_address: str) -> None:
        """Commits everything at the master. What cannot be committed now is kept for the next call."""
        try:
            connection = await Connection.open(master_address, CALL_TIMEOUT_S)
        except (MetaqError, OSError) as error:
            self._complain(str(error))
            return
        try:
            for place, committed_offset in list(self._kept.items()):
                try:
                    await _raise_to(connection, place, committed_offset)
                except Refused as refused:
                    if refused.retriable:
                        raise
                    # The master knows better which queues exist, and how long they are.
                    _log.warning("the master refused an offset that was committed here: %s", refused)
                # A later one may have come meanwhile.
                if self._kept.get(place) == committed_offset:
                    del self._kept[place]
                    self._is_changed = True
            self._complaint = ""
        except MetaqError as error:
            self._complain(str(error))
        finally:
            await connection.close()

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            _log.warning("offsets that were committed here are not safe yet: %s", complaint)


def _write(path: Path, kept: dict[Place, int]) -> None:
    body = msgspec.json.encode([(*place, committed_offset) for place, committed_offset in kept.items()])
    replace_file(path, b"%08x\n" % zlib.crc32(body) + body)


def _read(path: Path) -> dict[Place, int]:
    """Returns what the file holds. A damaged one is set aside: it can only cost repeats."""
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if checksum == b"%08x" % zlib.crc32(body):
        with suppress(msgspec.DecodeError):
            entries = msgspec.json.decode(body, type=list[tuple[str, str, Int32, Int64]])
            return {(group, topic, queue_id): offset for group, topic, queue_id, offset in entries}
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    _log.error("%s was damaged, so consumers may get messages again; it is now %s", path, aside.name)
    return {}


async def _raise_to(connection: Connection, place: Place, committed_offset: int) -> None:
    group, topic, queue_id = place
    # The group may have begun here. This request creates it, as a consumer would.
    (await connection.call(GetSubscriptionGroupConfig(group=group), b"", CALL_TIMEOUT_S)).check()
    query = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id)
    reply = await connection.call(query, b"", CALL_TIMEOUT_S)
    if reply.code != ResponseCode.QUERY_NOT_FOUND:
        known = reply.check().header(QueueOffset).queue_offset
        if known >= committed_offset:
            return
    update = UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=committed_offset
    )
    (await connection.call(update, b"", CALL_TIMEOUT_S)).check()
