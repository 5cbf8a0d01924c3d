"""The times and modes of a group, in one place."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReplicaMode(enum.Enum):
    """When a master may acknowledge a record."""

    SYNC = "sync"
    """When every member of the in-sync set has flushed it."""
    ASYNC = "async"
    """When the master itself has flushed it."""


@dataclass(frozen=True, slots=True)
class HaSettings:
    """Settings of the decisions. Times are seconds."""

    replicas: ReplicaMode = ReplicaMode.SYNC
    min_in_sync: int = 2
    """Written into a new group's record; the record decides from then on."""
    beat_interval_s: float = 1.0
    poll_interval_s: float = 1.0
    """How often the register is read without a hint."""
    urgent_poll_interval_s: float = 0.1
    """How often it is read during an election or while the outcome of a change is unknown."""
    tick_s: float = 0.25
    """How often decisions are made without a reason."""
    behind_limit_s: float = 1.0
    """A member this far behind leaves the in-sync set."""
    election_after_s: float = 3.0
    """A master without a beat for this long is replaced."""
    hung_after_s: float = 2.0
    """A master without a beat for this long is replaced if its stream was silent for as long. Both end when a
    process or a machine hangs; a busy one is seldom that late with both. `replicas=async` has leases, so
    there only `election_after_s` counts."""
    refused_for_s: float = 0.1
    """A master whose port refuses connections for this long is replaced at once."""
    settle_s: float = 0.25
    """How long a candidate waits for the log ends of the others."""
    stagger_s: float = 0.5
    """How long each candidate gives the one before it."""
    resign_after_s: float = 3.0
    """A master that cannot acknowledge anything for this long resigns."""
    stand_back_s: float = 10.0
    """How long a node that resigned lets others go first, and a master without any replica stays."""
    async_lease_s: float = 2.0
    """With `replicas=async`, a master acknowledges for this long after it sent its last successful beat."""
    switch_timeout_s: float = 5.0
    """A planned switch whose target does not catch up in this time is called off."""
    fixed_wait_s: float = 3.0
    """How long a restarted fixed master with an intact store waits for its replicas' longer logs."""

    def __post_init__(self) -> None:
        if self.replicas is ReplicaMode.ASYNC and self.async_lease_s >= self.election_after_s:
            raise ValueError(
                "async_lease_s must be less than election_after_s, or two masters could acknowledge"
            )
        if self.election_after_s < self.beat_interval_s * 2:
            raise ValueError(
                "election_after_s must be at least twice beat_interval_s, or one late beat replaces a master"
            )
        if not self.beat_interval_s * 1.5 <= self.hung_after_s <= self.election_after_s:
            raise ValueError(
                "hung_after_s must be at least 1.5 times beat_interval_s, or one late beat counts as a "
                "hanging master, and at most election_after_s"
            )
        if self.behind_limit_s >= self.resign_after_s:
            raise ValueError(
                "behind_limit_s must be less than resign_after_s, or masters resign for one slow replica"
            )
        if self.min_in_sync < 1:
            raise ValueError("min_in_sync must be at least 1")
