"""What a broker is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.broker.functions.process import WorkerSettings
from metaq.broker.state.limits import NO_LIMIT, Rates
from metaq.settings import BrokerSettings, ServerSettings, StoreSettings

READ = 4
WRITE = 2
INHERIT = 1

REGISTER_INTERVAL_S_MIN = 10.0
REGISTER_INTERVAL_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Everything that a broker starts with; what may change while it runs is copied from here."""

    broker: BrokerSettings
    server: ServerSettings
    store: StoreSettings
    nameservers: tuple[str, ...] = ()
    """`host:port` of every name server; each is registered with on its own."""
    auto_create_topic: bool = True
    auto_create_group: bool = True
    default_topic_queues: int = 8
    """Queues of TBW102, which is the most that an auto-created topic gets."""
    permission: int = READ | WRITE
    enable_property_filter: bool = True
    """Whether consumers may filter by SQL92; Apache's brokers leave it off unless told."""
    filters: WorkerSettings = field(default_factory=WorkerSettings)
    """The functions that consumers may filter by, and what their workers may take."""
    register_interval_s: float = 30.0
    """Brought into the bounds of 10 to 60 seconds, as clients expect routes to be fresh."""
    offsets_persist_interval_s: float = 5.0
    client_expiry_s: float = 120.0
    transaction_check_interval_s: float = 30.0
    transaction_check_max: int = 15
    """After so many checks a half message is parked."""
    send_default: Rates = NO_LIMIT
    """The limit of topics that have none of their own."""
    consume_default: Rates = NO_LIMIT

    @property
    def register_interval_clamped_s(self) -> float:
        return min(max(self.register_interval_s, REGISTER_INTERVAL_S_MIN), REGISTER_INTERVAL_S_MAX)
