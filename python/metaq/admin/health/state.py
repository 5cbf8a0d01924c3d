"""The answers that a health check has collected, before they are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq.admin.results import BrokerFigures, BrokerKind, NameServer
from metaq.protocol.bodies import HaReplica
from metaq.protocol.commands.health import Backlog, BrokerReport, DeadLetterCount
from metaq.protocol.commands.replication import GroupStatus

NOT_REGISTERED: Final = "it is not registered any more"
"""Why a broker is away that earlier checks have found: name servers forget a broker that dies."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The answers of one broker. None means that a fact is not known."""

    name: str
    cluster: str
    id: int
    """0 is the master."""
    address: str
    error: str | None = None
    kind: BrokerKind | None = None
    figures: BrokerFigures | None = None
    report: BrokerReport | None = None
    backlogs: tuple[Backlog, ...] = ()
    dead_letters: tuple[DeadLetterCount, ...] = ()
    apache_replicas: tuple[HaReplica, ...] | None = None
    """The replicas that copy from an Apache master now; None if it was not asked."""
    clock_skew_ms: int | None = None
    unknown: tuple[str, ...] = ()
    """Facts that the broker does not report, in words."""

    @property
    def is_master(self) -> bool:
        return self.id == 0

    @property
    def label(self) -> str:
        return self.name if self.is_master else f"{self.name} (replica {self.id})"


@dataclass(frozen=True, slots=True)
class StuckMember:
    """A member of a group that holds messages and has committed nothing for a minute or longer."""

    group: str
    client_id: str | None
    """None if nobody knows which member has the queues."""
    topics: tuple[str, ...]
    messages: int | None
    """None if the group has never committed an offset there."""
    since_ms: int
    """By the clock here."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that was collected."""

    now_ms: int
    """The clock here."""
    name_servers: tuple[NameServer, ...] = ()
    mistaken: Mapping[str, str] = field(default_factory=dict)
    """Brokers that were given as name servers, and the name servers that each of them uses."""
    brokers: tuple[BrokerState, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    register: str = ""
    """The address of the register that was asked; empty if none was."""
    stuck: tuple[StuckMember, ...] = ()
    """The most messages first."""
    notes: tuple[str, ...] = ()
    """Faults of the records in the register."""
