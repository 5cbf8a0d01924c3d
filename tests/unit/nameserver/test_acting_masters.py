"""Which replica is shown as master while there is none: strangers may register as replicas, too."""

from __future__ import annotations

import dataclasses

import pytest

from metaq.nameserver.brokers import NEWCOMER_MS, Registration
from metaq.nameserver.route_table import RouteTable
from metaq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable

NOW = 10_000_000


def member(broker_id: int, host: str, key: str | None, queues: int = 8) -> Registration:
    config = {name: TopicConfig(topic_name=name, read_queue_nums=queues) for name in ("A", "B")}
    return Registration(
        *("c", "b", broker_id, f"{host}:10911", TopicConfigTable(DataVersion(1, 0, queues), config)),
        acting_master=True,
        connection=broker_id,
        remote=f"{host}:50000",
        key=key,
    )


STRANGER = member(1, "6.6.6.6", "stranger", 0)


def shown(table: RouteTable) -> tuple[str | None, int]:
    """The master and the queues of the topic, as clients see them."""
    route = table.route("A")
    assert route is not None
    return route.broker_datas[0].broker_addrs.get(0), route.queue_datas[0].read_queue_nums


@pytest.mark.parametrize("key", ["group", None])
def test_a_stranger_who_comes_while_the_master_is_away_does_not_act(key: str | None) -> None:
    table = RouteTable()
    table.register(member(0, "10.0.0.1", key), NOW)
    table.register(member(3, "10.0.0.3", key), NOW)
    table.connection_closed(0, NOW + 1_000)
    table.register(STRANGER, NOW + 2_000)
    assert shown(table) == ("10.0.0.3:10911", 8)


def test_a_stranger_without_the_key_of_the_master_does_not_act() -> None:
    table = RouteTable()
    table.register(member(0, "10.0.0.1", "group"), NOW)
    table.register(STRANGER, NOW)
    table.register(member(3, "10.0.0.3", "group"), NOW + 1_000)
    table.connection_closed(0, NOW + 2_000)
    table.register(STRANGER, NOW + 3_000)
    assert shown(table) == ("10.0.0.3:10911", 8)


def test_a_stranger_who_came_much_later_than_a_replica_does_not_act() -> None:
    table = RouteTable()
    table.register(member(0, "10.0.0.1", None), NOW)
    table.register(member(3, "10.0.0.3", None), NOW)
    late_ms = NOW + 2 * NEWCOMER_MS
    table.register(STRANGER, late_ms)
    # A replica that was away for a moment has not come later.
    table.connection_closed(3, late_ms)
    table.register(member(3, "10.0.0.3", None), late_ms + 500)
    table.connection_closed(0, late_ms + 1_000)
    assert shown(table) == ("10.0.0.3:10911", 8)


def test_a_stranger_does_not_act_for_a_lone_master_that_restarts() -> None:
    table = RouteTable()
    table.register(member(0, "10.0.0.1", "group"), NOW)
    table.connection_closed(0, NOW + 60_000)
    table.register(STRANGER, NOW + 61_000)
    assert table.route("A") is None
    table.register(member(0, "10.0.0.1", "group"), NOW + 62_000)
    assert shown(table) == ("10.0.0.1:10911", 8)


def test_the_lowest_replica_acts_where_no_master_was_seen() -> None:
    table = RouteTable()
    table.register(member(2, "10.0.0.2", None), NOW)
    table.register(member(1, "10.0.0.1", None), NOW)
    assert shown(table) == ("10.0.0.1:10911", 8)
    table.register(dataclasses.replace(member(1, "10.0.0.1", None), acting_master=False), NOW)
    assert shown(table)[0] is None
