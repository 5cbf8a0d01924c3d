"""Connected clients: joining, leaving, expiring, and notices to the others."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq._core import Clock
from metaq.broker.state.client_limits import MEMBER_BYTES, ClientLimits, Size
from metaq.broker.state.clients import HOLDS_ID_MS, LOOKED_AT_ONCE, Clients
from metaq.broker.state.consumer_group import GROUP_TOPICS_MAX, Change, ConsumerGroup, Member
from metaq.protocol.bodies import ConsumerData, SubscriptionData
from metaq.protocol.errors import Refused


class Crowd:
    """Clients with a record of the changes they reported."""

    def __init__(self, expiry_s: float = 120.0, limits: ClientLimits | None = None) -> None:
        self.clock = Clock.manual(1_000_000)
        self.changes: list[tuple[str, Change]] = []
        self.clients = Clients(self.clock, expiry_s, self._note, limits)

    def _note(self, group: ConsumerGroup, change: Change) -> None:
        self.changes.append((group.name, change))

    def member(self, connection: int, client_id: str | None = None, host: str = "") -> Member:
        remote = f"{host or f'h{connection}'}:1"
        return Member(connection, client_id or f"c{connection}", 0, 513, remote, self.clock.now_ms())

    def expired(self) -> list[Member]:
        """The members that expire at this look."""
        return list(chain.from_iterable(self.clients.remove_expired()))

    def join(
        self,
        connection: int,
        group: str = "g",
        client_id: str | None = None,
        model: str = "CLUSTERING",
        **topics: int,
    ) -> None:
        """`topics` are versions by name."""
        data = ConsumerData(
            group_name=group,
            message_model=model,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_version=version) for topic, version in topics.items()
            ],
        )
        self.clients.put_consumer(data, self.member(connection, client_id))

    def group(self, name: str = "g") -> ConsumerGroup:
        found = self.clients.consumer_group(name)
        assert found is not None
        return found

    def taken_changes(self) -> list[tuple[str, Change]]:
        changes, self.changes = self.changes, []
        return changes


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_joining_and_leaving_changes_the_shares(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    crowd.join(2, t=1)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    assert crowd.group().client_ids() == ["c1", "c2"]
    crowd.clients.remove_consumer("g", 1)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    crowd.clients.remove_connection(2)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    assert crowd.clients.consumer_group("g") is None
    crowd.clients.remove_consumer("g", 2)
    assert crowd.taken_changes() == []


def test_the_same_heartbeat_again_changes_nothing(crowd: Crowd) -> None:
    crowd.join(1, t=1, u=1)
    crowd.taken_changes()
    for _ in range(3):
        crowd.join(1, t=1, u=1)
    assert crowd.taken_changes() == []


def test_a_reconnected_client_is_listed_once_and_shakes_nobody(crowd: Crowd) -> None:
    crowd.join(1, client_id="a", t=1)
    crowd.taken_changes()
    crowd.join(2, client_id="a", t=1)
    assert crowd.group().client_ids() == ["a"]
    crowd.clients.remove_connection(1)
    assert crowd.group().client_ids() == ["a"]
    assert crowd.taken_changes() == []
    crowd.clients.remove_connection(2)
    assert crowd.taken_changes() == [("g", Change.SHARES)]


def test_a_list_of_members_is_not_sorted_for_each_who_asks(crowd: Crowd) -> None:
    class Id(str):
        compared = 0

        def __lt__(self, other: str) -> bool:
            Id.compared += 1
            return str.__lt__(self, other)

    for number in range(1_000):
        crowd.join(number, client_id=Id(f"c{number * 7 % 1_000:03}"))
    Id.compared = 0
    for _ in range(1_000):
        assert len(crowd.group().client_ids()) == 1_000
    assert Id.compared == 0
    crowd.clients.remove_connection(500)
    assert crowd.group().client_ids() == sorted(
        f"c{number * 7 % 1_000:03}" for number in range(1_000) if number != 500
    )


def test_a_connection_can_change_its_client_id(crowd: Crowd) -> None:
    crowd.join(1, client_id="a", t=1)
    crowd.taken_changes()
    crowd.join(1, client_id="b", t=1)
    assert crowd.group().client_ids() == ["b"]
    assert crowd.taken_changes() == [("g", Change.SHARES)]


def test_topics_taken_up_and_given_up_change_the_shares(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.taken_changes()
    crowd.join(1, t=1, u=2)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    crowd.join(1, u=2)
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    assert set(crowd.group().subscriptions) == {"u"}


def test_a_newer_filter_is_for_the_data_plane_only(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.taken_changes()
    crowd.join(1, t=2)
    assert crowd.taken_changes() == [("g", Change.FILTERS)]
    assert crowd.group().subscriptions["t"].sub_version == 2


def test_the_newest_of_different_subscriptions_counts_until_its_member_leaves(crowd: Crowd) -> None:
    crowd.join(1, t=5)
    crowd.join(2, t=9)
    crowd.join(1, t=5)
    assert crowd.group().subscriptions["t"].sub_version == 9
    crowd.clients.remove_consumer("g", 2)
    assert crowd.group().subscriptions["t"].sub_version == 5


def test_a_change_of_mode_is_told(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.taken_changes()
    crowd.join(1, model="BROADCASTING", t=1)
    assert crowd.group().broadcasting
    assert crowd.taken_changes() == [("g", Change.FILTERS)]


def test_a_short_heartbeat_keeps_what_is_known(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.taken_changes()
    crowd.clients.put_consumer(ConsumerData(group_name="g"), crowd.member(1), without_subscriptions=True)
    assert set(crowd.group().subscriptions) == {"t"}
    assert crowd.taken_changes() == []


def test_a_closed_socket_leaves_every_group(crowd: Crowd) -> None:
    crowd.join(1, "g1", t=1)
    crowd.join(1, "g2", t=1)
    crowd.clients.put_producer("p", crowd.member(1))
    crowd.clients.remove_connection(1)
    assert crowd.clients.consumer_group("g1") is None
    assert crowd.clients.consumer_group("g2") is None
    assert crowd.clients.producers("p") == []
    assert crowd.clients.groups_of(1) == (set(), set())


def test_the_silent_expire_and_the_others_hear_of_it(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.join(2, t=1)
    crowd.clients.put_producer("p", crowd.member(3))
    crowd.clock.advance_ms(100_000)
    crowd.join(2, t=1)
    assert crowd.expired() == []
    crowd.clock.advance_ms(20_001)
    crowd.taken_changes()
    assert sorted(member.connection for member in crowd.expired()) == [1, 3]
    assert crowd.group().client_ids() == ["c2"]
    assert crowd.taken_changes() == [("g", Change.SHARES)]
    assert crowd.clients.producers("p") == []


class CountedMember(Member):
    """Counts how often somebody asks when a member was seen."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "seen_ms":
            CountedMember.looks += 1
        return super().__getattribute__(name)


def test_a_look_for_silent_clients_costs_what_is_due_and_has_its_turn_in_steps(crowd: Crowd) -> None:
    connections, groups = 10, 200

    def beat() -> None:
        for connection in range(connections):
            for group in range(groups):
                member = crowd.member(connection)
                fields = (getattr(member, name) for name in Member.__slots__[:6])
                crowd.clients.put_producer(f"p{group}", CountedMember(*fields))

    def looks() -> list[int]:
        """How many members each step of one look for silent clients looks at."""
        counts, CountedMember.looks = [], 0
        for _ in crowd.clients.remove_expired():
            counts.append(CountedMember.looks)
            CountedMember.looks = 0
        return counts

    beat()
    crowd.clock.advance_ms(100_000)
    beat()
    assert looks() == [0], "nobody can be silent for too long yet"
    crowd.clock.advance_ms(20_001)
    # A step looks at no more than its share, and once more at those of the connections that it ends.
    assert max(looks()) <= LOOKED_AT_ONCE + 2 * groups
    crowd.clock.advance_ms(1_000)
    assert looks() == [0], "each connection is looked at once in the time after which clients expire"
    crowd.clock.advance_ms(100_000)
    assert max(looks()) <= LOOKED_AT_ONCE + 2 * groups
    assert crowd.clients.producer_groups() == []
    assert len(crowd.clients._due) == 0


def test_one_silent_group_of_a_client_expires_alone(crowd: Crowd) -> None:
    crowd.join(1, "g1", t=1)
    crowd.join(1, "g2", t=1)
    crowd.clock.advance_ms(90_000)
    crowd.join(1, "g2", t=1)
    crowd.clock.advance_ms(30_001)
    assert len(crowd.expired()) == 1
    assert crowd.clients.groups_of(1) == ({"g2"}, set())
    crowd.clients.shift_time(60_000)
    crowd.clock.advance_ms(149_999)
    assert crowd.expired() == []
    crowd.clock.advance_ms(1)
    assert len(crowd.expired()) == 1
    assert crowd.clients.groups_of(1) == (set(), set())


def test_clients_may_come_and_go_between_two_steps_of_a_look(crowd: Crowd) -> None:
    for connection in (1, 2):
        for group in range(LOOKED_AT_ONCE):
            crowd.clients.put_producer(f"p{group}", crowd.member(connection))
    crowd.clock.advance_ms(120_001)
    steps = crowd.clients.remove_expired()
    assert len(next(steps)) == LOOKED_AT_ONCE - 1
    crowd.clients.remove_connection(1)
    crowd.clients.put_producer("p0", crowd.member(2))
    crowd.clients.put_producer("p0", crowd.member(3))
    assert sum(map(len, steps)) == LOOKED_AT_ONCE - 1
    assert [member.connection for member in crowd.clients.producers("p0")] == [2, 3]
    assert crowd.clients.producer_lines() == (1, 2)


def test_a_look_that_nobody_finishes_loses_nobody(crowd: Crowd) -> None:
    for group in range(2 * LOOKED_AT_ONCE):
        crowd.clients.put_producer(f"p{group}", crowd.member(1))
    crowd.clock.advance_ms(120_001)
    removed = len(next(crowd.clients.remove_expired()))
    assert 0 < removed < 2 * LOOKED_AT_ONCE
    assert removed + len(crowd.expired()) == 2 * LOOKED_AT_ONCE
    assert crowd.clients.producer_lines() == (0, 0)


def test_who_subscribes(crowd: Crowd) -> None:
    crowd.join(1, "g1", t=1)
    crowd.join(2, "g2", t=1, u=1)
    assert crowd.clients.groups_subscribing("t") == ["g1", "g2"]
    assert crowd.clients.groups_subscribing("u") == ["g2"]


beat = st.tuples(
    st.just("beat"),
    st.integers(0, 4),
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 5)),
)
no_topics: dict[str, int] = {}
leave = st.tuples(st.just("leave"), st.integers(0, 4), st.just(""), st.just(no_topics))


@settings(max_examples=300, deadline=None)
@given(events=st.lists(st.one_of(beat, leave), max_size=40))
def test_against_a_simple_model(events: list[tuple[str, int, str, dict[str, int]]]) -> None:
    """Counters, shortcuts and reported changes agree with looking at every member each time."""
    crowd = Crowd()
    model: dict[int, tuple[str, dict[str, int]]] = {}

    def shape() -> tuple[list[str], dict[str, int]]:
        newest: dict[str, int] = {}
        for _, topics in model.values():
            for topic, version in topics.items():
                newest[topic] = max(version, newest.get(topic, version))
        return sorted({client_id for client_id, _ in model.values()}), newest

    for kind, connection, client_id, topics in events:
        before = shape()
        if kind == "beat":
            model[connection] = (client_id, topics)
            crowd.join(connection, "g", client_id, "CLUSTERING", **topics)
        else:
            model.pop(connection, None)
            crowd.clients.remove_connection(connection)
        after = shape()
        group: Any = crowd.clients.consumer_group("g")
        assert (group is not None) == bool(model)
        if group is not None:
            versions = {topic: entry.sub_version for topic, entry in group.subscriptions.items()}
            assert (group.client_ids(), versions) == after
        told = crowd.taken_changes()
        if (before[0], set(before[1])) != (after[0], set(after[1])):
            assert told == [("g", Change.SHARES)]
        elif before != after:
            assert told == [("g", Change.FILTERS)]
        else:
            assert told == []


def test_a_new_client_id_on_a_connection_releases_the_former_client(crowd: Crowd) -> None:
    clients = crowd.clients
    crowd.join(1, "g1", client_id="a", t=1)
    crowd.join(1, "g2", client_id="a", t=1)
    clients.put_producer("p", crowd.member(1, "a"))
    before = clients.budget.total
    crowd.join(1, "g1", client_id="b", t=1)
    assert crowd.group("g1").client_ids() == ["b"]
    assert clients.consumer_group("g2") is None
    assert clients.producers("p") == []
    assert clients.producer_connection("a") is None
    assert clients.budget.total.bytes < before.bytes


def test_many_client_ids_on_one_connection_take_no_memory(crowd: Crowd) -> None:
    clients = crowd.clients
    for number in range(20_000):
        clients.put_producer("p", crowd.member(1, f"client-{number}"))
    tables = [value for value in vars(clients).values() if isinstance(value, dict)]
    assert all(len(table) <= 1 for table in tables)
    assert clients.budget.total == Size(MEMBER_BYTES, 0)
    clients.remove_connection(1)
    assert clients.budget.total == Size()
    assert not any(value for value in vars(clients).values() if isinstance(value, dict))


def test_a_client_keeps_its_id_until_it_is_silent(crowd: Crowd) -> None:
    clients = crowd.clients
    for connection in (1, 2, 3):
        clients.put_producer("p", crowd.member(connection, "a"))
        crowd.join(connection, client_id="a", t=1)

    def holder() -> tuple[int | None, int]:
        member = crowd.group().find("a", clients.heard_since_ms())
        assert member is not None
        return clients.producer_connection("a"), member.connection

    assert holder() == (1, 1)
    crowd.clock.advance_ms(HOLDS_ID_MS + 1)
    assert holder() == (3, 3), "all are silent, and the last one may have just reconnected"
    clients.put_producer("p", crowd.member(2, "a"))
    crowd.join(2, client_id="a", t=1)
    assert holder() == (2, 2)
    clients.remove_connection(2)
    assert holder() == (3, 3)


def test_what_clients_make_the_broker_remember_is_bounded() -> None:
    limits = ClientLimits(
        clients_per_group_max=2,
        subscriptions_per_client_max=3,
        bytes_per_client_max=10_000,
        bytes_per_group_max=15_000,
        bytes_max=18_000,
    )
    crowd = Crowd(limits=limits)

    def join(connection: int, group: str, characters: int, count: int = 1) -> None:
        entries = [
            SubscriptionData(topic=f"t{number}", sub_string="x" * characters) for number in range(count)
        ]
        data = ConsumerData(group_name=group, subscription_data_set=entries)
        crowd.clients.put_consumer(data, crowd.member(connection))

    join(1, "g", 2_000)
    with pytest.raises(Refused, match="client_bytes_max"):
        join(1, "h", 2_000)
    with pytest.raises(Refused, match="subscriptions_per_client_max"):
        join(1, "h", 1, count=3)
    with pytest.raises(Refused, match="group_clients_bytes_max"):
        join(2, "g", 2_700)
    join(2, "g", 2_000)
    with pytest.raises(Refused, match="clients_per_group_max"):
        join(3, "g", 1)
    with pytest.raises(Refused, match="clients_bytes_max"):
        join(3, "h", 2_000)
    join(1, "g", 2_000)
    join(1, "g", 10)
    join(3, "h", 2_000)
    assert crowd.clients.consumer_group("h") is not None
    for connection in (1, 2, 3):
        crowd.clients.remove_connection(connection)
    assert crowd.clients.budget.total == Size()


def test_clients_of_one_address_leave_room_for_others() -> None:
    crowd = Crowd(limits=ClientLimits(bytes_max=20 * MEMBER_BYTES))

    def fill(hosts: tuple[str, ...]) -> int:
        """How many clients these machines can connect."""
        taken = 0
        for connection in range(100):
            member = crowd.member(connection, host=hosts[connection % len(hosts)])
            try:
                crowd.clients.put_producer(f"p{connection}", member)
            except Refused as refused:
                assert "half of clients_bytes_max" in refused.remark
                assert f"clients at {hosts[0].strip('[]')[:9]}" in refused.remark
            else:
                taken += 1
        return taken

    assert fill(("127.0.0.1",)) == 10
    crowd.clients.put_producer("p", crowd.member(200, host="127.0.0.9"))
    # Present members go on, and members that leave make room.
    crowd.clients.put_producer("p0", crowd.member(0, host="127.0.0.1"))
    for connection in (*range(100), 200):
        crowd.clients.remove_connection(connection)
    assert fill(("[2001:db8::1]", "[2001:db8::2]")) == 10, "one customer has a whole IPv6 subnet"
    for connection in range(100):
        crowd.clients.remove_connection(connection)
    assert crowd.clients.budget._of_address == {}


@pytest.mark.parametrize(("per_address", "share"), [(300, 300), (2_000, 500)])
def test_an_address_never_has_more_than_half(per_address: int, share: int) -> None:
    assert ClientLimits(bytes_max=1_000, bytes_per_address_max=per_address).share_of_address == share


def test_many_claims_of_one_client_id_are_not_looked_at_by_group(crowd: Crowd) -> None:
    for connection in range(3):
        for group in range(100):
            member = crowd.member(connection, "a")
            fields = (getattr(member, name) for name in Member.__slots__[:6])
            crowd.clients.put_producer(f"p{group}", CountedMember(*fields))
    crowd.clock.advance_ms(HOLDS_ID_MS + 1)
    CountedMember.looks = 0
    assert crowd.clients.producer_connection("a") == 2
    assert CountedMember.looks == 0


def test_a_producer_is_found_by_its_client_id(clock: Clock) -> None:
    clients = Clients(clock, 120.0, lambda group, change: None)
    assert clients.producer_connection("a") is None
    clients.put_producer("p", Member(1, "a", 0, 513, "h:1", 0))
    clients.put_producer("q", Member(1, "a", 0, 513, "h:1", 0))
    clients.put_producer("p", Member(2, "a", 0, 513, "h:2", 0))
    assert clients.producer_groups() == ["p", "q"]
    assert clients.producer_connection("a") == 2, "the connection it made last"
    clients.remove_connection(2)
    assert clients.producer_connection("a") == 1
    clients.remove_producer("p", 1)
    assert clients.producer_connection("a") == 1, "it still produces for q"
    clients.remove_producer("q", 1)
    assert clients.producer_connection("a") is None


def test_what_is_remembered_counts_in_the_account_of_the_group() -> None:
    accounts: Counter[str] = Counter()

    def count(group: str, more_bytes: int) -> None:
        accounts[group] += more_bytes

    crowd = Crowd()
    clients = Clients(crowd.clock, 120.0, lambda group, change: None, None, count)
    subscription = SubscriptionData(topic="t", sub_string="a" * 1_000)
    data = ConsumerData(group_name="g", subscription_data_set=[subscription])
    clients.put_consumer(data, crowd.member(1))
    clients.put_consumer(data, crowd.member(2))
    clients.put_producer("g", crowd.member(1))
    assert accounts["g"] == clients.budget.total.bytes > 2_000
    clients.remove_connection(1)
    clients.remove_connection(2)
    assert accounts == {"g": 0}


def test_letting_go_of_topics_looks_only_at_their_other_subscribers(crowd: Crowd) -> None:
    looks = Counter[str]()

    class Watched(dict[str, SubscriptionData]):
        def __contains__(self, topic: object) -> bool:
            looks["asked"] += 1
            return super().__contains__(topic)

    for connection in range(1, 201):
        crowd.join(connection, other=1)
        member = crowd.group().members[connection]
        member.subscriptions = Watched(member.subscriptions)
    topics = {f"t{number}": 5 for number in range(100)}
    crowd.join(500, **topics)
    crowd.join(501, t0=4)
    looks.clear()
    crowd.join(500, **dict.fromkeys(topics, 1))
    assert crowd.group().subscriptions["t0"].sub_version == 4
    assert crowd.group().subscriptions["t1"].sub_version == 1
    assert looks["asked"] == 0, "nobody asks 200 members about 100 topics that they do not subscribe to"
    crowd.clients.remove_consumer("g", 500)
    assert crowd.group().subscriptions.keys() == {"other", "t0"}
    crowd.clients.remove_consumer("g", 501)
    assert crowd.group()._subscribers.keys() == {"other"}


class NotWalked(dict[Any, Any]):
    """A table that is too long to be copied or looked at as a whole."""

    def _walk(self, *arguments: object) -> Any:
        raise AssertionError("the whole table is looked at")

    items = values = keys = __iter__ = __eq__ = __ne__ = _walk


def test_a_heartbeat_costs_nothing_for_the_other_topics_and_members_of_a_group(crowd: Crowd) -> None:
    crowd.join(1, t=2, u=2)
    crowd.join(2, t=1)
    group = crowd.group()
    group.subscriptions = NotWalked(group.subscriptions)
    crowd.join(2, t=1, v=1)
    crowd.join(2, t=1)
    group._subscribers = {topic: NotWalked(known) for topic, known in group._subscribers.items()}
    # A short heartbeat of the member whose subscriptions the group shows.
    data = ConsumerData(group_name="g")
    crowd.clients.put_consumer(data, crowd.member(1), without_subscriptions=True)
    assert group.subscriptions["t"].sub_version == 2


def test_a_group_shows_a_limited_number_of_topics(crowd: Crowd) -> None:
    crowd.join(1, honest=1)
    for connection in range(2, 6):
        crowd.join(connection, **{f"t{connection}-{number}": 1 for number in range(900)})
    group = crowd.group()
    assert len(group.subscriptions) == GROUP_TOPICS_MAX and "honest" in group.subscriptions
    assert len(group.members[5].subscriptions) == 900, "each member gets what it asks for"
    for connection in range(2, 5):
        crowd.clients.remove_consumer("g", connection)
    crowd.join(5, **{f"t5-{number}": 1 for number in range(900)})
    assert len(crowd.group().subscriptions) == 901


def test_a_consumer_that_the_data_plane_cannot_hold_is_not_kept(crowd: Crowd) -> None:
    crowd.join(1, t=1)
    crowd.taken_changes()
    total = crowd.clients.budget.total

    def refuse(member: Member) -> None:
        raise OverflowError

    crowd.clients.convert = refuse
    for connection, group in ((2, "g"), (3, "h"), (1, "g")):
        with pytest.raises(OverflowError):
            crowd.join(connection, group, t=1, u=2)
    assert crowd.taken_changes() == []
    assert crowd.clients.budget.total == total
    assert crowd.group().members.keys() == {1} and crowd.group().subscriptions.keys() == {"t"}
    assert crowd.clients.consumer_group("h") is None


def test_words_that_nobody_knows_are_not_kept(crowd: Crowd) -> None:
    for words in ("CONSUME_ACTIVELY", "x" * 4_000):
        where = "CONSUME_FROM_TIMESTAMP" if len(words) < 100 else words
        data = ConsumerData(group_name="g", consume_type=words, consume_from_where=where)
        crowd.clients.put_consumer(data, crowd.member(1))
    shown = crowd.group().consume_type, crowd.group().consume_from_where
    assert shown == ("CONSUME_ACTIVELY", "CONSUME_FROM_TIMESTAMP")
