"""The options that a broker starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq.broker.functions.process import WorkerSettings
from metaq.broker.replication.options import ReplicationOptions
from metaq.broker.scrubbing.pace import ScrubSettings
from metaq.broker.state.client_limits import ClientLimits, LockLimits
from metaq.broker.state.limits import NO_LIMIT, Rates
from metaq.config.sources import Setting
from metaq.protocol.bodies import READ, WRITE
from metaq.protocol.handling.operator_requests import OperatorSources
from metaq.settings import MIB, BrokerSettings, ServerSettings, StoreSettings

LEASE_MS = 60_000
"""A consumer renews its locks every 20 s and stops reading by itself 30 s after its last renewal. So a queue
never has two readers, even though a lease is taken away without asking."""

REGISTER_INTERVAL_S_MIN = 10.0
REGISTER_INTERVAL_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Everything that a broker runs with. `RunTimeOptions` replaces those of a node whose options change."""

    broker: BrokerSettings
    server: ServerSettings
    store: StoreSettings
    nameservers: tuple[str, ...] = ()
    """`host:port` of every name server. The broker registers with each of them separately."""
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    """Queues of TBW102, which is the most that an auto-created topic gets."""
    permission: int = READ | WRITE
    enable_property_filter: bool = True
    """Whether consumers may filter by SQL92; on Apache's brokers it is off by default."""
    filters: WorkerSettings = field(default_factory=WorkerSettings)
    """The functions that consumers may filter by, and the limits of their workers."""
    register_interval_s: float = 30.0
    """Limited to 10 to 60 seconds, because clients expect fresh routes."""
    offsets_persist_interval_s: float = 5.0
    register_timeout_s: float = 3.0
    """How long a name server may take to answer a registration."""
    register_wait_s: float = 2.0
    """How long a start waits for name servers that do not answer."""
    announce_timeout_s: float = 1.0
    """How long a new topic waits for name servers that were well so far. A hanging one delays the first new
    topic by no more than this, and those after it not at all."""
    topics_max: int = 100_000
    """All of them go to a name server in one frame, whose size is limited."""
    topics_reserved_percent: int = 25
    """The share of `topics_max` that only retry topics and dead-letter topics of groups may fill."""
    groups_max: int = 100_000
    clients: ClientLimits = field(default_factory=ClientLimits)
    locks: LockLimits = field(default_factory=LockLimits)
    client_expiry_s: float = 120.0
    client_answer_timeout_s: float = 10.0
    """How long a consumer may take to answer a request that the broker passes on."""
    client_status_timeout_s: float = 5.0
    """The same for a question to all consumers of a group: those that are silent are left out."""
    reply_timeout_s: float = 10.0
    """How long a client may take to confirm the reply to its request."""
    queue_lease_s: float = LEASE_MS / 1000
    """How long a consumer that reads in order keeps a queue without renewing its lock."""
    transaction_check_interval_s: float = 30.0
    transaction_check_max: int = 15
    """A half message that was checked this often is given up."""
    transaction_renew_s: float = 120.0
    """A half message that waits longer than this, such as an immune one, is stored again: the queue before it
    can then be forgotten, and a restart has little to read."""
    operator_requests: OperatorSources = "local"
    """The machines from which operators may list and end delayed messages and open transactions."""
    send_default: Rates = NO_LIMIT
    """The limit for topics without a limit of their own."""
    consume_default: Rates = NO_LIMIT
    send_back_bytes_per_second: int = 16 * MIB
    """The messages that one address may send back; 0: no limit."""
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    """How often the whole log is read and verified."""
    reset_notices_bytes_max: int = 64 * MIB
    """For all consumers of a group together: a reset of a wide topic takes up to 2 MB for each of them."""
    replication: ReplicationOptions | None = None
    """The group of the broker; None for a lone broker."""
    apache_master: str | None = None
    """The `host:port` for clients of the Apache master that this broker copies until it takes over."""
    apache_ha_listen: str | None = None
    """The `host:port` at which Apache slaves copy the log while this broker is master; None: nowhere."""
    server_side_reset: bool = True
    """On: the broker applies a reset itself. The answer to the next pull sends consumers to the new offset,
    and offsets that they commit before are ignored. Off: the reset is only sent to running consumers, as
    brokers before 5.0 do."""
    store_replies: bool = True
    """Whether the reply to a request is stored as well as pushed to its requester."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Every option with its source; empty if the broker was not made from a configuration."""

    @property
    def register_interval_clamped_s(self) -> float:
        return min(max(self.register_interval_s, REGISTER_INTERVAL_S_MIN), REGISTER_INTERVAL_S_MAX)
