"""The table of brokers and their topics. It has no sockets and no clock: callers pass the time.

A broker is registered under a cluster, a name and an id. Brokers of one name are replicas of each other; the
one with id 0 is the master, and topics belong to the name.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final, cast

from metaq.nameserver.brokers import Broker, Registration, Replicas
from metaq.nameserver.claims import EPOCH_MAX, Claims, address_place, cluster_place, id_place, may_follow
from metaq.nameserver.shares import Shares
from metaq.nameserver.topic_shares import TopicShares
from metaq.nameserver.topic_table import TopicTable, in_steps, queue_data
from metaq.protocol.bodies import (
    READ,
    WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import source_of
from metaq.protocol.handling.peer_log import peer_log
from metaq.protocol.names import MASTER_ID, MEMBERS_TOPIC_PREFIX
from metaq.settings import NameServerSettings

_log = logging.getLogger(__name__)

EXPIRY_MS: Final = 120_000
"""The silence after which a broker is gone, unless its registration asks for a shorter one."""


class LongRoute(Exception):
    """The route has more brokers than the caller allows."""


class RouteTable:
    """Every broker and every topic that a name server knows."""

    def __init__(self, expiry_ms: int = EXPIRY_MS, limits: NameServerSettings | None = None) -> None:
        self._expiry_ms = expiry_ms
        self._limits = limits or NameServerSettings()
        self._replicas: dict[str, Replicas] = {}
        self._by_address: dict[str, Broker] = {}
        self._by_connection: dict[int, str] = {}
        """The address of the broker that registered last over a connection."""
        self._topics = TopicTable(self._limits)
        self._claims = Claims()
        self._shares = Shares(self._limits)
        self._topic_shares = TopicShares(self._limits, self._replicas, self._topics, self._shares)
        self.changes = 0
        """Counts what may change an answer, after each change: long answers are made on another thread."""

    @property
    def broker_topics_max(self) -> int:
        """How many topics one broker may have."""
        return self._limits.nameserver_broker_topics_max

    # Brokers come and go

    def register(
        self, registration: Registration, now_ms: int, *, drop_missing_topics: bool = False
    ) -> Broker | None:
        """Adds or renews a broker. Returns its master if it is a replica and has one."""
        steps = self.register_in_steps(registration, now_ms, drop_missing_topics=drop_missing_topics)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(Broker | None, end.value)

    def register_in_steps(
        self, registration: Registration, now_ms: int, *, drop_missing_topics: bool = False
    ) -> Generator[None, None, Broker | None]:
        """Does the same in short steps, between which others may ask for routes and register. No other
        registration over the same connection may come in between."""
        self._make_room(self._check(registration, now_ms), now_ms)
        self._leave_former_place(registration, now_ms)
        replicas = self._replicas_of(registration)
        known = self._by_address.get(registration.address)
        self._take_id(registration, replicas, now_ms)
        broker = self._new_broker(registration, known, now_ms)
        replicas.brokers[broker.broker_id] = broker
        if broker.broker_id == MASTER_ID:
            replicas.master = broker.party
        if broker.broker_id == MASTER_ID or (
            replicas.master is None and min(replicas.brokers) == broker.broker_id
        ):
            # A replica says nothing for its master, not even while that is away.
            replicas.acting_master = bool(registration.acting_master)
            replicas.zone = registration.zone
        if known is not None:
            self._remove_address(known)
        self._by_address[broker.address] = broker
        self._shares.came(broker)
        if broker.connection >= 0:
            self._by_connection[broker.connection] = broker.address
        self.changes += 1
        for step in self._topics_to_take(registration, replicas, known, drop_missing_topics):
            self._topics.sweep()  # The topics of those that made room go first.
            step()
            self.changes += 1
            yield
            if self._by_address.get(broker.address) is not broker or min(replicas.brokers) < broker.broker_id:
                return None  # It has left meanwhile, or its master is here.
        return replicas.brokers.get(MASTER_ID) if broker.broker_id != MASTER_ID else None

    def _replicas_of(self, new: Registration) -> Replicas:
        """The brokers of this name. If they were all gone, their last master is still known for a while."""
        replicas = self._replicas.get(new.name)
        if replicas is None:
            replicas = self._replicas[new.name] = Replicas(new.cluster, new.name)
            master = self._shares.reserved_master(new.name)
            if master is not None:
                replicas.master, replicas.led_until_ms = master.party, master.left_ms
        replicas.cluster = new.cluster
        return replicas

    def _make_room(self, leaving: Collection[Broker], now_ms: int) -> None:
        for newcomer in leaving:
            if self._by_address.get(newcomer.address) is newcomer:
                _warn(newcomer.remote, "broker %s %d at %s makes room for others", *newcomer.identity)
                self._remove(newcomer, now_ms, keep=False)

    def _new_broker(self, new: Registration, known: Broker | None, now_ms: int) -> Broker:
        """The broker of a registration; `known` is the one that was registered at its address."""
        same = known is not None and known.party.owner == new.party.owner
        stays = same and known is not None and known.broker_id == new.broker_id
        joined_ms = known.joined_ms if known is not None and same else now_ms
        if known is None:
            _note(new.remote, "broker %s %d at %s is here", new.name, new.broker_id, new.address)
            kept = self._shares.reserved_for(new)
            if kept is not None:
                self._shares.took(kept)
                joined_ms -= kept.held_ms
        elif not stays:
            self._remember(known)
        return Broker(
            cluster=new.cluster,
            name=new.name,
            broker_id=new.broker_id,
            address=new.address,
            ha_address=new.ha_address,
            version=new.topics.data_version,
            seen_ms=now_ms,
            expiry_ms=self._bounded_expiry_ms(new.expiry_ms),
            connection=new.connection,
            since_ms=known.since_ms if known is not None and stays else now_ms,
            joined_ms=joined_ms,
            party=new.party,
        )

    def unregister(
        self, cluster: str, address: str, now_ms: int = 0, *, connection: int | None = None
    ) -> bool:
        """Removes a broker, and its topics if it was the last one of its name. Raises Refused if it is up and
        this connection is not its own."""
        broker = self._at(cluster, address)
        if broker is None:
            return False
        if connection is not None and connection != broker.connection and broker.is_living(now_ms):
            raise Refused(
                ResponseCode.NO_PERMISSION, f"{address} is up; only the broker itself can unregister it"
            )
        self._remove(broker, now_ms)
        return True

    def _remove(self, broker: Broker, now_ms: int, *, keep: bool = True) -> None:
        """Removes a broker, and keeps its place for a while if it may have it again."""
        self._remove_address(broker)
        replicas = self._replicas[broker.name]
        if replicas.brokers.get(broker.broker_id) is broker:
            del replicas.brokers[broker.broker_id]
            if broker.broker_id == MASTER_ID:
                replicas.led_until_ms = now_ms
        self._remember(broker)
        self._claims.forget(id_place(broker.name, broker.broker_id))
        self._claims.forget(address_place(broker.address))
        _note(broker.remote, "broker %s %d at %s is gone", *broker.identity)
        topics = 0
        if not replicas.brokers:
            del self._replicas[broker.name]
            self._claims.forget(cluster_place(broker.name))
            topics = len(self._topics.on(broker.name))
            self._topics.drop_all_on(broker.name)
        elif replicas.acting_master and not replicas.has_master:
            self._topics.lower(broker.name)
        self.changes += 1
        if keep:
            self._shares.keep_place(broker, now_ms, topics)

    def _remember(self, broker: Broker) -> None:
        """Remembers for how long a broker had its place."""
        held_ms = broker.seen_ms - broker.since_ms
        for place in (
            id_place(broker.name, broker.broker_id),
            address_place(broker.address),
            cluster_place(broker.name),
        ):
            self._claims.tenures.add(place, broker.party, held_ms)

    def connection_closed(self, connection: int, now_ms: int = 0) -> None:
        """Removes the broker of a closed connection, unless it has registered over another one since."""
        address = self._by_connection.get(connection)
        if address is not None:
            self._remove(self._by_address[address], now_ms)

    def touch(
        self, cluster: str, address: str, connection: int, now_ms: int, expiry_ms: int | None = None
    ) -> bool:
        """Notes a sign of life over the connection that registered the broker. False if there is no such
        registration: the broker must register, and anybody else keeps nothing alive."""
        broker = self._at(cluster, address)
        if broker is None or broker.connection != connection:
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
            _warn(
                broker.remote,
                "broker %s at %s was silent for %d ms",
                *(broker.name, broker.address, broker.expiry_ms),
            )
            self._remove(broker, now_ms)
        self._shares.expire(now_ms)
        return silent

    def shift_time(self, by_ms: int) -> None:
        """Shifts the last sign of life of all brokers, after the clock jumped or this process stood still."""
        for broker in self._by_address.values():
            broker.seen_ms += by_ms
            broker.since_ms += by_ms
            broker.joined_ms += by_ms
        for replicas in self._replicas.values():
            replicas.led_until_ms += by_ms
        self._claims.shift_time(by_ms)
        self._shares.shift_time(by_ms)

    def version_of(
        self, cluster: str, address: str, name: str | None = None, broker_id: int | None = None
    ) -> DataVersion | None:
        """The version of the broker's topic table at its last registration. None if another name or id is
        registered at this address: the broker that asks must register again."""
        broker = self._at(cluster, address)
        if broker is None or name not in (None, broker.name) or broker_id not in (None, broker.broker_id):
            return None
        return broker.version

    def sweep(self) -> bool:
        """Goes on with changing the topics of brokers that are gone; False if there are none left."""
        return self._topics.sweep()

    # Topics

    def put_queues(
        self, topic: str, queues: list[QueueData], connection: int | None = None, now_ms: int = 0
    ) -> None:
        """Sets the topic's queues on the named brokers. Brokers that are unknown, or whose master registered
        over another connection, are left out. The cost does not depend on how many other topics there are."""
        known = [data for data in queues if self._is_led(data.broker_name, connection)]
        leaving: list[Broker] = []
        for data in known:
            if data.perm or data.read_queue_nums or data.write_queue_nums:
                brokers = self._replicas[data.broker_name].brokers
                source = brokers[min(brokers)].party.source
                leaving += self._room_for_topics(data.broker_name, source, (topic,), now_ms)
        self._make_room(leaving, now_ms)
        for data in known:
            if data.perm or data.read_queue_nums or data.write_queue_nums:
                self._topics.put(topic, data)
            elif topic in self._topics.on(data.broker_name):
                self._topics.drop(topic, data.broker_name)  # Its broker has deleted it.
        self.changes += 1

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets the topic on all brokers, or on the brokers of one cluster."""
        for name in list(self._topics.of(topic)):
            replicas = self._replicas.get(name)
            if cluster is None or (replicas is not None and replicas.cluster == cluster):
                self._topics.drop(topic, name)
        self.changes += 1

    def has_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Whether a broker, or a broker of this cluster, has the topic."""
        names = self._topics.of(topic)
        return any(
            name in self._replicas and cluster in (None, self._replicas[name].cluster) for name in names
        )

    def wipe_write_permission(self, name: str) -> int:
        """Takes the write permission from all topics of the broker; returns how many there are."""
        count = self._topics.lower(name)
        self.changes += 1
        return count

    def add_write_permission(self, name: str) -> int:
        """Gives the write permission back."""
        count = self._topics.change_permissions(name, lambda _: READ | WRITE)
        self.changes += 1
        return count

    # Answers

    def route(
        self,
        topic: str,
        *,
        acting_master: bool = True,
        brokers_max: int = sys.maxsize,
        stepwise: Callable[[Iterable[str]], Iterable[str]] | None = None,
    ) -> TopicRouteData | None:
        """The route of a topic, or None. If a broker name has lost its master, allows an acting one and has
        no writable queues, one of its replicas is shown as master, so that consumers that need one go on.
        Raises LongRoute if more than `brokers_max` broker names have the topic. On a thread, `stepwise` lets
        the event loop run."""
        if self._topics.spread(topic) > brokers_max:
            raise LongRoute
        queues = self._topics.of(topic)
        if not queues:
            return None
        if stepwise is not None:
            queues = dict(queues)
        names = sorted(queues)
        shows_acting = acting_master and not topic.startswith(MEMBERS_TOPIC_PREFIX)
        brokers: list[BrokerData] = []
        for name in names if stepwise is None else stepwise(names):
            replicas = self._replicas.get(name)
            if replicas is None:
                continue
            data = replicas.data()
            if shows_acting and replicas.acting_master and not queues[name].perm & WRITE:
                acting = replicas.acting()
                if acting is not None:
                    data.broker_addrs.pop(acting.broker_id, None)
                    data.broker_addrs = {MASTER_ID: acting.address} | data.broker_addrs
            brokers.append(data)
        if not brokers:
            return None
        return TopicRouteData(broker_datas=brokers, queue_datas=[queues[name] for name in names])

    def cluster_info(self, note: Callable[[BrokerData], None] = lambda data: None) -> ClusterInfo:
        """All brokers. On a thread, `note` counts them and lets the event loop run."""
        info = ClusterInfo()
        clusters: dict[str, list[str]] = {}
        # Also called on a thread, while brokers come and go.
        for name, replicas in sorted(self._replicas.items(), key=itemgetter(0)):
            data = info.broker_addr_table[name] = replicas.data()
            note(data)
            clusters.setdefault(data.cluster, []).append(name)
        info.cluster_addr_table = dict(sorted(clusters.items()))
        return info

    def clusters(self) -> dict[str, list[str]]:
        """The broker names of each cluster."""
        clusters: dict[str, list[str]] = {}
        # Also called on a thread, while brokers come and go.
        for name, replicas in sorted(self._replicas.items(), key=itemgetter(0)):
            clusters.setdefault(replicas.cluster, []).append(name)
        return dict(sorted(clusters.items()))

    def is_broker_or_cluster(self, topic: str) -> bool:
        """Every broker has a topic with its own name and one with its cluster's name."""
        return topic in self._replicas or any(topic == one.cluster for one in self._replicas.values())

    def members(self, name: str) -> dict[int, str]:
        """The addresses of one broker name by id."""
        replicas = self._replicas.get(name)
        return {} if replicas is None else replicas.data().broker_addrs

    def any_address(self) -> str | None:
        """The address of some broker, preferably of a master."""
        brokers = list(self._by_address.values())  # Also called on a thread.
        found = min(brokers, key=lambda broker: (broker.broker_id, broker.name), default=None)
        return None if found is None else found.address

    def topics(self, cluster: str | None = None) -> list[str]:
        """All topics, or the topics on at least one broker of the cluster, in no particular order. Raises
        Refused if they do not fit into an answer."""
        if cluster is None:
            return self._topics.listed()
        return self._topics.listed_on(self.clusters().get(cluster, ()))

    def topics_by_flag(self, *, having: int, lacking: int = 0) -> list[str]:
        """Topics by the bits of their system flag, as the first of their brokers says."""
        return self._topics.listed_by_flag(having, lacking)

    # Internals

    def _at(self, cluster: str, address: str) -> Broker | None:
        broker = self._by_address.get(address)
        return broker if broker is not None and broker.cluster == cluster else None

    def _is_led(self, name: str, connection: int | None) -> bool:
        """Whether the broker name is known and the connection is that of its master."""
        if (replicas := self._replicas.get(name)) is None or connection is None:
            return replicas is not None
        master = replicas.brokers.get(MASTER_ID)
        return master is not None and master.connection == connection

    def _remove_address(self, broker: Broker) -> None:
        del self._by_address[broker.address]
        self._shares.left(broker)
        if self._by_connection.get(broker.connection) == broker.address:
            del self._by_connection[broker.connection]

    def check_claim(self, new: Registration, now_ms: int) -> None:
        """Raises Refused if the registration cannot be taken, whatever topics it brings."""
        at_connection = self._by_connection.get(new.connection, new.address)
        if at_connection != new.address:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"this connection has registered the broker at {at_connection}: one connection registers one "
                f"broker, so open another one for {new.address}",
            )
        replicas = self._replicas.get(new.name)
        if replicas is not None and replicas.cluster != new.cluster:
            self._check_cluster(new, replicas, now_ms)
        self._check_address(new, now_ms)

    def _check(self, new: Registration, now_ms: int) -> list[Broker]:
        """Returns the brokers that have to make room. Raises Refused; then nothing has changed."""
        if new.broker_id < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"brokerId {new.broker_id} is negative")
        if not 0 <= new.epoch <= EPOCH_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"stateVersion {new.epoch} is no epoch: 0 to {EPOCH_MAX}"
            )
        self.check_claim(new, now_ms)
        replicas = self._replicas.get(new.name)
        members = [] if replicas is None else list(replicas.brokers.values())
        holder = replicas.brokers.get(new.broker_id) if replicas else None
        if holder is not None and holder.address != new.address:
            self._check_id(new, holder, now_ms)
        if holder is None and len(new.topics.topic_config_table) == 1:
            # A broker announces one changed topic in the same way as all topics. As its first registration,
            # that would show a broker without its other topics.
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the first registration of {new.name} must bring all its topics"
            )
        kept = None if new.address in self._by_address else self._shares.reserved_for(new)
        topics, kept_topics = new.topics.topic_config_table, 0 if kept is None else kept.topics
        leaving = self._room_for_topics(new.name, source_of(new.remote), topics, now_ms, kept_topics)
        if new.address in self._by_address or kept is not None or holder is not None:
            return leaving
        return leaving + self._shares.room_for(new, self._by_address.values(), members, now_ms)

    def _room_for_topics(
        self, name: str, source: str, topics: Collection[str], now_ms: int, kept: int = 0
    ) -> list[Broker]:
        """Returns the brokers that make room for these topics; raises Refused if there is none. `kept` of the
        places are kept for them."""
        return self._topic_shares.room_for(name, source, self._topics.added(name, topics), kept, now_ms)

    def _check_cluster(self, new: Registration, replicas: Replicas, now_ms: int) -> None:
        """Raises Refused if living brokers of this name are in another cluster."""
        living = [
            broker
            for broker in replicas.brokers.values()
            if broker.is_living(now_ms) and broker.connection != new.connection
        ]
        if not living:
            return
        oldest = min(living, key=lambda broker: broker.since_ms)
        place, words = cluster_place(new.name), (new.cluster, replicas.cluster)
        held_ms = now_ms - oldest.since_ms
        if self._claims.refuse(place, new.party, oldest.party, now_ms, held_ms, words):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"broker name {new.name} belongs to cluster {replicas.cluster}"
            )

    def _check_address(self, new: Registration, now_ms: int) -> None:
        """Raises Refused if a living broker has this address, unless it is the same one."""
        broker = self._by_address.get(new.address)
        if (
            broker is None
            or broker.connection == new.connection
            or not broker.is_living(now_ms)
            or new.party.has_same_key(broker.party)
        ):
            return
        place, held_ms, words = address_place(new.address), now_ms - broker.since_ms, (new.name, broker.name)
        if self._claims.refuse(place, new.party, broker.party, now_ms, held_ms, words):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{new.address} is the address of the living broker {broker.name}, which has registered over "
                "another connection",
            )

    def _check_id(self, new: Registration, holder: Broker, now_ms: int) -> None:
        """Raises Refused if a living broker holds this id, and the new one has no claim to it."""
        if not holder.is_living(now_ms) or may_follow(new, holder, self._by_address.get(new.address), now_ms):
            return
        place, held_ms = id_place(new.name, new.broker_id), now_ms - holder.since_ms
        words = (new.address, holder.address)
        if self._claims.refuse(place, new.party, holder.party, now_ms, held_ms, words):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{holder.address} holds id {new.broker_id} of {new.name} with state version "
                f"{holder.version.state_version} and is up; {new.address} with state version {new.epoch} "
                "does not replace it",
            )

    def _bounded_expiry_ms(self, asked_ms: int | None) -> int:
        if asked_ms is None or asked_ms <= 0:
            return self._expiry_ms
        return min(asked_ms, self._expiry_ms)

    def _leave_former_place(self, new: Registration, now_ms: int) -> None:
        """Removes the broker at this address from its former id, name or cluster: one address is one
        broker. A name that moves to another cluster leaves its former brokers behind."""
        replicas = self._replicas.get(new.name)
        if replicas is not None and replicas.cluster != new.cluster:
            for other in list(replicas.brokers.values()):
                self._remove(other, now_ms, keep=False)
        broker = self._by_address.get(new.address)
        if broker is None:
            return
        if (broker.cluster, broker.name) != (new.cluster, new.name):
            self._remove(broker, now_ms, keep=False)
        elif broker.broker_id != new.broker_id:
            replicas = self._replicas[broker.name]
            del replicas.brokers[broker.broker_id]
            if broker.broker_id == MASTER_ID:
                replicas.led_until_ms = now_ms
            self._claims.forget(id_place(broker.name, broker.broker_id))

    def _take_id(self, new: Registration, replicas: Replicas, now_ms: int) -> None:
        """Removes the former holder of this id and the other claims of the new one."""
        former = replicas.brokers.get(new.broker_id)
        if former is not None and former.address != new.address:
            self._remove_address(former)
            self._remember(former)
            self._claims.forget(address_place(former.address))
            _warn(
                new.remote,
                "%s (from %s) is id %d of %s in place of %s",
                *(new.address, new.remote, new.broker_id, new.name, former.address),
            )
        for place in (id_place(new.name, new.broker_id), id_place(new.name, MASTER_ID)):
            self._claims.withdraw(place, new.party)
        self._claims.withdraw(address_place(new.address), new.party)
        self._claims.withdraw(cluster_place(new.name), new.party)

    def _topics_to_take(
        self, new: Registration, replicas: Replicas, known: Broker | None, drop_missing: bool
    ) -> Iterator[Callable[[], None]]:
        """Steps that take the topics of a registration into the table."""
        leads = new.broker_id == MASTER_ID
        if not leads and not (new.acting_master is not None and replicas.may_bring_topics(new.broker_id)):
            return
        changed = (
            known is None or known.broker_id != new.broker_id or known.version != new.topics.data_version
        )
        topics = new.topics.topic_config_table

        def put(some: Collection[tuple[str, TopicConfig]]) -> None:
            held = self._topics.on(new.name)
            for topic, config in some:
                if topic not in held or (changed and (leads or replicas.master is None)):
                    self._topics.put(topic, queue_data(new.name, config, writable=leads))

        def drop(some: Collection[str]) -> None:
            held = self._topics.on(new.name)
            for topic in some:
                if topic in held:
                    self._topics.drop(topic, new.name)

        for named in in_steps(topics.items()):
            yield partial(put, named)
        if drop_missing and leads and changed:
            for missing in in_steps([topic for topic in self._topics.on(new.name) if topic not in topics]):
                yield partial(drop, missing)


def _note(remote: str, text: str, *arguments: object) -> None:
    peer_log.write(_log, logging.INFO, remote, text, *arguments)


def _warn(remote: str, text: str, *arguments: object) -> None:
    peer_log.write(_log, logging.WARNING, remote, text, *arguments)
