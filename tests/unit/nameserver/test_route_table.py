"""The rules by which brokers and topics enter and leave the table."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from metaq.nameserver.brokers import Registration
from metaq.nameserver.long_routes import keep_zone
from metaq.nameserver.route_table import EXPIRY_MS, RouteTable
from metaq.nameserver.topic_table import TopicTable
from metaq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable
from metaq.protocol.errors import Refused
from metaq.settings import NameServerSettings

NOW = 1_000_000


def topics(*names: str, counter: int = 1, state: int = 0, **config: Any) -> TopicConfigTable:
    table = {name: TopicConfig(topic_name=name, **config) for name in names}
    return TopicConfigTable(DataVersion(counter, state, 7), table)


BASE = Registration("c", "b", 0, "10.0.0.1:10911", topics("A", "B"), "10.0.0.1:10912", connection=1)
REPLICA = dataclasses.replace(BASE, broker_id=1, address="10.0.0.2:10911", connection=2)


def registered(*registrations: Registration) -> RouteTable:
    table = RouteTable()
    for registration in registrations:
        table.register(registration, NOW)
    return table


def with_(base: Registration = BASE, **changes: Any) -> Registration:
    return dataclasses.replace(base, **changes)


def addresses(table: RouteTable, topic: str = "A") -> dict[int, str]:
    route = table.route(topic)
    assert route is not None
    assert len(route.broker_datas) == 1
    return route.broker_datas[0].broker_addrs


def queue(table: RouteTable, topic: str = "A", name: str = "b") -> QueueData:
    route = table.route(topic)
    assert route is not None
    [data] = [data for data in route.queue_datas if data.broker_name == name]
    return data


# Coming


def test_a_broker_brings_its_topics() -> None:
    table = registered(BASE)
    assert table.topics() == ["A", "B"]
    assert addresses(table) == {0: "10.0.0.1:10911"}
    assert queue(table) == QueueData("b", 6, 16, 0, 16)
    assert table.route("C") is None


def test_a_first_registration_of_one_topic_is_refused() -> None:
    table = RouteTable()
    with pytest.raises(Refused, match="must bring all its topics") as caught:
        table.register(with_(topics=topics("A")), NOW)
    assert caught.value.code == 1
    assert (table.clusters(), table.topics()) == ({}, [])


def test_a_first_registration_without_topics_is_not() -> None:
    assert registered(with_(topics=topics())).clusters() == {"c": ["b"]}


def test_one_more_topic_of_a_known_broker_is_added() -> None:
    table = registered(BASE, with_(topics=topics("C", counter=2)))
    assert table.topics() == ["A", "B", "C"]


def test_missing_topics_stay_unless_told_otherwise() -> None:
    table = registered(BASE, with_(topics=topics("B", "C", counter=2)))
    assert table.topics() == ["A", "B", "C"]
    table.register(with_(topics=topics("B", "C", counter=3)), NOW, drop_missing_topics=True)
    assert table.topics() == ["B", "C"]


def test_an_unchanged_version_changes_no_queues() -> None:
    table = registered(BASE, with_(topics=topics("A", "B", "C", read_queue_nums=2)))
    assert queue(table).read_queue_nums == 16
    assert queue(table, "C").read_queue_nums == 2  # It was not there at all.


@pytest.mark.parametrize("version", [DataVersion(2, 0, 7), DataVersion(1, 1, 7), DataVersion(1, 0, 8)])
def test_a_changed_version_replaces_them(version: DataVersion) -> None:
    changed = topics("A", "B", read_queue_nums=2, perm=4, topic_sys_flag=1)
    changed.data_version = version
    table = registered(BASE, with_(topics=changed))
    assert queue(table) == QueueData("b", 4, 2, 1, 16)


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(Refused, match="negative"):
        RouteTable().register(with_(broker_id=-1), NOW)


# Replicas


def test_a_replica_brings_no_topics_but_learns_its_master() -> None:
    table = registered(BASE)
    replica = with_(REPLICA, topics=topics("A", "B", "Z", counter=9))
    master = table.register(replica, NOW)
    assert master is not None
    assert (master.address, master.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")
    assert table.topics() == ["A", "B"]
    assert addresses(table) == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_a_master_has_no_master() -> None:
    assert RouteTable().register(BASE, NOW) is None


def test_a_replica_alone_brings_no_topics_where_it_is_too_old_to_act() -> None:
    table = registered(REPLICA)
    assert table.topics() == []
    assert table.register(REPLICA, NOW) is None


@pytest.mark.parametrize("acting", [True, False])
def test_the_lowest_replica_brings_topics_that_nobody_may_write(acting: bool) -> None:
    table = registered(with_(REPLICA, acting_master=acting))
    assert queue(table).perm == 4
    table.register(
        with_(
            REPLICA, acting_master=acting, broker_id=2, address="x:3", topics=topics("Z", "Y"), connection=3
        ),
        NOW,
    )
    assert table.topics() == ["A", "B"]


def test_a_replica_acts_as_master_in_the_route_where_it_may() -> None:
    acting = with_(REPLICA, acting_master=True)
    table = registered(acting, with_(acting, broker_id=3, address="10.0.0.3:10911", connection=3))
    assert addresses(table) == {0: "10.0.0.2:10911", 3: "10.0.0.3:10911"}
    without = table.route("A", acting_master=False)
    assert without is not None
    assert without.broker_datas[0].broker_addrs == {1: "10.0.0.2:10911", 3: "10.0.0.3:10911"}
    assert table.members("b") == {1: "10.0.0.2:10911", 3: "10.0.0.3:10911"}


def test_a_replica_does_not_act_where_its_broker_forbids_it_or_queues_are_writable() -> None:
    table = registered(with_(REPLICA, acting_master=False))
    assert addresses(table) == {1: "10.0.0.2:10911"}
    table = registered(with_(REPLICA, acting_master=True))
    table.add_write_permission("b")
    assert addresses(table) == {1: "10.0.0.2:10911"}


def test_replicas_see_each_other_as_they_are() -> None:
    members = "rmq_sys_SYNC_BROKER_MEMBER_b"
    table = registered(with_(REPLICA, acting_master=True, topics=topics(members, "A")))
    assert addresses(table, members) == {1: "10.0.0.2:10911"}


def test_a_lost_master_takes_the_write_permission_with_it_where_a_replica_acts() -> None:
    table = registered(with_(acting_master=True), with_(REPLICA, acting_master=True))
    assert queue(table).perm == 6
    table.unregister("c", BASE.address, NOW)
    assert queue(table).perm == 4
    assert addresses(table) == {0: "10.0.0.2:10911"}
    table = registered(BASE, REPLICA)
    table.unregister("c", BASE.address)
    assert queue(table).perm == 6
    assert addresses(table) == {1: "10.0.0.2:10911"}


# Moving


def test_an_address_under_another_id_is_moved() -> None:
    table = registered(BASE, REPLICA)
    table.unregister("c", BASE.address)
    table.register(with_(REPLICA, broker_id=0, topics=topics("A", "B", counter=2, perm=4)), NOW)
    assert addresses(table) == {0: "10.0.0.2:10911"}
    assert queue(table).perm == 4


def test_a_promoted_replica_replaces_the_master_that_is_still_there() -> None:
    table = registered(
        with_(key="k"),
        with_(REPLICA, key="k"),
        with_(REPLICA, key="k", broker_id=0, topics=topics("A", "B", state=1)),
    )
    assert addresses(table) == {0: "10.0.0.2:10911"}
    table.connection_closed(BASE.connection)
    assert addresses(table) == {0: "10.0.0.2:10911"}


def test_a_member_with_a_later_epoch_takes_the_id_and_the_former_master_is_refused() -> None:
    master = with_(topics=topics("A", "B", state=4), key="k")
    promoted = with_(REPLICA, broker_id=0, topics=topics("A", "B", state=5), key="k")
    table = registered(master, with_(REPLICA, key="k"), promoted)
    assert addresses(table) == {0: "10.0.0.2:10911"}
    with pytest.raises(Refused, match=r"10\.0\.0\.2:10911 holds id 0 of b with state version 5 and is up"):
        table.register(master, NOW)
    assert addresses(table) == {0: "10.0.0.2:10911"}
    table.register(with_(master, broker_id=1, topics=topics("A", "B", state=5)), NOW)
    assert addresses(table) == {0: "10.0.0.2:10911", 1: "10.0.0.1:10911"}
    # A switch back, at once.
    table.register(with_(master, topics=topics("A", "B", state=6)), NOW)
    assert addresses(table) == {0: "10.0.0.1:10911"}
    assert table.version_of("c", "10.0.0.2:10911") is None


def test_an_address_under_another_name_leaves_the_first() -> None:
    table = registered(BASE, with_(name="n"))
    assert table.clusters() == {"c": ["n"]}
    assert queue(table, name="n").broker_name == "n"


def test_a_name_belongs_to_one_cluster() -> None:
    table = registered(BASE, with_(cluster="d"))
    assert table.clusters() == {"d": ["b"]}
    with pytest.raises(Refused, match="broker name b belongs to cluster d"):
        table.register(with_(REPLICA, cluster="c"), NOW)


# Leaving


def test_the_last_broker_of_a_name_takes_its_topics_along() -> None:
    other = with_(name="o", address="10.0.0.5:1", topics=topics("B", "C"), connection=5)
    table = registered(BASE, REPLICA, other)
    assert table.unregister("c", BASE.address)
    assert table.topics() == ["A", "B", "C"]
    assert table.unregister("c", REPLICA.address)
    assert table.topics() == ["B", "C"]
    assert not table.unregister("c", REPLICA.address)
    assert table.clusters() == {"c": ["o"]}


def test_unregistering_under_another_cluster_does_nothing() -> None:
    table = registered(BASE)
    assert not table.unregister("d", BASE.address)
    assert table.topics() == ["A", "B"]


def test_a_closed_connection_unregisters() -> None:
    table = registered(BASE, REPLICA)
    table.connection_closed(77)
    table.connection_closed(REPLICA.connection)
    assert addresses(table) == {0: "10.0.0.1:10911"}
    table.connection_closed(BASE.connection)
    assert table.topics() == []


def test_a_broker_that_came_back_over_another_connection_stays() -> None:
    table = registered(BASE)
    table.connection_closed(BASE.connection)
    table.register(with_(connection=3), NOW)
    table.connection_closed(BASE.connection)
    assert table.topics() == ["A", "B"]


def test_silence_expires() -> None:
    table = registered(BASE, with_(REPLICA, expiry_ms=1000))
    assert table.expire(NOW + 1000) == []
    assert [broker.address for broker in table.expire(NOW + 1001)] == [REPLICA.address]
    assert table.expire(NOW + EXPIRY_MS) == []
    assert [broker.address for broker in table.expire(NOW + EXPIRY_MS + 1)] == [BASE.address]
    assert table.topics() == []


def test_a_sign_of_life_keeps_a_broker() -> None:
    table = registered(BASE)
    assert table.touch("c", BASE.address, BASE.connection, NOW + EXPIRY_MS)
    assert table.expire(NOW + 2 * EXPIRY_MS) == []
    assert table.touch("c", BASE.address, BASE.connection, NOW + 2 * EXPIRY_MS, 10)
    assert len(table.expire(NOW + 2 * EXPIRY_MS + 11)) == 1
    assert not table.touch("c", BASE.address, BASE.connection, NOW)


@pytest.mark.parametrize(
    ("asked", "given"), [(None, EXPIRY_MS), (0, EXPIRY_MS), (-5, EXPIRY_MS), (2**62, EXPIRY_MS)]
)
def test_expiry_is_bounded(asked: int | None, given: int) -> None:
    table = registered(with_(expiry_ms=asked))
    assert table.expire(NOW + given) == []
    assert len(table.expire(NOW + given + 1)) == 1


def test_a_jump_of_the_clock_expires_nobody() -> None:
    table = registered(BASE)
    table.shift_time(3_600_000)
    assert table.expire(NOW + 3_600_000 + EXPIRY_MS) == []


# Topics


def test_write_permission_is_wiped_and_given_back() -> None:
    other = with_(name="o", address="10.0.0.5:1", connection=5)
    table = registered(BASE, other)
    assert table.wipe_write_permission("b") == 2
    assert (queue(table).perm, queue(table, name="o").perm) == (4, 6)
    table.register(BASE, NOW)
    assert queue(table).perm == 4  # Its version is the same: a renewal does not undo what an operator did.
    assert table.add_write_permission("b") == 2
    assert queue(table).perm == 6
    assert table.wipe_write_permission("nobody") == 0


def test_topics_are_deleted_everywhere_or_in_one_cluster() -> None:
    other = with_(cluster="d", name="o", address="10.0.0.5:1", connection=5)
    table = registered(BASE, other)
    table.delete_topic("A", "d")
    route = table.route("A")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["b"]
    assert table.topics("d") == ["B"]
    table.delete_topic("B")
    table.delete_topic("B")
    table.delete_topic("A", "nowhere")
    assert table.topics() == ["A"]


def test_queues_are_registered_for_known_brokers() -> None:
    table = registered(BASE)
    table.put_queues("N", [QueueData("b", 6, 1, 0, 1), QueueData("unknown", 6, 1, 0, 1)])
    assert queue(table, "N").read_queue_nums == 1
    route = table.route("N")
    assert route is not None
    assert len(route.queue_datas) == 1


def test_topics_by_flag() -> None:
    table = registered(with_(topics=topics("none", "none2")))
    for flag, name in ((1, "unit"), (2, "subscribed"), (3, "both")):
        table.put_queues(name, [QueueData("b", topic_sys_flag=flag)])
    assert sorted(table.topics_by_flag(having=1)) == ["both", "unit"]
    assert sorted(table.topics_by_flag(having=2)) == ["both", "subscribed"]
    assert sorted(table.topics_by_flag(having=2, lacking=1)) == ["subscribed"]


def test_a_route_names_every_broker_in_order() -> None:
    names = ["z", "a", "m"]
    table = registered(*(with_(name=name, address=f"{name}:1", connection=ord(name)) for name in names))
    route = table.route("A")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["a", "m", "z"]
    assert [data.broker_name for data in route.queue_datas] == ["a", "m", "z"]


def test_zones() -> None:
    east = with_(zone="East")
    west = with_(name="w", address="w:1", zone="west", connection=5)
    masterless = with_(name="m", broker_id=1, address="m:1", zone="north", acting_master=False, connection=6)
    route = registered(east, west, masterless).route("A")
    assert route is not None
    kept = keep_zone(route, "EAST")
    assert [data.broker_name for data in kept.broker_datas] == ["b", "m"]
    assert [data.broker_name for data in kept.queue_datas] == ["b", "m"]


def test_the_cluster_s_picture() -> None:
    table = registered(BASE, REPLICA, with_(cluster="d", name="o", address="o:1", connection=5))
    info = table.cluster_info()
    assert info.cluster_addr_table == {"c": ["b"], "d": ["o"]}
    assert info.broker_addr_table["b"].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert table.any_address() == "10.0.0.1:10911"
    assert RouteTable().any_address() is None
    assert table.members("nobody") == {}


# Limits


@pytest.mark.parametrize("option", ["nameserver_brokers_max", "nameserver_members_max"])
def test_the_number_of_brokers_is_bounded(option: str) -> None:
    table = RouteTable(limits=NameServerSettings(**{option: 1}))
    table.register(BASE, NOW)
    with pytest.raises(Refused, match=rf"already 1 brokers.*\({option} of the name server\)"):
        table.register(REPLICA, NOW)
    table.register(BASE, NOW)


@pytest.mark.parametrize(
    ("option", "limit"), [("nameserver_topics_max", 6), ("nameserver_broker_topics_max", 3)]
)
def test_the_number_of_topics_is_bounded(option: str, limit: int) -> None:
    """One address may have half of all topics."""
    table = RouteTable(limits=NameServerSettings(**{option: limit}))
    table.register(BASE, NOW)
    table.register(with_(topics=topics("C", counter=2)), NOW)
    with pytest.raises(Refused, match=rf"more than 3 .*\({option}"):
        table.register(with_(topics=topics("D", counter=3)), NOW)
    with pytest.raises(Refused, match=rf"more than 3 .*\({option}"):
        table.put_queues("D", [QueueData("b", 6, 1, 0, 1)])
    table.put_queues("C", [QueueData("b", 6, 1, 0, 1)])
    table.register(with_(topics=topics("A", "B", "C", counter=3)), NOW)
    table.delete_topic("A")
    table.register(with_(topics=topics("D", counter=4)), NOW)
    assert table.topics() == ["B", "C", "D"]


def test_a_list_that_no_peer_reads_is_refused_before_it_is_built() -> None:
    """Six registrations of 100,000 topics made an answer of 78 MB."""
    limits = NameServerSettings(answer_bytes_max=10_000)
    table = RouteTable(limits=limits)
    for number in range(6):
        names = [f"{'x' * 90}-{number}-{topic}" for topic in range(50)]
        table.register(
            with_(name=f"b{number}", address=f"h:{number + 1}", topics=topics(*names), connection=number), NOW
        )
        if number == 0:
            assert len(table.topics()) == 50
    with pytest.raises(Refused, match=r"all 300 topics has 2\d{4} bytes, but an answer may have 10000"):
        table.topics()
    with pytest.raises(Refused, match="300 topics of this cluster has"):
        table.topics("c")
    for number in range(1, 6):
        table.unregister("c", f"h:{number + 1}")
    assert sorted(table.topics()) == sorted(table.topics("c"))
    assert len(table.topics()) == 50


def test_a_broker_that_leaves_costs_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, every topic of the name server was looked at."""
    large = with_(name="large", address="h:2", topics=topics(*map(str, range(1_000))), connection=7)
    table = registered(large, BASE)
    dropped: list[str] = []
    drop = TopicTable.drop

    def noting(self: TopicTable, topic: str, name: str) -> None:
        dropped.append(topic)
        drop(self, topic, name)

    monkeypatch.setattr(TopicTable, "drop", noting)
    table.connection_closed(BASE.connection)
    assert dropped == ["A", "B"]


# Whatever happens

steps = st.one_of(
    st.tuples(
        st.just("register"),
        st.builds(
            Registration,
            cluster=st.sampled_from("cd"),
            name=st.sampled_from("bn"),
            broker_id=st.integers(0, 2),
            address=st.sampled_from(["h:1", "h:2", "h:3"]),
            topics=st.builds(
                lambda names, counter, state: topics(*names, counter=counter, state=state),
                st.sets(st.sampled_from("ABC")),
                st.integers(0, 2),
                st.integers(0, 1),
            ),
            acting_master=st.sampled_from([None, True, False]),
            expiry_ms=st.sampled_from([None, 10]),
            connection=st.integers(0, 3),
            key=st.sampled_from([None, "k"]),
        ),
    ),
    st.tuples(
        st.just("unregister"), st.tuples(st.sampled_from("cd"), st.sampled_from(["h:1", "h:2", "h:3"]))
    ),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.just(0)),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from("ABC"), st.sampled_from([None, "c", "d"]))),
    st.tuples(st.just("wipe"), st.sampled_from("bn")),
)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(steps, max_size=30))
def test_the_table_stays_of_one_piece(history: list[tuple[str, Any]]) -> None:
    table = RouteTable()
    now_ms = NOW
    for step, detail in history:
        now_ms += 6
        if step == "register":
            try:
                table.register(detail, now_ms, drop_missing_topics=detail.expiry_ms is None)
            except Refused:
                continue
            assert table.members(detail.name)[detail.broker_id] == detail.address
        elif step == "unregister":
            table.unregister(*detail)
            assert table.version_of(*detail) is None
        elif step == "close":
            table.connection_closed(detail)
        elif step == "expire":
            table.expire(now_ms)
        elif step == "delete":
            table.delete_topic(*detail)
        else:
            table.wipe_write_permission(detail)
        check_whole(table)


def check_whole(table: RouteTable) -> None:
    info = table.cluster_info()
    everywhere = [
        address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()
    ]
    assert len(everywhere) == len(set(everywhere))  # One address is one broker.
    for name, data in info.broker_addr_table.items():
        assert data.broker_addrs
        assert name in info.cluster_addr_table[data.cluster]
        for address in data.broker_addrs.values():
            assert table.version_of(data.cluster, address) is not None
    entries = 0
    for topic in table.topics():
        route = table.route(topic)
        assert route is not None
        names = [data.broker_name for data in route.broker_datas]
        assert names == [data.broker_name for data in route.queue_datas]
        entries += len(names)
    assert entries == table._topics.entries
