"""The state of a broker group, and the requests with which an operator changes its master.

RocketMQ has none of these requests. Their codes follow that of `MeasureQueue`, far from RocketMQ's.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import Int32

NodeRole = Literal["master", "replica"]
NodeStateWord = Literal[
    "in sync", "catching up", "waiting", "leaving", "candidate", "damaged", "failed", "full", "gone"
]

STATES: Final[dict[NodeStateWord, str]] = {
    "in sync": "holds every acknowledged message",
    "catching up": "copies what it lacks from the master, or is about to",
    "waiting": "is not in sync, and there is no master to copy from",
    "leaving": "was asked to stop, and relays clients to the master until then",
    "candidate": "wants to become master",
    "damaged": "has a damaged log, and repairs it from the master if it can",
    "failed": "has a disk that fails or hangs",
    "full": "has no room on its disk, so it takes no messages",
    "gone": "does not answer",
}
"""The words for the state of a node, and what each of them means."""

NODES_MAX: Final = 256

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class NodeStatus(msgspec.Struct, frozen=True):
    """One node of a group."""

    id: _Id
    address: Annotated[str, msgspec.Meta(max_length=256)]
    """The `host:port` for clients; empty if nobody knows it."""
    role: NodeRole
    state: NodeStateWord
    lag_bytes: _Count | None = None
    """How much of the log it lacks; None if nobody knows."""
    lag_ms: _Count | None = None
    """How long ago it had everything; None if nobody knows."""
    damaged_at: _Count | None = None
    """The first physical offset at which its log is known to be damaged."""
    problem: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    """Why it does not follow the master or is not in sync, if an operator should know."""
    register_fault: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """Why the node refuses the record in the register; empty if it believes it."""
    ack_ms: _Count | None = None
    """How long it takes to acknowledge messages to its master; None without traffic."""
    same_id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """The address of another node that was given the same id."""


class GroupStatus(msgspec.Struct, frozen=True):
    """A broker group as one of its nodes sees it."""

    name: Annotated[str, msgspec.Meta(max_length=255)]
    epoch: _Count
    master: _Id
    """The id of the master; 0 in a group with replicas means that there is none."""
    min_in_sync: _Count
    in_sync: Annotated[tuple[_Id, ...], msgspec.Meta(max_length=NODES_MAX)]
    nodes: Annotated[tuple[NodeStatus, ...], msgspec.Meta(max_length=NODES_MAX)]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)

    def node(self, node_id: int) -> NodeStatus | None:
        """Returns the node with this id."""
        return next((node for node in self.nodes if node.id == node_id), None)


class GetGroupStatus(Command, code=30_322, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: GroupStatus, as the broker that was asked sees it."""


class SwitchMaster(Command, code=30_323, permission="admin", resources={}):
    """Asks the master to hand over to another node. The answer comes when that has happened or failed.

    A broker that copies an Apache master takes over from it if `target` is 0.
    """

    target: Int32
    force: bool = False
    """Take over from an Apache master although messages may be missing."""


class DrainBroker(Command, code=30_324, permission="admin", resources={}):
    """Asks a node to hand over its mastership, if it has it, and to leave the in-sync set.

    The answer comes when it relays clients to the new master. It stops when their routes are up to date. A
    lone broker answers when it refuses messages; it stops when its clients have left, or after `wait_s`.
    """

    wait_s: Int32 | None = None
