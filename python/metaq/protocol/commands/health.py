"""The report of a MetaQ broker about its health, and the list of its clients.

RocketMQ has neither request. An Apache broker is asked for the same facts piece by piece.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.command import AnswerMax, Command, Int32

LISTED_MAX: Final = 100
"""The groups that a report lists at most, the worst first."""
CLIENTS_PER_PAGE: Final = 1_000

ClientKind = Literal["producer", "consumer"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class CheckReport(msgspec.Struct, frozen=True):
    """One condition for being ready, as on the page /readyz."""

    name: _Text
    fault: _Text | None = None


class Backlog(msgspec.Struct, frozen=True):
    """The messages of a topic that a group has not consumed."""

    group: _Text
    topic: _Text
    messages: _Count
    waiting_ms: _Count | None = None
    """The age of the oldest of them; None if nobody knows."""
    members: _Count | None = None
    """The consumers that are connected; None if nobody knows."""


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The dead letters of a group that were not sent again."""

    group: _Text
    messages: _Count
    newest_ms: _Count | None = None
    """When the last one was stored."""


class Conflict(msgspec.Struct, frozen=True):
    """A group whose members subscribe to a topic in different ways."""

    group: _Text
    topic: _Text
    wanted: tuple[_Text, ...]
    """The different filters; `not subscribed` for members that do not subscribe to the topic."""


class BrokerReport(msgspec.Struct, frozen=True):
    """The health of a broker as it sees itself. Sums begin with its start."""

    version: _Text
    """The version of MetaQ."""
    now_ms: _Count
    """The broker's clock."""
    checks: tuple[CheckReport, ...] = ()
    metrics: _Text | None = None
    """The address of /metrics and /readyz; None if they are switched off."""
    retention_ms: _Count | None = None
    """Messages older than this are deleted."""
    permission: _Count | None = None
    """The sum of the permissions to read (4) and to write (2)."""
    damaged_records: _Count = 0
    sends_over_limit: _Count = 0
    limits_waiting: _Count = 0
    """Sends and pulls that wait for a limit now."""
    connections_cut: _Count = 0
    """Connections that the broker closed because it ran out of memory for them."""
    backlogs: tuple[Backlog, ...] = ()
    dead_letters: tuple[DeadLetterCount, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    is_complete: bool = True
    """Whether all groups were looked at, and all that need attention are listed."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)


class ConnectedClient(msgspec.Struct, frozen=True):
    """A producer or consumer of one group on one connection."""

    kind: ClientKind
    group: _Text
    client_id: _Text
    address: _Text
    language: _Text
    version: int
    """RocketMQ's number for the version of the client."""
    heartbeat_ms: _Count
    """When its last heartbeat came."""


class ClientPage(msgspec.Struct, frozen=True):
    """A part of the connected clients, in order of group and client id."""

    clients: tuple[ConnectedClient, ...]
    total: _Count

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError if the body cannot be read."""
        return java_json.decode(data, cls)

    def encode(self) -> bytes:
        return java_json.encode(self)


class GetBrokerReport(Command, code=30_340, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: BrokerReport."""


class ListClients(
    Command, code=30_341, permission="describe", resources={}, answer_max=AnswerMax(lines=CLIENTS_PER_PAGE)
):
    """Body of the answer: ClientPage."""

    first: Int32 = 0
    """How many clients to skip."""
