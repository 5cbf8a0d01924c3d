"""A living broker keeps its place, and wins it back from whoever took it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from metaq.nameserver.brokers import LIVING_MS, Party, Registration
from metaq.nameserver.claims import (
    CLAIMANTS_MAX,
    MISSED_BEATS_MS,
    PATIENCE_MS,
    TENURES_MAX,
    Claims,
)
from metaq.nameserver.route_table import EXPIRY_MS, RouteTable
from metaq.nameserver.tenure_file import TenureFile
from metaq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable
from metaq.protocol.errors import Refused

NOW = 1_000_000
TOPICS = {name: TopicConfig(topic_name=name) for name in ("A", "B")}


def registration(address: str, connection: int, epoch: int = 0, **changes: Any) -> Registration:
    topics = TopicConfigTable(DataVersion(1, epoch, 7), TOPICS)
    base = Registration("c", "b", 0, address, topics, connection=connection, remote=f"peer-{connection}:1")
    return dataclasses.replace(base, **changes)


LIVING = registration("10.0.0.1:10911", 1, remote="10.0.0.1:50001")
LIAR = registration("6.6.6.6:666", 2)


def master_of(table: RouteTable) -> str | None:
    return table.members("b").get(0)


@pytest.mark.parametrize("epoch", [0, 1, 5, 2**31 - 1])
def test_a_stranger_does_not_replace_a_living_master(epoch: int) -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    with pytest.raises(Refused, match="holds id 0 of b"):
        table.register(registration("6.6.6.6:666", 2, epoch, expiry_ms=2**63 - 1), NOW)
    assert master_of(table) == "10.0.0.1:10911"


@pytest.mark.parametrize("epoch", [-1, 2**31, 2**62])
def test_an_epoch_that_cannot_be_is_refused(epoch: int) -> None:
    with pytest.raises(Refused, match="is no epoch"):
        RouteTable().register(registration("6.6.6.6:666", 2, epoch), NOW)


def test_no_broker_stays_longer_than_the_name_server_allows() -> None:
    table = RouteTable()
    table.register(registration("6.6.6.6:666", 2, expiry_ms=2**63 - 1), NOW)
    assert table.touch("c", "6.6.6.6:666", 2, NOW, 2**63 - 1)
    assert [broker.address for broker in table.expire(NOW + EXPIRY_MS + 1)] == ["6.6.6.6:666"]


def test_only_its_own_connection_changes_the_expiry_of_a_broker() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    assert not table.touch("c", LIVING.address, 2, NOW, 1)
    assert table.expire(NOW + 10_000) == []


def test_no_other_connection_keeps_a_broker_alive() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    assert not table.touch("c", LIVING.address, 2, NOW + EXPIRY_MS)
    assert [broker.address for broker in table.expire(NOW + EXPIRY_MS + 1)] == [LIVING.address]


def test_the_living_broker_wins_back_its_place_from_a_liar_that_was_first() -> None:
    """The liar came before the name server knew the broker, and claims the highest epoch."""
    table = RouteTable()
    liar = registration("6.6.6.6:666", 2, 2**31 - 1)
    table.register(liar, NOW)
    for seconds in (0, 1, 3, 7, 15, 29):
        with pytest.raises(Refused):
            table.register(LIVING, NOW + seconds * 1000)
        table.register(liar, NOW + seconds * 1000)
    table.register(LIVING, NOW + 31_000)
    assert master_of(table) == LIVING.address
    with pytest.raises(Refused):
        table.register(liar, NOW + 31_001)
    assert master_of(table) == LIVING.address


@pytest.mark.parametrize("epoch", [4, 5, 6])
@pytest.mark.parametrize("key", [None, "a key of the liar"])
def test_a_false_member_does_not_become_master(epoch: int, key: str | None) -> None:
    """The liar registers as a replica and then claims the next epoch, as a real replica would."""
    table = RouteTable()
    living = registration("10.0.0.1:10911", 1, 4, key="a key of the group")
    table.register(living, NOW)
    table.register(registration("6.6.6.6:666", 2, 4, broker_id=9, key=key), NOW)
    for now_ms in range(NOW, NOW + 10 * MINUTE_MS, 1_000):
        with pytest.raises(Refused, match="holds id 0 of b"):
            table.register(registration("6.6.6.6:666", 2, epoch, key=key), now_ms)
        assert table.touch("c", living.address, 1, now_ms)
    assert master_of(table) == living.address


def test_a_node_with_the_key_of_its_group_becomes_master_at_once() -> None:
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, 4, key="k"), NOW)
    table.register(registration("10.0.0.2:10911", 2, 4, broker_id=2, key="k"), NOW)
    table.register(registration("10.0.0.2:10911", 2, 5, key="k"), NOW)
    assert master_of(table) == "10.0.0.2:10911"
    # The former master does not know it yet.
    with pytest.raises(Refused, match="holds id 0 of b"):
        table.register(registration("10.0.0.1:10911", 1, 4, key="k"), NOW)
    table.register(registration("10.0.0.1:10911", 1, 5, broker_id=1, key="k"), NOW)
    assert table.members("b") == {0: "10.0.0.2:10911", 1: "10.0.0.1:10911"}


def test_a_copy_of_a_broker_does_not_replace_it() -> None:
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, key="k"), NOW)
    for now_ms in range(NOW, NOW + 10 * MINUTE_MS, 10_000):
        with pytest.raises(Refused, match="holds id 0 of b"):
            table.register(registration("10.0.0.2:10911", 2, key="k"), now_ms)
        table.register(registration("10.0.0.1:10911", 1, key="k"), now_ms)


def test_a_broker_with_its_key_registers_over_another_connection_at_once() -> None:
    """Its former connection may be dead without the name server knowing."""
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, key="k"), NOW)
    table.register(registration("10.0.0.1:10911", 2, key="k"), NOW)
    table.connection_closed(1)
    assert master_of(table) == "10.0.0.1:10911"
    table.connection_closed(2)
    assert master_of(table) is None


@pytest.mark.parametrize("key", [None, "another"])
@pytest.mark.parametrize("broker_id", [0, 3])
def test_nobody_registers_a_living_broker_over_another_connection(key: str | None, broker_id: int) -> None:
    """The end of the other connection would remove it, and its registration could empty its topics."""
    table = RouteTable()
    table.register(LIVING, NOW)
    copied = dataclasses.replace(LIVING, connection=2, key=key, broker_id=broker_id)
    for later_ms in (0, PATIENCE_MS, LIVING_MS):
        with pytest.raises(Refused, match="is the address of the living broker b"):
            table.register(copied, NOW + later_ms)
    table.connection_closed(2)
    assert table.members("b") == {0: LIVING.address}
    table.register(copied, NOW + LIVING_MS + 1)
    assert table.members("b") == {broker_id: LIVING.address}


def test_a_member_replaces_a_master_that_misses_its_beats() -> None:
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, 4, expiry_ms=10_000), NOW)
    replica = registration("10.0.0.2:10911", 2, 4, broker_id=2)
    table.register(replica, NOW)
    promoted = dataclasses.replace(registration("10.0.0.2:10911", 2, 5))
    with pytest.raises(Refused):
        table.register(promoted, NOW + MISSED_BEATS_MS)
    table.register(promoted, NOW + MISSED_BEATS_MS + 1)
    assert master_of(table) == "10.0.0.2:10911"


def test_one_connection_registers_one_broker() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    for other in (
        dataclasses.replace(LIVING, address="10.0.0.1:20911", broker_id=1),
        dataclasses.replace(LIVING, address="10.0.0.1:20911", name="other"),
    ):
        with pytest.raises(Refused, match="one connection registers one broker"):
            table.register(other, NOW)
    assert table.clusters() == {"c": ["b"]}
    table.unregister("c", LIVING.address, NOW, connection=LIVING.connection)
    table.register(dataclasses.replace(LIVING, address="10.0.0.1:20911"), NOW)


def test_a_replica_changes_nothing_for_its_master() -> None:
    table = RouteTable()
    table.register(dataclasses.replace(LIVING, zone="here"), NOW)
    table.register(registration("6.6.6.6:666", 2, broker_id=9, zone="away", acting_master=True), NOW)
    table.put_queues("A", [QueueData("b", 0, 0, 0, 0)], connection=2)
    route = table.route("A")
    assert route is not None
    assert route.queue_datas == [QueueData("b", 6, 16, 0, 16)]
    assert (route.broker_datas[0].zone_name, route.broker_datas[0].enable_acting_master) == ("here", False)


def test_an_epoch_far_ahead_of_the_group_is_not_believed_even_of_a_member() -> None:
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, 4), NOW)
    table.register(registration("6.6.6.6:666", 2, 4, broker_id=9), NOW)
    with pytest.raises(Refused):
        table.register(registration("6.6.6.6:666", 2, 2_000_000), NOW)
    assert master_of(table) == "10.0.0.1:10911"


def test_brokers_without_epochs_switch_when_their_master_has_left_its_id() -> None:
    """Apache's DLedger groups: the former leader registers as a replica."""
    table = RouteTable()
    table.register(LIVING, NOW)
    table.register(registration("10.0.0.2:10911", 2, broker_id=2), NOW)
    with pytest.raises(Refused):
        table.register(registration("10.0.0.2:10911", 2), NOW)
    table.register(dataclasses.replace(LIVING, broker_id=1), NOW)
    table.register(registration("10.0.0.2:10911", 2), NOW)
    assert master_of(table) == "10.0.0.2:10911"


def test_a_broker_at_a_new_address_replaces_one_that_is_gone() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    moved = registration("10.0.0.1:20911", 2)
    # The end of its connection removes a broker that was restarted on another port.
    table.connection_closed(1)
    table.register(moved, NOW)
    assert master_of(table) == moved.address
    # A machine that lost its power says nothing, but brokers are never silent for so long.
    again = registration("10.0.0.9:10911", 3)
    with pytest.raises(Refused):
        table.register(again, NOW + LIVING_MS)
    table.register(again, NOW + LIVING_MS + 1)
    assert master_of(table) == again.address


def test_the_address_of_a_living_broker_cannot_be_given_to_another_name() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    thief = dataclasses.replace(LIAR, name="evil", address=LIVING.address)
    with pytest.raises(Refused, match="is the address of the living broker b"):
        table.register(thief, NOW)
    assert table.clusters() == {"c": ["b"]}
    for now_ms in range(NOW, NOW + 10 * MINUTE_MS, 10_000):
        table.register(LIVING, now_ms)
        with pytest.raises(Refused):
            table.register(thief, now_ms)
    assert table.clusters() == {"c": ["b"]}


def test_the_cluster_of_a_living_broker_is_kept_and_won_back() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    thief = dataclasses.replace(LIAR, cluster="evil", broker_id=9)
    for now_ms in range(NOW, NOW + 10 * MINUTE_MS, 10_000):
        table.register(LIVING, now_ms)
        with pytest.raises(Refused, match="belongs to cluster c"):
            table.register(thief, now_ms)
    # The thief comes while the broker is away.
    table.connection_closed(LIVING.connection)
    begin_ms = NOW + 10 * MINUTE_MS
    table.register(thief, begin_ms)
    assert table.clusters() == {"evil": ["b"]}
    with pytest.raises(Refused, match="belongs to cluster evil"):
        table.register(LIVING, begin_ms)
    table.register(thief, begin_ms + PATIENCE_MS)
    table.register(LIVING, begin_ms + PATIENCE_MS)
    assert (table.clusters(), table.members("b")) == ({"c": ["b"]}, {0: LIVING.address})


def test_only_its_own_connection_announces_a_topic_of_a_broker() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    table.put_queues("A", [QueueData("b", 0, 0, 0, 0)], connection=2)
    table.put_queues("fake", [QueueData("b", 6, 1, 0, 1)], connection=2)
    route = table.route("A")
    assert route is not None
    assert route.queue_datas == [QueueData("b", 6, 16, 0, 16)]
    assert table.route("fake") is None
    table.put_queues("new", [QueueData("b", 6, 1, 0, 1)], connection=1)
    assert table.route("new") is not None


def test_an_address_belongs_to_its_host_however_long_another_one_had_it() -> None:
    """The stranger registers the address of a broker that has not started yet."""
    table = RouteTable()
    squatter = registration(LIVING.address, 2, name="zzz", remote="7.7.7.7:50000", key="s")
    for now_ms in range(NOW, NOW + 120 * MINUTE_MS, 10_000):
        table.register(squatter, now_ms)
    began_ms = NOW + 120 * MINUTE_MS
    for later_ms in range(0, PATIENCE_MS, 10_000):
        table.register(squatter, began_ms + later_ms)
        with pytest.raises(Refused, match="is the address of the living broker zzz"):
            table.register(LIVING, began_ms + later_ms)
    table.register(LIVING, began_ms + PATIENCE_MS)
    assert master_of(table) == LIVING.address
    for now_ms in range(began_ms + PATIENCE_MS, began_ms + 10 * MINUTE_MS, 10_000):
        table.register(LIVING, now_ms)
        with pytest.raises(Refused):
            table.register(squatter, now_ms)


def test_a_node_of_the_masters_group_gets_the_id_that_a_stranger_holds() -> None:
    table = RouteTable()
    table.register(dataclasses.replace(LIVING, key="k"), NOW)
    table.register(registration("6.6.6.6:666", 2, broker_id=2, key="s"), NOW)
    node = registration("10.0.0.2:10911", 3, broker_id=2, key="k")
    table.register(node, NOW + MINUTE_MS)
    assert table.members("b") == {0: LIVING.address, 2: node.address}
    with pytest.raises(Refused, match="holds id 2 of b"):
        table.register(registration("10.0.0.3:10911", 4, broker_id=2, key="k"), NOW + MINUTE_MS)


def test_a_broker_wins_its_place_back_after_a_restart_of_the_name_server(tmp_path: Path) -> None:
    """The stranger is first after the restart."""
    own, file = dataclasses.replace(LIVING, key="k"), TenureFile(tmp_path / "tenures")
    before = RouteTable()
    before.register(own, NOW)
    before.register(own, NOW + MINUTE_MS)
    before.register(registration("10.0.0.2:10911", 3, broker_id=2, key="k2"), NOW)
    before.connection_closed(3, NOW + 10_000)
    file.save(before.tenures())
    after = RouteTable()
    after.restore_tenures(file.load())
    again_ms = NOW + 2 * MINUTE_MS
    after.register(LIAR, again_ms)
    after.register(dataclasses.replace(LIAR, address=own.address, name="evil", connection=4), again_ms)
    after.register(own, again_ms + MINUTE_MS - 1)
    assert (master_of(after), after.clusters()) == (own.address, {"c": ["b"]})
    assert sorted(after.tenures(), key=str) != []


@pytest.mark.parametrize(
    "content", [b"", b"[", b"[" * 100_000, b'[{"place":"p"}]', b'[{"place":"","owner":"o","source":"s"}]']
)
def test_a_damaged_file_of_tenures_is_left_out(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tenures"
    path.write_bytes(content)
    assert TenureFile(path).load() == []
    assert "cannot be read" in caplog.text


def test_many_false_claims_take_little_memory_and_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    with caplog.at_level(logging.WARNING):
        for number in range(1_000):
            with pytest.raises(Refused):
                table.register(registration(f"6.6.6.6:{number + 1}", 2, remote="6.6.6.6:50000"), NOW)
    assert len(caplog.records) == 1
    assert "6.6.6.6:1 (from 6.6.6.6:50000) claims id 0 of b and is refused" in caplog.text
    assert sum(map(len, table._claims._claims.values())) <= CLAIMANTS_MAX


MINUTE_MS = 60_000


@pytest.mark.parametrize("remote", ["6.6.6.6:50002", "10.0.0.1:50002", "peer-2:1"])
def test_a_liar_that_keeps_claiming_never_gets_the_place_of_a_living_broker(remote: str) -> None:
    """Even from the first moment on, when neither is known."""
    table = RouteTable()
    liar = dataclasses.replace(LIAR, remote=remote)
    for now_ms in range(NOW, NOW + 120 * MINUTE_MS, 10_000):
        table.register(LIVING, now_ms)
        with pytest.raises(Refused):
            table.register(liar, now_ms)
    assert master_of(table) == LIVING.address


def test_a_broker_with_its_key_wins_its_place_back_at_once() -> None:
    table = RouteTable()
    own = dataclasses.replace(LIVING, key="k")
    table.register(own, NOW)
    table.register(own, NOW + MINUTE_MS)
    table.connection_closed(own.connection, NOW + MINUTE_MS)
    table.register(LIAR, NOW + MINUTE_MS)
    table.register(own, NOW + MINUTE_MS + 1_000)
    assert master_of(table) == own.address


def test_a_broker_that_comes_back_wins_its_place_from_whoever_took_it_meanwhile() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    table.register(LIVING, NOW + 60 * MINUTE_MS)
    table.connection_closed(LIVING.connection)
    begin_ms = NOW + 61 * MINUTE_MS
    for now_ms in range(begin_ms, begin_ms + 10 * MINUTE_MS, 10_000):
        table.register(LIAR, now_ms)
    back_ms = begin_ms + 10 * MINUTE_MS
    for later_ms in (0, 10_000, 20_000):
        with pytest.raises(Refused):
            table.register(LIVING, back_ms + later_ms)
        table.register(LIAR, back_ms + later_ms)
    table.register(LIVING, back_ms + PATIENCE_MS)
    assert master_of(table) == LIVING.address


def test_few_former_holders_are_remembered_and_those_of_a_flood_go_first() -> None:
    tenures = Claims().tenures
    tenures.add("id 0 of b", Party("10.0.0.9:1", "10.0.0.9:50000"), 1)
    for number in range(2 * TENURES_MAX):
        tenures.add("id 0 of b", Party(f"6.6.6.6:{number}", "6.6.6.6:50000"), 1_000)
    assert len(tenures) <= TENURES_MAX
    assert tenures.of("id 0 of b", "10.0.0.9:1 from 10.0.0.9") == 1


def test_only_a_living_broker_itself_unregisters() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    with pytest.raises(Refused, match="only the broker itself"):
        table.unregister("c", LIVING.address, NOW, connection=LIAR.connection)
    assert master_of(table) == LIVING.address
    assert table.unregister("c", LIVING.address, NOW, connection=LIVING.connection)
    assert master_of(table) is None
    table.register(LIVING, NOW)
    # Tools may remove one that was silent for too long.
    assert table.unregister("c", LIVING.address, NOW + LIVING_MS + 1, connection=LIAR.connection)
