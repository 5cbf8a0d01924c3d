"""The table of brokers and their topics. It has no sockets and no clock: callers pass the time.

A broker is registered under a cluster, a name and an id. Brokers of one name are replicas of each other; the
one with id 0 is the master, and topics belong to the name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from metaq.protocol.bodies import (
    READ,
    WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.names import MASTER_ID, MEMBERS_TOPIC_PREFIX

_log = logging.getLogger(__name__)

EXPIRY_MS: Final = 120_000
"""The silence after which a broker is gone, unless its registration asks for another."""
EXPIRY_MS_MAX: Final = 24 * 3600 * 1000
BROKERS_MAX: Final = 10_000
QUEUE_ENTRIES_MAX: Final = 2_000_000
"""The limit for topics, summed over all brokers."""


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


@dataclass(slots=True)
class Replicas:
    """The brokers of one name."""

    cluster: str
    name: str
    acting_master: bool = False
    zone: str | None = None
    brokers: dict[int, Broker] = field(default_factory=dict)

    def data(self) -> BrokerData:
        return BrokerData(
            {broker_id: self.brokers[broker_id].address for broker_id in sorted(self.brokers)},
            self.name,
            self.cluster,
            self.acting_master,
            self.zone,
        )

    @property
    def has_master(self) -> bool:
        return MASTER_ID in self.brokers


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


class RouteTable:
    """Every broker and every topic that a name server knows."""

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self._replicas: dict[str, Replicas] = {}
        self._by_address: dict[tuple[str, str], Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._queue_entries = 0

    # Brokers come and go

    def register(
        self, registration: Registration, now_ms: int, *, drop_missing_topics: bool = False
    ) -> Broker | None:
        """Adds or renews a broker. Returns its master if it is a replica and has one."""
        self._check(registration)
        self._leave_former_place(registration)
        replicas = self._replicas.setdefault(
            registration.name, Replicas(registration.cluster, registration.name)
        )
        replicas.cluster = registration.cluster
        replicas.acting_master = bool(registration.acting_master)
        replicas.zone = registration.zone
        former = replicas.brokers.get(registration.broker_id)
        if former is not None and former.address != registration.address:
            self._by_address.pop((former.cluster, former.address), None)
        known = self._by_address.get((registration.cluster, registration.address))
        broker = Broker(
            cluster=registration.cluster,
            name=registration.name,
            broker_id=registration.broker_id,
            address=registration.address,
            ha_address=registration.ha_address,
            version=registration.topics.data_version,
            seen_ms=now_ms,
            expiry_ms=self._bounded_expiry_ms(registration.expiry_ms),
            connection=registration.connection,
        )
        if known is None:
            _log.info("broker %s %d at %s is here", broker.name, broker.broker_id, broker.address)
        replicas.brokers[broker.broker_id] = broker
        self._by_address[broker.cluster, broker.address] = broker
        self._take_topics(registration, replicas, known, drop_missing_topics)
        return replicas.brokers.get(MASTER_ID) if broker.broker_id != MASTER_ID else None

    def unregister(self, cluster: str, address: str) -> bool:
        """Removes a broker, and its topics if it was the last one of its name."""
        broker = self._by_address.pop((cluster, address), None)
        if broker is None:
            return False
        replicas = self._replicas[broker.name]
        if replicas.brokers.get(broker.broker_id) is broker:
            del replicas.brokers[broker.broker_id]
        _log.info("broker %s %d at %s is gone", broker.name, broker.broker_id, broker.address)
        if not replicas.brokers:
            del self._replicas[broker.name]
            self._drop_topics_of(broker.name)
        elif replicas.acting_master and not replicas.has_master:
            self._change_permissions(broker.name, lambda permission: permission & ~WRITE)
        return True

    def connection_closed(self, connection: int) -> None:
        """Removes the broker of a closed connection, unless it has registered over another one since."""
        for broker in [broker for broker in self._by_address.values() if broker.connection == connection]:
            self.unregister(broker.cluster, broker.address)

    def touch(self, cluster: str, address: str, now_ms: int, expiry_ms: int | None = None) -> bool:
        """Notes a sign of life; False if the broker is unknown and must register."""
        broker = self._by_address.get((cluster, address))
        if broker is None:
            return False
        broker.seen_ms = now_ms
        if expiry_ms is not None:
            broker.expiry_ms = self._bounded_expiry_ms(expiry_ms)
        return True

    def expire(self, now_ms: int) -> list[Broker]:
        """Removes brokers that were silent for too long."""
        silent = [
            broker for broker in self._by_address.values() if now_ms - broker.seen_ms > broker.expiry_ms
        ]
        for broker in silent:
            _log.warning(
                "broker %s at %s was silent for %d ms", broker.name, broker.address, broker.expiry_ms
            )
            self.unregister(broker.cluster, broker.address)
        return silent

    def shift_time(self, by_ms: int) -> None:
        """Shifts the last sign of life of all brokers, after the clock jumped or this process stood still."""
        for broker in self._by_address.values():
            broker.seen_ms += by_ms

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        """The version of the broker's topic table at its last registration."""
        broker = self._by_address.get((cluster, address))
        return None if broker is None else broker.version

    # Topics

    def put_queues(self, topic: str, queues: list[QueueData]) -> None:
        """Sets the topic's queues on the named brokers; unknown brokers are left out. The cost does not
        depend on how many other topics there are."""
        known = [data for data in queues if data.broker_name in self._replicas]
        self._check_room(sum(data.broker_name not in self._topics.get(topic, ()) for data in known))
        for data in known:
            self._put(topic, data)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets the topic on all brokers, or on the brokers of one cluster."""
        for name in list(self._topics.get(topic, ())):
            replicas = self._replicas.get(name)
            if cluster is None or (replicas is not None and replicas.cluster == cluster):
                self._drop(topic, name)

    def wipe_write_permission(self, name: str) -> int:
        """Takes the write permission from all topics of the broker; returns how many there are."""
        return self._change_permissions(name, lambda permission: permission & ~WRITE)

    def add_write_permission(self, name: str) -> int:
        """Gives the write permission back."""
        return self._change_permissions(name, lambda _: READ | WRITE)

    # Answers

    def route(self, topic: str, *, acting_master: bool = True) -> TopicRouteData | None:
        """The route of a topic, or None. If a broker name has lost its master, allows an acting one and has
        no writable queues, its lowest replica is shown as master, so that consumers that need one go on."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._replicas[name].data() for name in sorted(queues) if name in self._replicas]
        if not brokers:
            return None
        if acting_master and not topic.startswith(MEMBERS_TOPIC_PREFIX):
            for data in brokers:
                writable = queues[data.broker_name].perm & WRITE
                if data.enable_acting_master and MASTER_ID not in data.broker_addrs and not writable:
                    lowest = min(data.broker_addrs)
                    address = data.broker_addrs.pop(lowest)
                    data.broker_addrs = {MASTER_ID: address} | data.broker_addrs
        return TopicRouteData(broker_datas=brokers, queue_datas=[queues[name] for name in sorted(queues)])

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            {name: self._replicas[name].data() for name in sorted(self._replicas)}, self.clusters()
        )

    def clusters(self) -> dict[str, list[str]]:
        """The broker names of each cluster."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._replicas):
            clusters.setdefault(self._replicas[name].cluster, []).append(name)
        return dict(sorted(clusters.items()))

    def members(self, name: str) -> dict[int, str]:
        """The addresses of one broker name by id."""
        replicas = self._replicas.get(name)
        return {} if replicas is None else replicas.data().broker_addrs

    def any_address(self) -> str | None:
        """The address of some broker, preferably of a master."""
        brokers = sorted(self._by_address.values(), key=lambda broker: (broker.broker_id, broker.name))
        return brokers[0].address if brokers else None

    def topics(self, cluster: str | None = None) -> list[str]:
        """All topics, or the topics on at least one broker of the cluster."""
        if cluster is None:
            return sorted(self._topics)
        names = set(self.clusters().get(cluster, ()))
        return sorted(topic for topic, queues in self._topics.items() if names & queues.keys())

    def topics_by_flag(self, *, having: int, lacking: int = 0) -> list[str]:
        """Topics by the bits of their system flag, as the first of their brokers says."""
        return sorted(
            topic
            for topic, queues in self._topics.items()
            if (flag := queues[min(queues)].topic_sys_flag) & having == having and not flag & lacking
        )

    # Internals

    def _check(self, new: Registration) -> None:
        if new.broker_id < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"brokerId {new.broker_id} is negative")
        replicas = self._replicas.get(new.name)
        others = [
            broker
            for broker in (replicas.brokers.values() if replicas else ())
            if broker.address != new.address
        ]
        if replicas is not None and replicas.cluster != new.cluster and others:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"broker name {new.name} belongs to cluster {replicas.cluster}"
            )
        holder = replicas.brokers.get(new.broker_id) if replicas else None
        if holder is not None and holder.address != new.address:
            ours, theirs = new.topics.data_version.state_version, holder.version.state_version
            if theirs > ours:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{holder.address} holds id {new.broker_id} of {new.name} with state version {theirs}, "
                    f"later than {ours}",
                )
        if holder is None and len(new.topics.topic_config_table) == 1:
            # A broker announces one changed topic in the same way as all topics. As its first registration,
            # that would show a broker without its other topics.
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the first registration of {new.name} must bring all its topics"
            )
        if (new.cluster, new.address) not in self._by_address and len(self._by_address) >= BROKERS_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"there are already {BROKERS_MAX} brokers")
        added = sum(new.name not in self._topics.get(topic, ()) for topic in new.topics.topic_config_table)
        self._check_room(added)

    def _check_room(self, added: int) -> None:
        if added and self._queue_entries + added > QUEUE_ENTRIES_MAX:
            raise Refused(
                ResponseCode.SYSTEM_BUSY, f"{added} more topics would be more than {QUEUE_ENTRIES_MAX} in all"
            )

    def _bounded_expiry_ms(self, asked_ms: int | None) -> int:
        if asked_ms is None or asked_ms <= 0:
            return self._expiry_ms
        return min(asked_ms, EXPIRY_MS_MAX)

    def _leave_former_place(self, new: Registration) -> None:
        """Removes the broker at this address from its former id, name or cluster: one address is one
        broker."""
        for cluster, address in [key for key in self._by_address if key[1] == new.address]:
            broker = self._by_address[cluster, address]
            if (cluster, broker.name) != (new.cluster, new.name):
                self.unregister(cluster, address)
            elif broker.broker_id != new.broker_id:
                del self._replicas[broker.name].brokers[broker.broker_id]

    def _take_topics(
        self, new: Registration, replicas: Replicas, known: Broker | None, drop_missing: bool
    ) -> None:
        lowest = min(replicas.brokers) == new.broker_id
        leads = new.broker_id == MASTER_ID
        if not leads and not (lowest and new.acting_master is not None):
            return
        changed = (
            known is None or known.broker_id != new.broker_id or known.version != new.topics.data_version
        )
        topics = new.topics.topic_config_table
        for topic, config in topics.items():
            if changed or new.name not in self._topics.get(topic, ()):
                self._put(topic, _queue_data(new.name, config, writable=leads))
        if drop_missing and leads and changed:
            for topic in [topic for topic, queues in self._topics.items() if new.name in queues]:
                if topic not in topics:
                    self._drop(topic, new.name)

    def _put(self, topic: str, data: QueueData) -> None:
        queues = self._topics.setdefault(topic, {})
        if data.broker_name not in queues:
            self._queue_entries += 1
        queues[data.broker_name] = data

    def _drop(self, topic: str, name: str) -> None:
        queues = self._topics[topic]
        del queues[name]
        self._queue_entries -= 1
        if not queues:
            del self._topics[topic]

    def _drop_topics_of(self, name: str) -> None:
        for topic in [topic for topic, queues in self._topics.items() if name in queues]:
            self._drop(topic, name)

    def _change_permissions(self, name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            if (data := queues.get(name)) is not None:
                data.perm = change(data.perm)
                count += 1
        return count


def keep_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Keeps only the brokers of one zone, and brokers without a master in any zone."""
    kept = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    ]
    left_out = {data.broker_name for data in route.broker_datas} - {data.broker_name for data in kept}
    queues = [data for data in route.queue_datas if data.broker_name not in left_out]
    return TopicRouteData(kept, route.filter_server_table, route.order_topic_conf, queues)


def _queue_data(name: str, config: TopicConfig, *, writable: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        perm=config.perm if writable else config.perm & ~WRITE,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
