"""The timeline of one message: what happened to it, when and where. All of it is immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from metaq.admin.results import BrokerFailure
from metaq.client.session.routes import Queue

EventKind = Literal[
    "born",
    "scheduled",
    "stored",
    "committed",
    "rolled-back",
    "undecided",
    "recalled",
    "delivered",
    "returned",
    "retried",
    "dead",
    "resent",
]
GroupState = Literal["consumed", "passed", "waiting", "retrying", "dead", "filtered", "unknown"]

EVENT_ORDER: Final[tuple[EventKind, ...]] = (
    "born",
    "scheduled",
    "committed",
    "rolled-back",
    "undecided",
    "recalled",
    "stored",
    "retried",
    "resent",
    "delivered",
    "returned",
    "dead",
)
"""The order of events of one millisecond."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One thing that happened to the message. None means that a value is not known or does not apply.

    | kind | meaning | group |
    |---|---|---|
    | born | its producer sent it | of the producer |
    | scheduled | a broker keeps it until it is due | |
    | stored | consumers of the topic can get it | |
    | committed, rolled-back, undecided | the end of its transaction | of the producer |
    | recalled | its producer cancelled it before it was due | of the producer |
    | delivered | a handler got it | of the consumer |
    | returned | the handler failed and the broker keeps it until the next try | of the consumer |
    | retried | the consumer can get it again | of the consumer |
    | dead | the group gave it up | of the consumer |
    | resent | the group gets the dead letter again | of the consumer |
    """

    kind: EventKind
    at_ms: int | None
    """By the clock of the machine where it happened. An old client does not tell the time of a delivery."""
    source: Literal["trace", "store"]
    """The trace that a client wrote, or the messages that a broker stores."""
    group: str | None = None
    client_id: str | None = None
    """Known while the client is connected."""
    address: str | None = None
    """The address of the client, or of the broker if the broker did it."""
    queue: Queue | None = None
    """The queue of the stored message."""
    queue_offset: int | None = None
    offset_id: str | None = None
    duration_ms: int | None = None
    """The time of the send or of the handler. None while the handler has not ended."""
    result: str | None = None
    """success, failed, exception, timeout or null. None while it is not known."""
    retries: int | None = None
    """How often the group had failed before."""
    due_ms: int | None = None
    reason: str | None = None
    """Why the group gave it up. Only MetaQ's clients and brokers store it."""
    error_type: str | None = None
    request_id: str | None = None
    """Joins the two trace entries of one delivery."""


@dataclass(frozen=True, slots=True)
class TimelineGroup:
    """How far a group is with the message.

    `consumed` means that a delivery is recorded: it succeeded, or the committed offset is past the message
    since. `passed` means that the committed offset is past the message and that no successful delivery is
    recorded: the group consumed it without tracing, or a reset or a filter skipped it. `waiting` means that
    it has not consumed it yet; `filtered` that its tags do not match; `unknown` that the brokers cannot tell.
    `reason` says why.
    """

    group: str
    state: GroupState
    committed_offset: int | None = None
    """In the queue of the message."""
    members: int | None = None
    """Clients that are connected now."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that traces and brokers know of one message."""

    id: str
    topic: str | None
    tag: str | None
    keys: tuple[str, ...]
    type: str | None
    """normal, fifo, delay or transaction, by the trace."""
    body_bytes: int | None
    traceparent: str | None
    """The context of OpenTelemetry that the message carries."""
    events: tuple[TimelineEvent, ...]
    """In the order of their times."""
    groups: tuple[TimelineGroup, ...]
    """The groups that consume the topic."""
    notes: tuple[str, ...]
    """The gaps: things that are not known, and why."""
    skipped_entries: int = 0
    """Bodies of trace messages, and entries in them about this message, that could not be read."""
    failures: tuple[BrokerFailure, ...] = ()
