"""Brokers as a name server knows them, and the registrations that make them known."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from metaq.protocol.bodies import BrokerData, DataVersion, TopicConfigTable
from metaq.protocol.handling.askers import source_of
from metaq.protocol.handling.local_peers import host_of, is_local
from metaq.protocol.names import MASTER_ID

LIVING_MS: Final = 75_000
"""No broker is silent for longer: all of them register at least once a minute."""
NEWCOMER_MS: Final = 600_000
"""A broker that came later than this has proved little."""


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a dispute about a place."""

    address: str
    remote: str
    """The other end of the connection."""
    key: str | None = None
    """The digest of the key that it registers with; None for brokers without one, such as Apache's."""

    @property
    def source(self) -> str:
        return source_of(self.remote)

    @property
    def owner(self) -> str:
        """Identifies the party: by its key, or by its address and the machine that it connects from."""
        return f"{self.address} from {self.source}" if self.key is None else self.key

    @property
    def is_at_its_address(self) -> bool:
        """Whether it connects from the host that it registers. False behind a NAT, or for a host name."""
        return _is_at(self.address, host_of(self.remote))

    def has_same_key(self, other: Party) -> bool:
        return self.key is not None and self.key == other.key


@dataclass(slots=True)
class Broker:
    """One registered broker."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str | None
    version: DataVersion
    seen_ms: int
    expiry_ms: int
    connection: int
    since_ms: int
    """When it took its place."""
    joined_ms: int
    """When it came, in whatever place."""
    party: Party

    @property
    def identity(self) -> tuple[str, int, str]:
        return self.name, self.broker_id, self.address

    @property
    def remote(self) -> str:
        return self.party.remote

    def is_living(self, now_ms: int) -> bool:
        """False if it was silent for longer than a broker that is up."""
        return now_ms - self.seen_ms <= min(self.expiry_ms, LIVING_MS)


@dataclass(slots=True)
class Replicas:
    """The brokers of one name."""

    cluster: str
    name: str
    acting_master: bool = False
    zone: str | None = None
    brokers: dict[int, Broker] = field(default_factory=dict)
    master: Party | None = None
    """The last master; None if none has been seen."""
    led_until_ms: int = 0
    """When the last master left; counts while there is none."""

    def data(self) -> BrokerData:
        # Also called on a thread, while brokers come and go.
        return BrokerData(
            {broker_id: broker.address for broker_id, broker in sorted(self.brokers.items())},
            self.name,
            self.cluster,
            self.acting_master,
            self.zone,
        )

    @property
    def has_master(self) -> bool:
        return MASTER_ID in self.brokers

    def acting(self) -> Broker | None:
        """The replica that is shown as master while there is none.

        Everybody may register as a replica, so a replica acts only if it has the key of the last master. If
        none has it, the lowest of those acts that were there before the master left. A replica that came much
        later than another one does not count, and if no master has been seen, the lowest of all acts.
        """
        if not self.acting_master or self.has_master:
            return None
        able = list(self.brokers.values())
        master = self.master
        if master is not None:
            same = [broker for broker in able if broker.party.has_same_key(master)]
            able = same or [broker for broker in able if broker.joined_ms <= self.led_until_ms]
        if not able:
            return None
        first_ms = min(broker.joined_ms for broker in able)
        able = [broker for broker in able if broker.joined_ms - first_ms < NEWCOMER_MS]
        return min(able, key=lambda broker: broker.broker_id)

    def may_bring_topics(self, broker_id: int) -> bool:
        """Whether this replica brings the topics of its name, because there is no master."""
        if self.master is None:
            return min(self.brokers) == broker_id
        acting = self.acting()
        return acting is not None and acting.broker_id == broker_id


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of one registration."""

    cluster: str
    name: str
    broker_id: int
    address: str
    topics: TopicConfigTable
    ha_address: str | None = None
    zone: str | None = None
    acting_master: bool | None = None
    """None if the broker is too old to know it."""
    expiry_ms: int | None = None
    connection: int = -1
    """Negative if the registration came over no connection."""
    remote: str = "an unknown peer"
    """The other end of the connection, for the log."""
    key: str | None = None

    @property
    def epoch(self) -> int:
        return self.topics.data_version.state_version

    @property
    def party(self) -> Party:
        return Party(self.address, self.remote, self.key)


@lru_cache(maxsize=4_096)
def _is_at(address: str, source: str) -> bool:
    return host_of(address) == source or (is_local(f"{source}:0") and is_local(address))
