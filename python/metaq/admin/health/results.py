"""The results of a health check. All of them are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from metaq.admin.results import BrokerKind, NameServer
from metaq.protocol.commands.replication import GroupStatus

Severity = Literal["critical", "warning", "info"]
FindingFields = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know, and the command that mends or shows it."""

    severity: Severity
    kind: str
    """A fixed word for programs, such as `broker-unreachable`."""
    subject: str
    """The name of the broker, group or name server."""
    text: str
    """One sentence."""
    command: str
    since_ms: int | None = None
    fields: FindingFields = field(default_factory=dict, hash=False)
    """The names and numbers of the sentence, for programs and other languages. Units end their names."""


@dataclass(frozen=True, slots=True)
class ScrubHealth:
    """The scrub of a broker's log. Its sums begin with the first scrub of the store."""

    percent: int | None
    """How much of the log the pass has read that is under way; None if none is."""
    completed_ms: int | None
    """When the whole log was read for the last time."""
    damaged: int
    """Damaged ranges that the scrub has found."""
    repaired: int
    """Damaged ranges that were repaired from another node, whoever found them."""
    unrepaired: int
    """Ranges that are known to be damaged now."""
    is_on: bool = True


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """One broker as a health check found it; None for everything that is not known."""

    name: str
    cluster: str
    id: int
    role: Literal["master", "replica"]
    address: str
    kind: BrokerKind | None = None
    version: str | None = None
    """The version of RocketMQ's protocol."""
    metaq_version: str | None = None
    started_ms: int | None = None
    messages_in_per_second: float | None = None
    messages_out_per_second: float | None = None
    disk_used_ratio: float | None = None
    clock_skew_ms: int | None = None
    """How far its clock is ahead of the clock here; negative if it is behind."""
    metrics_address: str | None = None
    scrub: ScrubHealth | None = None
    error: str | None = None
    """Why it does not answer."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a cluster, which is healthy if no finding is critical. The worst finding is the first."""

    summary: str
    """One sentence."""
    findings: tuple[Finding, ...]
    name_servers: tuple[NameServer, ...]
    brokers: tuple[BrokerHealth, ...]
    groups: tuple[GroupStatus, ...]
    """The broker groups; brokers that are not of MetaQ are in none."""

    @property
    def healthy(self) -> bool:
        return all(finding.severity != "critical" for finding in self.findings)
