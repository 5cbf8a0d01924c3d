"""A living broker keeps its place, and wins it back from whoever took it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from metaq.nameserver.claims import (
    CLAIMANTS_MAX,
    LIVING_MS,
    PATIENCE_MS,
    STRANGER_PATIENCE_MS,
    TENURES_MAX,
    Claims,
)
from metaq.nameserver.route_table import EXPIRY_MS, Registration, RouteTable
from metaq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable
from metaq.protocol.errors import Refused

NOW = 1_000_000
TOPICS = {name: TopicConfig(topic_name=name) for name in ("A", "B")}


def registration(address: str, connection: int, epoch: int = 0, **changes: Any) -> Registration:
    topics = TopicConfigTable(DataVersion(1, epoch, 7), TOPICS)
    base = Registration("c", "b", 0, address, topics, connection=connection, remote=f"peer-{connection}:1")
    return dataclasses.replace(base, **changes)


LIVING = registration("10.0.0.1:10911", 1)
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


def test_the_living_master_of_a_group_wins_back_its_place_from_a_false_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The liar registers as a replica and then claims the next epoch, as a real replica would."""
    table = RouteTable()
    living = registration("10.0.0.1:10911", 1, 4)
    table.register(living, NOW)
    table.register(registration("6.6.6.6:666", 2, 4, broker_id=9), NOW)
    liar = registration("6.6.6.6:666", 2, 5)
    with caplog.at_level(logging.WARNING):
        table.register(liar, NOW)
        assert master_of(table) == "6.6.6.6:666"
        assert "6.6.6.6:666 (from peer-2:1) is id 0 of b in place of 10.0.0.1:10911" in caplog.text
        with pytest.raises(Refused):
            table.register(living, NOW + 1_000)
        assert "10.0.0.1:10911 (from peer-1:1) claims id 0 of b and is refused" in caplog.text
        table.register(living, NOW + PATIENCE_MS)
    assert master_of(table) == living.address
    assert "10.0.0.1:10911 (from peer-1:1) has claimed id 0 of b for 30 s and gets it" in caplog.text
    # The liar needs as much patience from now on, whatever it claims.
    table.register(dataclasses.replace(living, broker_id=0), NOW + PATIENCE_MS)
    with pytest.raises(Refused):
        table.register(registration("6.6.6.6:666", 2, 6), NOW + PATIENCE_MS + 1)


def test_an_epoch_far_ahead_of_the_group_is_not_believed_even_of_a_member() -> None:
    table = RouteTable()
    table.register(registration("10.0.0.1:10911", 1, 4), NOW)
    table.register(registration("6.6.6.6:666", 2, 4, broker_id=9), NOW)
    with pytest.raises(Refused):
        table.register(registration("6.6.6.6:666", 2, 2_000_000), NOW)
    assert master_of(table) == "10.0.0.1:10911"


def test_brokers_without_epochs_switch_their_master_at_once() -> None:
    """Apache's DLedger groups: the new leader was registered as a replica."""
    table = RouteTable()
    table.register(LIVING, NOW)
    table.register(registration("10.0.0.2:10911", 2, broker_id=2), NOW)
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
    for seconds in (10, 20, 30):
        table.register(LIVING, NOW + seconds * 1000) if seconds < 30 else None
    table.register(thief, NOW + PATIENCE_MS)
    assert table.version_of("c", LIVING.address, "b", 0) is None, "the broker learns that it must register"
    with pytest.raises(Refused):
        table.register(LIVING, NOW + PATIENCE_MS)
    table.register(LIVING, NOW + 2 * PATIENCE_MS)
    assert table.clusters() == {"c": ["b"]}


def test_the_cluster_of_a_living_broker_is_kept_and_won_back() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    thief = dataclasses.replace(LIAR, cluster="evil", broker_id=9)
    with pytest.raises(Refused, match="belongs to cluster c"):
        table.register(thief, NOW)
    table.register(thief, NOW + PATIENCE_MS)
    assert table.clusters() == {"evil": ["b"]}
    with pytest.raises(Refused, match="belongs to cluster evil"):
        table.register(LIVING, NOW + PATIENCE_MS)
    table.register(LIVING, NOW + 2 * PATIENCE_MS)
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


def test_many_false_claims_take_little_memory_and_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    with caplog.at_level(logging.WARNING):
        for number in range(1_000):
            with pytest.raises(Refused):
                table.register(registration(f"6.6.6.6:{number + 1}", 2), NOW)
    assert len(caplog.records) == 1
    assert sum(map(len, table._claims._claims.values())) == CLAIMANTS_MAX


MINUTE_MS = 60_000


def claim_for(table: RouteTable, claimant: Registration, begin_ms: int, for_ms: int) -> int | None:
    """The claimant and the living broker both register every ten seconds. Returns when the claimant got the
    place; None if it never did."""
    for now_ms in range(begin_ms, begin_ms + for_ms, 10_000):
        try:
            table.register(claimant, now_ms)
        except Refused:
            table.register(LIVING, now_ms)
        else:
            return now_ms
    return None


def test_a_liar_that_keeps_claiming_does_not_get_the_place_of_a_broker_that_was_there_before() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    begin_ms = NOW + MINUTE_MS
    assert claim_for(table, LIAR, begin_ms, STRANGER_PATIENCE_MS - 10_000) is None
    assert master_of(table) == LIVING.address


def test_a_liar_that_gets_the_place_after_all_loses_it_soon() -> None:
    table = RouteTable()
    table.register(LIVING, NOW)
    taken_ms = claim_for(table, LIAR, NOW + MINUTE_MS, 2 * STRANGER_PATIENCE_MS)
    assert taken_ms is not None
    with pytest.raises(Refused):
        table.register(LIVING, taken_ms + 10_000)
    table.register(LIAR, taken_ms + 20_000)
    table.register(LIVING, taken_ms + PATIENCE_MS)
    assert master_of(table) == LIVING.address
    # Its former right counts from the first moment on.
    assert claim_for(table, LIAR, taken_ms + PATIENCE_MS, STRANGER_PATIENCE_MS - 10_000) is None


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


def test_few_former_holders_are_remembered() -> None:
    claims = Claims()
    for number in range(2 * TENURES_MAX):
        claims.left("id 0 of b", f"10.0.0.1:{number}", 1)
    assert len(claims._tenures_ms) == TENURES_MAX


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
