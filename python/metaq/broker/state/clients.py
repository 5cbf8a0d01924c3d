"""The connected clients: producers and consumers by group and by connection, as their heartbeats say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from metaq._core import Clock
from metaq.broker.state.client_limits import ClientBudget, ClientLimits, GroupKey, member_size
from metaq.broker.state.consumer_group import Change, ConsumerGroup, Member
from metaq.broker.state.due_connections import DueConnections
from metaq.protocol.bodies import (
    BROADCASTING,
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
    CONSUME_PASSIVELY,
    ConsumerData,
)

HOLDS_ID_MS = 60_000
"""For this time after its last heartbeat, a client keeps its id against others that claim it. Clients send a
heartbeat every 30 s."""
LOOKED_AT_ONCE = 256
"""Memberships that are looked at for silence before other work has its turn."""
REMOVED_AT_ONCE = 64
"""Memberships of a connection that are removed before other work has its turn."""
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
        self._closed: set[int] = set()
        """Closed connections in `_groups_of`: their clients are about to be removed."""
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
        return [self.producers(group) for group in self.producer_groups()]

    def producers(self, group: str) -> list[Member]:
        members = list(self._producers.get(group, {}).values())
        return [member for member in members if member.connection not in self._closed]

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
        producing = self._producing.get(client_id, {})
        connections = [each for each in producing if each not in self._closed]
        if not connections:
            return None
        heard_since_ms = self.heard_since_ms()
        heard = (each for each in connections if producing[each] >= heard_since_ms)
        return next(heard, connections[-1])

    def heard_since_ms(self) -> int:
        """A client whose last heartbeat came before this time does not keep its id against others."""
        return self._clock.now_ms() - HOLDS_ID_MS

    def groups_subscribing(self, topic: str) -> list[str]:
        """Consumer groups with a live member that subscribes to the topic. The cost grows with the number of
        groups: for work off the event loop, while groups come and go."""
        return sorted(group.name for group in self.all_consumer_groups() if topic in group.subscriptions)

    def groups_of(self, connection: int) -> tuple[set[str], set[str]]:
        """The consumer groups and the producer groups of an open connection."""
        return (set(), set()) if connection in self._closed else self._memberships(connection)

    def _memberships(self, connection: int) -> tuple[set[str], set[str]]:
        return self._groups_of.get(connection, (set(), set()))

    def groups_to_leave(self, connection: int, client_id: str) -> int:
        """How many groups the client of this connection leaves if that gives another client id."""
        known = self._id_of.get(connection)
        return 0 if known in (None, client_id) else sum(map(len, self._memberships(connection)))

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
        for _ in self.identify_in_steps(connection, client_id, but=but):
            pass

    def identify_in_steps(self, connection: int, client_id: str, *, but: str | None = None) -> Iterator[None]:
        """The same; other work may have its turn after each step."""
        known = self._id_of.get(connection)
        self._id_of[connection] = client_id
        if known is None or known == client_id:
            return
        consumer_groups, producer_groups = self._memberships(connection)
        left = [(True, group) for group in consumer_groups - {but}]
        left += [(False, group) for group in producer_groups]
        for number, (is_consumer, group) in enumerate(left, 1):
            member = self._member(is_consumer, group, connection)
            # Meanwhile, the connection may have joined the group by its new id.
            if member is not None and member.client_id != client_id:
                self._remove(is_consumer, group, connection)
            if number % REMOVED_AT_ONCE == 0:
                yield

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
        group = self._consumers.get(data.group_name) or ConsumerGroup(data.group_name, self._closed)
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
        self._memberships(connection)[0].discard(group_name)
        if change is not Change.NOTHING:
            self._changed(group, change)
        self.member_changed(group_name, connection)

    def remove_producer(self, group: str, connection: int) -> None:
        members = self._producers.get(group, {})
        member = members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        producing = self._memberships(connection)[1]
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
        """Removes the client of a closed socket from every group."""
        for _ in self.remove_in_steps(connection):
            pass

    def remove_in_steps(self, connection: int) -> Iterator[None]:
        """The same; other work may have its turn after each step. From the first one on, nobody finds the
        client any more."""
        self._expected.pop(connection, None)
        client_id = self._id_of.get(connection)
        groups = self._memberships(connection)
        removed = 0
        while any(groups):
            self._closed.add(connection)
            left_groups = [(True, group) for group in groups[0]] + [(False, group) for group in groups[1]]
            for is_consumer, group in left_groups:
                self._remove(is_consumer, group, connection)
                groups[0 if is_consumer else 1].discard(group)
                left = self._consumers.get(group)
                if is_consumer and client_id is not None and (left is None or not left.has_client(client_id)):
                    self.vanished(group, client_id)
                removed += 1
                if removed % REMOVED_AT_ONCE == 0:
                    yield
        self._closed.discard(connection)
        self._forget(connection)

    def _member(self, is_consumer: bool, group: str, connection: int) -> Member | None:
        if not is_consumer:
            return self._producers.get(group, {}).get(connection)
        live = self._consumers.get(group)
        return live.members.get(connection) if live is not None else None

    def _remove(self, is_consumer: bool, group: str, connection: int) -> None:
        if is_consumer:
            self.remove_consumer(group, connection)
        else:
            self.remove_producer(group, connection)

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
            consumer_groups, producer_groups = self._memberships(connection)
            for group in list(consumer_groups):
                yield self._remove_silent(True, group, connection, silent_since_ms)
            for group in list(producer_groups):
                yield self._remove_silent(False, group, connection, silent_since_ms)
            self._look_later(connection)

    def _remove_silent(
        self, is_consumer: bool, group: str, connection: int, silent_since_ms: int
    ) -> Member | None:
        """Removes and returns the member, if it is silent and still there."""
        member = self._member(is_consumer, group, connection)
        if member is None or member.seen_ms >= silent_since_ms:
            return None
        self._remove(is_consumer, group, connection)
        return member

    def _look_later(self, connection: int) -> None:
        """Looks at a connection again when its next member may be silent for too long."""
        consumer_groups, producer_groups = self._memberships(connection)
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
