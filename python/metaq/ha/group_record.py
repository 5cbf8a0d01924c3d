"""The record of a group and the beats of its nodes, as the register stores them in JSON.

    metaq/<cluster>/<broker name>/group            GroupRecord
    metaq/<cluster>/<broker name>/beat/<node id>   Beat
    metaq/<cluster>/<broker name>/reads/<node id>  Reader

Whatever the register returns is checked in full before anybody believes it.

Brokers before records had versions refuse every field that they do not know, and ignore `reads/`. While one
of them takes part, a group without versions stays so: records and beats are written in the older form.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec

from metaq.errors import MetaqError

NO_MASTER = 0
"""The master's id in a record whose master resigned."""

FIXED_MASTER_ID = 2**31 - 1
"""Stands for a fixed master, whose id is 0 for everybody else, among the node ids of its group."""

EPOCHS_PER_ROUND = 1_000
"""The last three digits of an epoch are those of its master's id. So two nodes never serve the same epoch,
even if an old copy of the register lets both be elected after the same record."""

MEMBERS_MAX = 64
RECORD_BYTES_MAX = 32_768

_INT64_MAX = 2**63 - 1
NodeId = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
LogEnd = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
Version = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
Address = Annotated[str, msgspec.Meta(max_length=256)]

Strict = TypeVar("Strict", bound=msgspec.Struct)


class RecordInvalid(MetaqError):
    """A value in the register is not what a group's node writes there."""


def shown_id(node_id: int) -> int:
    """Returns the id of a node as people know it."""
    return 0 if node_id == FIXED_MASTER_ID else node_id


def next_epoch(after: int, master: int) -> int:
    """Returns the first epoch after another one that belongs to this master."""
    epoch = after - after % EPOCHS_PER_ROUND + master % EPOCHS_PER_ROUND
    return epoch if epoch > after else epoch + EPOCHS_PER_ROUND


class Member(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A node and the incarnation of its store. A store that lost something gets a new incarnation."""

    id: NodeId
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.id}/{self.incarnation[:8]}"


Members = Annotated[tuple[Member, ...], msgspec.Meta(max_length=MEMBERS_MAX)]


class RecordPromise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest record that a node has seen. The node refuses every older one."""

    version: Version = 0
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Tells two records of the same version apart."""
    min_in_sync: Annotated[int, msgspec.Meta(ge=0, le=MEMBERS_MAX)] = 0
    """The `min_in_sync` of the record, should the register be emptied; 0 if no record was seen."""


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The master of a group, its epoch, and the members that hold everything that was acknowledged."""

    epoch: Annotated[int, msgspec.Meta(ge=1, le=_INT64_MAX)]
    master: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    in_sync: Annotated[tuple[Member, ...], msgspec.Meta(min_length=1, max_length=MEMBERS_MAX)]
    min_in_sync: Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
    version: Version = 0
    """Grows by one with every change, whoever makes it. Records of older brokers have none and count as 0."""
    voters: Members = ()
    """The members whose agreement an election needs (`decisions/electorate.py`); none: the in-sync set."""
    voters_before: Members = ()
    """The voters before their last change."""
    voters_since: Version = 0
    """The version of that change."""

    @property
    def members(self) -> frozenset[Member]:
        """The in-sync set."""
        return frozenset(self.in_sync)

    @property
    def electorate(self) -> frozenset[Member]:
        """The members whose agreement an election needs."""
        return frozenset(self.voters or self.in_sync)

    @property
    def promise(self) -> RecordPromise:
        """The part of this record that a node keeps."""
        # Not of the JSON: a later MetaQ may add fields, and its digest of the same record must be the same.
        members = [(member.id, member.incarnation) for member in sorted(self.in_sync)]
        content = msgspec.json.encode((self.version, self.epoch, self.master, self.min_in_sync, members))
        return RecordPromise(self.version, hashlib.sha256(content).hexdigest()[:32], self.min_in_sync)

    def member(self, node_id: int) -> Member | None:
        """Returns the member of the in-sync set with this id."""
        return next((member for member in self.in_sync if member.id == node_id), None)

    def replace(
        self, *, epoch: int | None = None, master: int | None = None, in_sync: Iterable[Member] | None = None
    ) -> GroupRecord:
        """Returns the next version of the record. Sets are sorted, so that equal records have equal bytes."""
        return msgspec.structs.replace(
            self,
            epoch=self.epoch if epoch is None else epoch,
            master=self.master if master is None else master,
            in_sync=self.in_sync if in_sync is None else tuple(sorted(in_sync)),
            # Records of older brokers have no voters, and protect from nothing until they get some.
            voters=tuple(sorted(self.voters)),
            version=self.version + 1,
        )

    def with_voters(self, voters: Iterable[Member], before: Iterable[Member]) -> GroupRecord:
        """Returns this version of the record with other voters."""
        return msgspec.structs.replace(
            self,
            voters=tuple(sorted(voters)),
            voters_before=tuple(sorted(before)),
            voters_since=self.version,
        )

    def for_older(self) -> GroupRecord:
        """Returns the record without a version, as older brokers read it."""
        return GroupRecord(self.epoch, self.master, self.in_sync, self.min_in_sync)

    def encode(self) -> bytes:
        """Returns the JSON for the register."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(value: bytes) -> GroupRecord:
        """Parses a record. Raises RecordInvalid."""
        record = _decode(value, GroupRecord, "the group's record")
        ids = [member.id for member in record.in_sync]
        if len(set(ids)) != len(ids):
            raise RecordInvalid(f"the group's record names a node twice in its in-sync set: {sorted(ids)}")
        if record.master != NO_MASTER and record.master not in ids:
            raise RecordInvalid(
                f"the group's record names master {record.master}, but its in-sync set is {sorted(ids)}"
            )
        if not record.members <= record.electorate:
            raise RecordInvalid(f"the group's record has members without a vote: {sorted(ids)}")
        if record.voters_since > record.version:
            raise RecordInvalid(
                f"the group's record has version {record.version}, but voters of {record.voters_since}"
            )
        return record


class NodeState(enum.Enum):
    """The state of a node as its beat shows it."""

    MASTER = "master"
    REPLICA = "replica"
    CANDIDATE = "candidate"
    LEAVING = "leaving"
    """It follows and is about to stop, so the set should go on without it."""
    LEFT = "left"
    """It was drained and stops for good. When it is silent, nobody misses it."""
    FAILED = "failed"
    """Its disk failed or hangs. It cannot become master."""
    FULL = "full"
    """Its disk takes no records for lack of room. It can neither follow nor become master."""


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sign of life. The sequence number changes every time; others time that on their own clock."""

    id: NodeId
    incarnation: Incarnation
    client_address: Address
    replication_address: Address
    flushed_end: LogEnd
    log_epoch: Epoch
    """The epoch of the last byte in the node's log."""
    promised_epoch: Epoch
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
    state: NodeState
    damaged_at: LogEnd | None = None
    """The first physical offset at which the node knows its log to be damaged."""
    promised_version: Version = 0
    """The version of the newest record that the node has seen. It is on the node's disk."""
    min_in_sync: Annotated[int, msgspec.Meta(ge=0, le=MEMBERS_MAX)] = 0
    """The `min_in_sync` of that record, or the node's setting if it has seen none; 0 in beats of older
    brokers."""
    state_version: tuple[Epoch, Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]] = (0, 0)
    """The newest entry of the control state in the node's journal."""

    @property
    def member(self) -> Member:
        """The node and its incarnation."""
        return Member(self.id, self.incarnation)

    def for_older(self) -> Beat:
        """Returns the beat as older brokers read it."""
        older = {NodeState.FULL: NodeState.FAILED, NodeState.LEFT: NodeState.LEAVING}
        return msgspec.structs.replace(
            self,
            state=older.get(self.state, self.state),
            promised_version=0,
            min_in_sync=0,
            state_version=(0, 0),
        )

    def encode(self) -> bytes:
        """Returns the JSON for the register."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(value: bytes) -> Beat:
        """Parses a beat. Raises RecordInvalid."""
        return _decode(value, Beat, "a node's beat")


class Reader(msgspec.Struct, frozen=True):
    """Says that a node reads records with a version, and all fields and states of beats that are above."""

    incarnation: Incarnation

    def encode(self) -> bytes:
        """Returns the JSON for the register."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(value: bytes) -> Reader:
        """Parses the value. Raises RecordInvalid."""
        return _decode(value, Reader, "what a node reads")


class GroupKeys(msgspec.Struct, frozen=True):
    """The register's keys of one group."""

    cluster: str
    broker_name: str

    @property
    def prefix(self) -> str:
        """The prefix of all keys of the group."""
        return f"metaq/{self.cluster}/{self.broker_name}/"

    @property
    def group(self) -> str:
        """The key of the group's record."""
        return self.prefix + "group"

    @property
    def beats(self) -> str:
        """The prefix of all beats."""
        return self.prefix + "beat/"

    def beat(self, node_id: int) -> str:
        """Returns the key of a node's beat."""
        return f"{self.beats}{node_id}"

    @property
    def readers(self) -> str:
        """The prefix of what the nodes read."""
        return self.prefix + "reads/"

    def reader(self, node_id: int) -> str:
        """Returns the key of what a node reads."""
        return f"{self.readers}{node_id}"

    def readers_in(self, found: Mapping[str, bytes]) -> frozenset[Member]:
        """Returns the nodes that read records with a version, as their values in the register say."""
        readers = set()
        for key, value in found.items():
            node_id = key.removeprefix(self.readers)
            if key.startswith(self.readers) and node_id.isdecimal():
                with suppress(RecordInvalid):
                    readers.add(Member(int(node_id), Reader.decode(value).incarnation))
        return frozenset(readers)


def _decode(value: bytes, kind: type[Strict], what: str) -> Strict:
    if len(value) > RECORD_BYTES_MAX:
        raise RecordInvalid(f"{what} in the register has {len(value)} bytes, more than {RECORD_BYTES_MAX}")
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"{what} in the register cannot be read: {error}") from error
