"""The file in which a node keeps what it must not forget: who it is and what it promised.

The file is replaced as a whole, and a checksum covers it. There is no backup on purpose: an older copy could
have forgotten a promise. A node with a damaged file does not start.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Annotated

import msgspec

from metaq.durable import replace_file
from metaq.ha.epochs import History, HistoryInvalid
from metaq.ha.group_record import Epoch, Incarnation, LogEnd, Member, RecordPromise
from metaq.metadata import MetadataDamaged

FILE_NAME = "replication.json"
FORMAT_VERSION = 1
FIXED_GROUP = "fixed"
"""Stands for the register's identity in a store that belongs to a group without a register."""
FILE_BYTES_MAX = 16 * 1024 * 1024


class NodeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of a node, its promises, and the history of its log."""

    incarnation: Incarnation
    boot_id: str
    """The machine's boot in which the store was opened last."""
    promised_epoch: Epoch = 0
    """The highest epoch that the node served or followed."""
    promised_record: RecordPromise = RecordPromise()
    """The newest record of the group that the node has seen."""
    epochs: tuple[tuple[Epoch, LogEnd], ...] = ()
    """The history of the log: (epoch, start) pairs."""
    truncate_to: LogEnd | None = None
    """A truncation that began and is not known to be finished."""
    cut_after_beat: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """The newest beat before the log was cut last: it may claim more than the log has to have."""
    start_over_at: LogEnd | None = None
    """The log is being dropped, to start again at this end."""
    incomplete: bool = False
    """The store may lack records that were acknowledged, until it serves as master again."""
    served_last: bool = False
    """Its last role was that of a master."""
    cluster_id: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """The identity of the register whose group the store belongs to."""
    damaged_at: LogEnd | None = None
    """The first physical offset at which the log is known to be damaged."""
    state_version: tuple[Epoch, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]] | None = None
    """The newest entry of the control state when the node took its last role. None was written by a version
    that kept no mark beside the journal."""

    @property
    def history(self) -> History:
        """The epochs of the log."""
        return History.of(self.epochs)

    def change(self, **fields: object) -> NodeRecord:
        """Returns the record with some fields changed."""
        return msgspec.structs.replace(self, **fields)

    def with_history(self, history: History) -> NodeRecord:
        """Returns the record with another history."""
        return msgspec.structs.replace(self, epochs=tuple(history.pairs()))

    def member(self, node_id: int) -> Member:
        """Returns the identity of the node in its group."""
        return Member(node_id, self.incarnation)

    def encode(self) -> bytes:
        """Returns the content of the file."""
        body = msgspec.json.encode(self)
        return b'{"version":%d,"crc32":%d,"node":%s}\n' % (FORMAT_VERSION, zlib.crc32(body), body)

    @staticmethod
    def decode(content: bytes) -> NodeRecord:
        """Parses a file. Raises ValueError."""
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it has {len(content)} bytes, more than {FILE_BYTES_MAX}")
        outer = msgspec.json.decode(content, type=_Envelope)
        if outer.version != FORMAT_VERSION:
            raise ValueError(f"its version is {outer.version}; this MetaQ reads version {FORMAT_VERSION}")
        if zlib.crc32(outer.node) != outer.crc32:
            raise ValueError("its checksum is wrong")
        record = msgspec.json.decode(outer.node, type=NodeRecord)
        try:
            last_epoch = record.history.last_epoch
        except HistoryInvalid as error:
            raise ValueError(str(error)) from error
        if last_epoch > record.promised_epoch:
            raise ValueError(f"its log has epoch {last_epoch}, but only {record.promised_epoch} was promised")
        return record


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    crc32: int
    node: msgspec.Raw


class NodeFiles:
    """The file of a node in its store's directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    async def load(self) -> NodeRecord | None:
        """Returns what was kept, None in a new directory. Raises MetadataDamaged."""
        return await asyncio.to_thread(self._load)

    async def save(self, record: NodeRecord) -> None:
        """Returns when the record survives a power failure. Raises OSError."""
        await asyncio.to_thread(replace_file, self.path, record.encode())

    def _load(self) -> NodeRecord | None:
        try:
            return NodeRecord.decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise MetadataDamaged(
                f"{self.path} cannot be read: {error}",
                hint="without it this node may break its promises: empty its data directory, and it copies "
                "everything from the master",
            ) from error
