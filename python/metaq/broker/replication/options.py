"""The settings of a broker that is one node of a group."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.ha.group_record import FIXED_MASTER_ID
from metaq.ha.settings import HaSettings
from metaq.protocol.names import MASTER_ID
from metaq.settings import ReplicationSettings


@dataclass(frozen=True, slots=True)
class FixedRoles:
    """A group whose master an operator has chosen."""

    master_address: str | None
    """The replication address of the master; None on the master itself."""
    replica_ids: tuple[int, ...] = ()
    """The replicas that a starting master waits for."""


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """Everything that a broker needs to take part in a group."""

    broker_id: int
    """The id of this node: at least 1, or 0 for a fixed master."""
    host: str
    port: int
    """The replication port; 0 selects a free one."""
    advertised_host: str
    """The host at which other nodes reach this one."""
    register: str | None = None
    """The address of the register; without one, the roles are fixed."""
    fixed: FixedRoles | None = None
    key: bytes = field(default=b"", repr=False)
    """The secret that all nodes of the group hold. Empty is allowed on loopback only."""
    ha: HaSettings = field(default_factory=HaSettings)
    link: ReplicationSettings = field(default_factory=ReplicationSettings)
    handshake_timeout_ms: int = 10_000
    """How long a connection may take before its stream begins."""
    register_wait_s: float = 8.0
    """How long a start waits for the register to answer."""
    state_timeout_s: float = 5.0
    """How long a changed topic or group waits for the replicas to hold it."""
    relay_s: float = 35.0
    """How long a drained broker relays requests before it stops. Java clients refresh routes every 30 s."""
    offsets_persist_interval_s: float = 1.0
    """How often offsets and progress go into the journal, and so to the replicas."""

    @property
    def node_id(self) -> int:
        """The id of this node among the nodes of its group."""
        return self.broker_id or FIXED_MASTER_ID

    @property
    def takes_state(self) -> bool:
        """Whether this node takes the control state of another one before it can serve as master."""
        return self.register is not None or self.broker_id != MASTER_ID
