"""The connected clients: producers and consumers by group and by connection, as their heartbeats say."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from metaq._core import Clock
from metaq.broker.state.client_limits import ClientBudget, ClientLimits, GroupKey, Size, member_size
from metaq.broker.state.due_connections import DueConnections
from metaq.protocol.bodies import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
    CONSUME_PASSIVELY,
    ConsumerData,
    SubscriptionData,
)

HOLDS_ID_MS = 60_000
"""For this time after its last heartbeat, a client keeps its id against others that claim it. Clients send a
heartbeat every 30 s."""
VERSION_SKEW_MS = 60_000
"""Clients number the versions of their subscriptions by their clocks. A version counts as at most this much
newer than now, so that nobody can announce one that stays the newest."""
GROUP_TOPICS_MAX = 2_000
"""Topics that a group shows as subscribed to. Its members subscribe to the same ones, up to 1,000. A member
gets the messages of its own subscriptions in any case."""
LOOKED_AT_ONCE = 256
"""Memberships that are looked at for silence before other work has its turn."""
CONSUME_TYPES = frozenset({CONSUME_PASSIVELY, "CONSUME_ACTIVELY", "CONSUME_POP"})
CONSUME_FROM = frozenset(
    {
        CONSUME_FROM_FIRST_OFFSET,
        CONSUME_FROM_LAST_OFFSET,
        CONSUME_FROM_TIMESTAMP,
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    }
)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Change(Enum):
    """The effect of a heartbeat or a farewell on a group."""

    NOTHING = 0
    FILTERS = 1
    """The data plane needs the new filters; the shares of the consumers stay."""
    SHARES = 2
    """Its consumers must divide the queues again."""


@dataclass(slots=True)
class Member:
    """One client program in one group, on one connection."""

    connection: int
    client_id: str
    language: int
    version: int
    remote: str
    seen_ms: int
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic; none for a producer."""
    announced: dict[str, int] = field(default_factory=dict)
    """By topic, the versions that the client gave, where they are too high to count."""
    broadcasting: bool = False
    fingerprint: int = 0
    """The hash that the client gave with its last full heartbeat; 0 if it gave none."""
    size: Size | None = None
    """The memory that is counted for it."""
    standing: object = None
    """Its subscriptions as the data plane keeps them."""

    def version_of(self, topic: str) -> int:
        """The version that the client gave to its subscription. Its pulls give the same one."""
        return self.announced.get(topic, self.subscriptions[topic].sub_version)

    def announced_subscriptions(self) -> dict[str, SubscriptionData]:
        """Its subscriptions with the versions that it gave."""
        return self.subscriptions | {
            topic: msgspec.structs.replace(self.subscriptions[topic], sub_version=version)
            for topic, version in self.announced.items()
        }

    def subscribe(self, entries: Iterable[SubscriptionData], known: Member | None, now_ms: int) -> None:
        """Takes the subscriptions of a heartbeat. `known` is the same member before it."""
        newest_ms = now_ms + VERSION_SKEW_MS
        for entry in entries:
            version = min(max(entry.sub_version, INT64_MIN), INT64_MAX)
            if version > newest_ms:
                self.announced[entry.topic] = version
                entry = msgspec.structs.replace(entry, sub_version=newest_ms)
                if known is not None and known.announced.get(entry.topic) == version:
                    # The same heartbeat again changes nothing.
                    entry.sub_version = known.subscriptions[entry.topic].sub_version
            else:
                self.announced.pop(entry.topic, None)
            self.subscriptions[entry.topic] = entry

    def gets_the_same(self, other: Member) -> bool:
        """Whether the pulls of both get the same messages."""
        return (self.broadcasting, self.announced, self.subscriptions) == (
            other.broadcasting,
            other.announced,
            other.subscriptions,
        )


class ConsumerGroup:
    """A group's live consumers. Each member gets messages by its own subscriptions and its own mode."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = CONSUME_PASSIVELY
        self.consume_from_where = CONSUME_FROM_LAST_OFFSET
        self.members: dict[int, Member] = {}
        """By connection."""
        self.subscriptions: dict[str, SubscriptionData] = {}
        """By topic, for those who ask about the group: the newest if members differ."""
        self._subscribers: dict[str, dict[int, None]] = {}
        """Topic → the connections of its members that subscribe to it."""
        self._client_ids: Counter[str] = Counter()
        self._sorted_ids: list[str] = []
        """The same ids in order: all members ask for them at the same time."""
        self._broadcasters = 0

    @property
    def broadcasting(self) -> bool:
        """Whether all members are in broadcast mode."""
        return 0 < len(self.members) == self._broadcasters

    @property
    def message_model(self) -> str:
        return BROADCASTING if self.broadcasting else CLUSTERING

    def client_ids(self) -> list[str]:
        """Each id once, in order. Every consumer must compute the same shares from this list, and a client
        that has just reconnected can be here twice for a moment."""
        return list(self._sorted_ids)

    def has_client(self, client_id: str) -> bool:
        return client_id in self._client_ids

    def find(self, client_id: str, heard_since_ms: int) -> Member | None:
        """The member with this id. If several claim it, the first one that was heard since then: the later
        ones may be impostors. If none was, the last one, which may have just reconnected."""
        found = [member for member in self.members.values() if member.client_id == client_id]
        heard = (member for member in found if member.seen_ms >= heard_since_ms)
        return next(heard, found[-1] if found else None)

    def put(self, member: Member) -> Change:
        """Adds or replaces the member. The cost does not grow with the number of members."""
        known = self.members.get(member.connection)
        ids_before, shown_before = len(self._client_ids), self._shown(member, known)
        if known is not None and known.client_id != member.client_id:
            self._count_out(known)
        is_new_id = member.client_id not in self._client_ids
        if known is None or known.client_id != member.client_id:
            self._client_ids[member.client_id] += 1
        if is_new_id:
            insort(self._sorted_ids, member.client_id)
        self.members[member.connection] = member
        self._broadcasters += member.broadcasting - (known is not None and known.broadcasting)
        for topic, subscription in member.subscriptions.items():
            self._subscribers.setdefault(topic, {})[member.connection] = None
            newest = self.subscriptions.get(topic)
            if newest is None and len(self.subscriptions) >= GROUP_TOPICS_MAX:
                continue
            if newest is None or subscription.sub_version >= newest.sub_version:
                self.subscriptions[topic] = subscription
        if known is not None:
            self._let_go(known)
        return self._compared(is_new_id or ids_before != len(self._client_ids), shown_before)

    def remove(self, connection: int) -> Change:
        known = self.members.pop(connection, None)
        if known is None:
            return Change.NOTHING
        ids_before, shown_before = len(self._client_ids), self._shown(known)
        self._broadcasters -= known.broadcasting
        self._count_out(known)
        self._let_go(known)
        return self._compared(ids_before != len(self._client_ids), shown_before)

    def _shown(self, *members: Member | None) -> dict[str, SubscriptionData | None]:
        """The group's subscriptions to the topics of these members. It may have many more topics."""
        topics = [topic for member in members if member is not None for topic in member.subscriptions]
        return {topic: self.subscriptions.get(topic) for topic in topics}

    def _compared(self, ids_changed: bool, shown_before: dict[str, SubscriptionData | None]) -> Change:
        shown = [(before, self.subscriptions.get(topic)) for topic, before in shown_before.items()]
        if ids_changed or any((before is None) != (now is None) for before, now in shown):
            return Change.SHARES
        return Change.FILTERS if any(before != now for before, now in shown) else Change.NOTHING

    def _count_out(self, member: Member) -> None:
        self._client_ids[member.client_id] -= 1
        if self._client_ids[member.client_id] == 0:
            del self._client_ids[member.client_id]
            del self._sorted_ids[bisect_left(self._sorted_ids, member.client_id)]

    def _let_go(self, former: Member) -> None:
        """Finds the next newest subscription for each topic where the former member's was the newest. The
        cost grows with the members that subscribe to the same topic, not with all of them."""
        successor = self.members.get(former.connection)
        if successor is not None and successor.subscriptions is former.subscriptions:
            return
        for topic, subscription in former.subscriptions.items():
            subscribers = self._subscribers.get(topic, {})
            if successor is None or topic not in successor.subscriptions:
                subscribers.pop(former.connection, None)
            if not subscribers:
                self._subscribers.pop(topic, None)
            if self.subscriptions.get(topic) is not subscription:
                continue
            others = [self.members[connection].subscriptions[topic] for connection in subscribers]
            if others:
                self.subscriptions[topic] = max(others, key=lambda entry: entry.sub_version)
            else:
                del self.subscriptions[topic]


class Clients:
    """The live groups. `changed` is called for every consumer group whose members, subscriptions or mode
    change.

    A connection has one client id. If it gives another one, its former client leaves all groups."""

    def __init__(
        self,
        clock: Clock,
        expiry_s: float,
        changed: Callable[[ConsumerGroup, Change], None],
        limits: ClientLimits | None = None,
        count_group: Callable[[str, int], None] = lambda group, more_bytes: None,
    ) -> None:
        self._clock = clock
        self.vanished: Callable[[str, str], None] = lambda group, client_id: None
        """Called with a consumer group and a client id when the last connection of a client has closed
        without a farewell."""
        self.member_changed: Callable[[str, int], None] = lambda group, connection: None
        """Called with a consumer group and a connection when that member comes, leaves, or changes what it
        wants. The group itself may not have changed."""
        self.convert: Callable[[Member], object] = lambda member: None
        """Makes what the data plane gets of a consumer. It raises before anything is kept."""
        self._expiry_ms = int(expiry_s * 1000)
        self._changed = changed
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[int, Member]] = {}
        self._producer_members = 0
        """The members of all producer groups, each once for each of its groups."""
        self._producing: dict[str, dict[int, int]] = {}
        """Client id → its connections that produce, oldest first, and when each of them was heard last."""
        self._groups_of: dict[int, tuple[set[str], set[str]]] = {}
        """Connection → its consumer groups and its producer groups."""
        self._due = DueConnections()
        """The connections in `_groups_of`."""
        self._expected: Counter[int] = Counter()
        """Connections with a heartbeat whose filters are being compiled."""
        self._id_of: dict[int, str] = {}
        """Connection → the client id that it gave last."""
        self.budget = ClientBudget(limits or ClientLimits(), count_group)

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self._consumers.get(name)

    def all_consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def all_producers(self) -> list[list[Member]]:
        """The producers of each group."""
        return [list(members.values()) for members in list(self._producers.values())]

    def producers(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[str]:
        """In no particular order: there may be very many of them."""
        return list(self._producers)

    def producer_lines(self) -> tuple[int, int]:
        """How many producer groups there are, and how many members they have together."""
        return len(self._producers), self._producer_members

    def producer_connection(self, client_id: str) -> int | None:
        """The connection on which that client produces. If several claim its id, the first one that is not
        silent: the later ones may be impostors. If all are silent, the last one, which may be the client
        after it has reconnected."""
        connections = self._producing.get(client_id)
        if not connections:
            return None
        heard_since_ms = self.heard_since_ms()
        heard = (each for each, seen_ms in connections.items() if seen_ms >= heard_since_ms)
        return next(heard, next(reversed(connections)))

    def heard_since_ms(self) -> int:
        """A client whose last heartbeat came before this time does not keep its id against others."""
        return self._clock.now_ms() - HOLDS_ID_MS

    def groups_subscribing(self, topic: str) -> list[str]:
        """Consumer groups with a live member that subscribes to the topic. The cost grows with the number of
        groups: for work off the event loop, while groups come and go."""
        return sorted(group.name for group in self.all_consumer_groups() if topic in group.subscriptions)

    def groups_of(self, connection: int) -> tuple[set[str], set[str]]:
        """The consumer groups and the producer groups of a connection."""
        return self._groups_of.get(connection, (set(), set()))

    def expect(self, connection: int) -> None:
        """Notes that a heartbeat of this connection is taken later."""
        self._expected[connection] += 1

    def is_still_here(self, connection: int) -> bool:
        """Whether the connection has not closed since `expect`, which this undoes."""
        if connection not in self._expected:
            return False
        self._expected[connection] -= 1
        if self._expected[connection] == 0:
            del self._expected[connection]
        return True

    def identify(self, connection: int, client_id: str, *, but: str | None = None) -> None:
        """Gives the connection this client id. A client that it had before leaves all groups, but for a
        consumer group in which the caller replaces it."""
        known = self._id_of.get(connection)
        self._id_of[connection] = client_id
        if known is not None and known != client_id:
            consumer_groups, producer_groups = self.groups_of(connection)
            for group in consumer_groups - {but}:
                self.remove_consumer(group, connection)
            for group in list(producer_groups):
                self.remove_producer(group, connection)

    def check_room(self, data: ConsumerData, connection: int, remote: str) -> None:
        """Raises Refused if `put_consumer` would."""
        group = self._consumers.get(data.group_name)
        known = group.members.get(connection) if group is not None else None
        before = known.size if known is not None else None
        self.budget.check(
            connection,
            remote,
            _consumers(data.group_name),
            before,
            member_size(data.subscription_data_set),
        )

    def put_consumer(
        self, data: ConsumerData, member: Member, *, without_subscriptions: bool = False
    ) -> None:
        """Takes one group of a heartbeat. One without subscriptions only says that the client is alive; its
        known subscriptions stay. Raises Refused past a limit."""
        self.identify(member.connection, member.client_id, but=data.group_name)
        group = self._consumers.get(data.group_name) or ConsumerGroup(data.group_name)
        known = group.members.get(member.connection)
        if without_subscriptions:
            member.subscriptions = known.subscriptions if known else {}
            member.announced = known.announced if known else {}
            member.fingerprint = known.fingerprint if known else 0
        else:
            member.subscriptions, member.announced = {}, {}
            member.subscribe(data.subscription_data_set, known, self._clock.now_ms())
        if known is not None and member.subscriptions is known.subscriptions:
            member.size = known.size
        else:
            member.size = member_size(member.subscriptions.values())
        member.standing = self.convert(member)
        self.budget.change(
            member.connection,
            member.remote,
            _consumers(group.name),
            known.size if known else None,
            member.size,
        )
        self._consumers[group.name] = group
        model = group.message_model
        member.broadcasting = data.message_model == BROADCASTING
        # Whatever else a client says is not worth keeping.
        if data.consume_type in CONSUME_TYPES:
            group.consume_type = data.consume_type
        if data.consume_from_where in CONSUME_FROM:
            group.consume_from_where = data.consume_from_where
        self._of(member)[0].add(group.name)
        change = group.put(member)
        if change is Change.NOTHING and model != group.message_model:
            change = Change.FILTERS
        if change is not Change.NOTHING:
            self._changed(group, change)
        if known is None or not member.gets_the_same(known):
            self.member_changed(group.name, member.connection)

    def put_producer(self, group: str, member: Member) -> None:
        """Raises Refused past a limit."""
        self.identify(member.connection, member.client_id)
        known = self._producers.get(group, {}).get(member.connection)
        member.size = known.size if known is not None else member_size()
        self.budget.change(
            member.connection,
            member.remote,
            _producers(group),
            known.size if known is not None else None,
            member.size,
        )
        self._producers.setdefault(group, {})[member.connection] = member
        self._producer_members += known is None
        self._producing.setdefault(member.client_id, {})[member.connection] = member.seen_ms
        self._of(member)[1].add(group)

    def fingerprint(self, group: str, connection: int) -> int:
        """The hash of this client's last full heartbeat in this group; 0 if there was none."""
        known = self._consumers.get(group)
        member = known.members.get(connection) if known else None
        return member.fingerprint if member else 0

    def remove_consumer(self, group_name: str, connection: int) -> None:
        group = self._consumers.get(group_name)
        member = group.members.get(connection) if group is not None else None
        if group is None or member is None:
            return
        self.budget.change(connection, member.remote, _consumers(group_name), member.size, None)
        change = group.remove(connection)
        if not group.members:
            del self._consumers[group_name]
        self.groups_of(connection)[0].discard(group_name)
        if change is not Change.NOTHING:
            self._changed(group, change)
        self.member_changed(group_name, connection)

    def remove_producer(self, group: str, connection: int) -> None:
        members = self._producers.get(group, {})
        member = members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        producing = self.groups_of(connection)[1]
        producing.discard(group)
        if member is not None:
            self._producer_members -= 1
            self.budget.change(connection, member.remote, _producers(group), member.size, None)
        if member is not None and not producing:
            connections = self._producing.get(member.client_id, {})
            connections.pop(connection, None)
            if not connections:
                self._producing.pop(member.client_id, None)

    def remove_connection(self, connection: int) -> None:
        """Removes the client of a closed socket from every group at once."""
        self._expected.pop(connection, None)
        consumer_groups, producer_groups = self.groups_of(connection)
        client_id = self._id_of.get(connection)
        for group in list(consumer_groups):
            self.remove_consumer(group, connection)
            left = self._consumers.get(group)
            if client_id is not None and (left is None or not left.has_client(client_id)):
                self.vanished(group, client_id)
        for group in list(producer_groups):
            self.remove_producer(group, connection)
        self._forget(connection)

    def _forget(self, connection: int) -> None:
        self._groups_of.pop(connection, None)
        self._due.remove(connection)
        self._id_of.pop(connection, None)

    def remove_expired(self) -> Iterator[list[Member]]:
        """Removes clients that were silent for too long, although their socket is open. It works in steps:
        each yields the clients that it has removed, and other work may have its turn before the next one."""
        silent_since_ms = self._clock.now_ms() - self._expiry_ms
        expired: list[Member] = []
        for number, member in enumerate(self._looks(silent_since_ms), 1):
            if member is not None:
                expired.append(member)
            if number % LOOKED_AT_ONCE == 0:
                yield expired
                expired = []
        yield expired

    def _looks(self, silent_since_ms: int) -> Iterator[Member | None]:
        """Yields for each connection that is due, and for each of its memberships: the one that was removed,
        or None."""
        while (connection := self._due.oldest(silent_since_ms)) is not None:
            yield None
            consumer_groups, producer_groups = self.groups_of(connection)
            for group in list(consumer_groups):
                yield self._remove_silent(True, group, connection, silent_since_ms)
            for group in list(producer_groups):
                yield self._remove_silent(False, group, connection, silent_since_ms)
            self._look_later(connection)

    def _remove_silent(
        self, is_consumer: bool, group: str, connection: int, silent_since_ms: int
    ) -> Member | None:
        """Removes and returns the member, if it is silent and still there."""
        if is_consumer:
            live = self._consumers.get(group)
            member = live.members.get(connection) if live is not None else None
        else:
            member = self._producers.get(group, {}).get(connection)
        if member is None or member.seen_ms >= silent_since_ms:
            return None
        if is_consumer:
            self.remove_consumer(group, connection)
        else:
            self.remove_producer(group, connection)
        return member

    def _look_later(self, connection: int) -> None:
        """Looks at a connection again when its next member may be silent for too long."""
        consumer_groups, producer_groups = self.groups_of(connection)
        seen_ms = [self._consumers[group].members[connection].seen_ms for group in consumer_groups]
        seen_ms += [self._producers[group][connection].seen_ms for group in producer_groups]
        if seen_ms:
            self._due.add(connection, min(seen_ms))
        else:
            self._forget(connection)

    def shift_time(self, by_ms: int) -> None:
        """Forgives silence after the clock was set or this process did not run."""
        for group in self._consumers.values():
            for member in group.members.values():
                member.seen_ms += by_ms
        for members in self._producers.values():
            for member in members.values():
                member.seen_ms += by_ms
        for connections in self._producing.values():
            for connection in connections:
                connections[connection] += by_ms
        self._due.shift(by_ms)

    def _of(self, member: Member) -> tuple[set[str], set[str]]:
        """The groups of a member's connection."""
        if member.connection not in self._groups_of:
            self._groups_of[member.connection] = (set(), set())
            self._due.add(member.connection, member.seen_ms)
        return self._groups_of[member.connection]


def _consumers(group: str) -> GroupKey:
    return "consumer", group


def _producers(group: str) -> GroupKey:
    return "producer", group
