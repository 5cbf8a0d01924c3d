"""The report of a MetaQ broker about its health, and the list of its clients.

RocketMQ has neither request. An Apache broker is asked for the same facts piece by piece.
"""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec

from metaq.protocol import java_json
from metaq.protocol.command import AnswerMax, Command
from metaq.protocol.ranges import Count, FixedRows, Int32, ShortText

LISTED_MAX: Final = 100
"""The groups that a report lists at most, the worst first."""
CLIENTS_PER_PAGE: Final = 1_000

ClientKind = Literal["producer", "consumer"]


class CheckReport(msgspec.Struct, frozen=True):
    """One condition for being ready, as on the page /readyz."""

    name: ShortText
    fault: ShortText | None = None


class Backlog(msgspec.Struct, frozen=True):
    """The messages of a topic that a group has not consumed."""

    group: ShortText
    topic: ShortText
    messages: Count
    waiting_ms: Count | None = None
    """The age of the oldest of them; None if nobody knows."""
    members: Count | None = None
    """The consumers that are connected; None if nobody knows."""
    grows_per_second: float | None = None
    """Messages that come minus those that the group takes, over the last minute; None if nobody knows."""


def backlog_weight(messages: int, grows_per_second: float | None) -> float:
    """How much a backlog matters: its size in ten minutes, if it goes on like this."""
    return messages + max(grows_per_second or 0.0, 0.0) * 600


class StuckReport(msgspec.Struct, frozen=True):
    """A group whose members hold messages of a topic and have committed nothing for a minute or longer."""

    group: ShortText
    topic: ShortText
    queues: FixedRows[Count]
    """Some of the queues."""
    queue_count: Count
    messages: Count | None = None
    """None if the group has never committed an offset there."""
    since_ms: Count = 0
    """Since when there was no commit."""


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The dead letters of a group that were not sent again."""

    group: ShortText
    messages: Count
    newest_ms: Count | None = None
    """When the last one was stored."""
    oldest_ms: Count | None = None
    """When the oldest of them was stored; None if nobody knows."""


class Conflict(msgspec.Struct, frozen=True):
    """A group whose members subscribe to a topic in different ways."""

    group: ShortText
    topic: ShortText
    wanted: FixedRows[ShortText]
    """The different filters; `not subscribed` for members that do not subscribe to the topic."""


class DamagedMessage(msgspec.Struct, frozen=True):
    """A message that readers did not get because its record is damaged."""

    topic: ShortText
    queue_id: Count
    queue_offset: Count
    is_skipped: bool
    """Readers have left it out. Otherwise they wait in front of it."""


class ScrubReport(msgspec.Struct, frozen=True):
    """The scrub of a broker's log. Its sums begin with the first scrub of the store."""

    interval_ms: Count
    """The whole log is read once in this time; 0: never."""
    percent: Count | None = None
    """How much of the log the pass has read that is under way; None if none is."""
    began_ms: Count | None = None
    completed_ms: Count | None = None
    """When the whole log was read for the last time."""
    damaged: Count = 0
    """Damaged ranges of the log that the scrub has found."""
    repaired: Count = 0
    """Damaged ranges that were repaired from another node, whoever found them."""
    repaired_ms: Count | None = None
    unrepaired: Count = 0
    """Ranges that are known to be damaged now."""
    differs_at: Count | None = None
    """The physical offset at which the log differs from the master's although both verify."""
    fault: ShortText | None = None
    """Why a part of the log cannot be read."""


class BrokerReport(msgspec.Struct, frozen=True):
    """The health of a broker as it sees itself. Sums begin with its start."""

    version: ShortText
    """The version of MetaQ."""
    now_ms: Count
    """The broker's clock."""
    checks: FixedRows[CheckReport] = ()
    metrics: ShortText | None = None
    """The address of /metrics and /readyz; None if they are switched off."""
    retention_ms: Count | None = None
    """Messages older than this are deleted."""
    disk_clean_percent: Count | None = None
    """Disk use from which on old messages are deleted at any hour."""
    disk_refuse_percent: Count | None = None
    """Disk use from which on messages are refused."""
    permission: Count | None = None
    """The sum of the permissions to read (4) and to write (2)."""
    damaged_records: Count = 0
    damaged: FixedRows[DamagedMessage] = ()
    """The names of the first records that are not repaired yet."""
    scrub: ScrubReport | None = None
    set_aside: Count = 0
    """Entries of the journal that could not be applied."""
    sends_over_limit: Count = 0
    limits_waiting: Count = 0
    """Sends and pulls that wait for a limit now."""
    connections_cut: Count = 0
    """Connections that the broker closed because it ran out of memory for them."""
    backlogs: FixedRows[Backlog] = ()
    dead_letters: FixedRows[DeadLetterCount] = ()
    conflicts: FixedRows[Conflict] = ()
    stuck: FixedRows[StuckReport] = ()
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
    group: ShortText
    client_id: ShortText
    address: ShortText
    language: ShortText
    version: Int32
    """RocketMQ's number for the version of the client."""
    heartbeat_ms: Count
    """When its last heartbeat came."""
    client_version: ShortText | None = None
    """The version of the client's own software, if it told it."""


class ClientPage(msgspec.Struct, frozen=True):
    """A part of the connected clients, in order of group and client id."""

    clients: FixedRows[ConnectedClient]
    total: Count

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
