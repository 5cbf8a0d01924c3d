"""One machine does not use up the places that all machines need."""

from __future__ import annotations

import dataclasses

import pytest

from metaq.nameserver.brokers import Registration
from metaq.nameserver.route_table import RouteTable
from metaq.nameserver.shares import NEWCOMER_MS, RESERVED_MS_MIN
from metaq.protocol.bodies import DataVersion, TopicConfigTable
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import source_of
from metaq.settings import NameServerSettings

NOW = 1_000_000


def broker(number: int, host: str = "6.6.6.6", **changes: object) -> Registration:
    base = Registration(
        *("c", f"{host}-{number}", 0, f"{host}:{number}", TopicConfigTable(DataVersion(1), {})),
        connection=hash((host, number)) % 2**32,
        remote=f"{host}:{50_000 + number}",
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def flooded(now_ms: int = NOW, **limits: int) -> RouteTable:
    """A table that one machine has filled as far as it may."""
    table = RouteTable(limits=NameServerSettings(**limits))
    table.register(broker(1, "10.0.0.1"), NOW)
    for number in range(1, 100):
        try:
            table.register(broker(number), now_ms)
        except Refused:
            return table
    raise AssertionError("the table has no limit")


def names(table: RouteTable) -> list[str]:
    return table.clusters()["c"]


def test_one_address_has_a_share_and_others_go_on() -> None:
    table = flooded(nameserver_brokers_per_address_max=5)
    assert len(names(table)) == 6
    with pytest.raises(Refused, match=r"already 5 brokers from 6\.6\.6\.6 \(nameserver_brokers_per"):
        table.register(broker(50), NOW)
    for number in range(2, 6):
        table.register(broker(number, "10.0.0.1"), NOW)


def test_a_full_table_makes_room_for_another_machine() -> None:
    table = flooded(nameserver_brokers_max=10)
    for number in range(2, 6):
        table.register(broker(number, "10.0.0.1"), NOW + number)
    # Each has its half now.
    assert sum(name.startswith("10.0.0.1") for name in names(table)) == 5
    with pytest.raises(Refused, match="nameserver_brokers_max"):
        table.register(broker(6, "10.0.0.1"), NOW + 6)
    assert len(names(table)) == 10


def test_brokers_that_have_been_there_for_long_make_no_room() -> None:
    table = flooded(nameserver_brokers_max=10)
    with pytest.raises(Refused, match="nameserver_brokers_max"):
        table.register(broker(2, "10.0.0.1"), NOW + NEWCOMER_MS)
    assert len(names(table)) == 10


def test_the_machine_that_has_the_most_loses_what_it_has_proved_least() -> None:
    """A broker that registers a host from which it does not connect goes before later ones that do."""
    table = RouteTable(limits=NameServerSettings(nameserver_brokers_max=4))
    table.register(broker(1), NOW)
    table.register(broker(2, address="10.9.9.9:1"), NOW)
    table.register(broker(3), NOW + 1)
    table.register(broker(4), NOW + 2)
    table.register(broker(1, "10.0.0.1"), NOW + 3)
    assert names(table) == ["10.0.0.1-1", "6.6.6.6-1", "6.6.6.6-3", "6.6.6.6-4"]


def test_a_broker_that_left_finds_its_place_for_a_while() -> None:
    table = flooded(nameserver_brokers_per_address_max=5)
    own = broker(1)
    table.connection_closed(own.connection, NOW)
    with pytest.raises(Refused):
        table.register(broker(50), NOW + RESERVED_MS_MIN)
    table.register(own, NOW + RESERVED_MS_MIN)
    table.connection_closed(own.connection, NOW + RESERVED_MS_MIN)
    # It was there for no time, so nobody waits for it long.
    table.register(broker(50), NOW + 2 * RESERVED_MS_MIN + 1)
    with pytest.raises(Refused):
        table.register(own, NOW + 2 * RESERVED_MS_MIN + 1)


def test_a_false_owner_does_not_use_up_a_kept_place() -> None:
    """It registers the same address from the same machine, under another name, and leaves."""
    table = flooded(nameserver_brokers_max=10)
    own = broker(1, "10.0.0.1", key="k")
    table.connection_closed(broker(1, "10.0.0.1").connection, NOW)
    table.register(own, NOW)
    table.connection_closed(own.connection, NOW)
    with pytest.raises(Refused):
        table.register(broker(60, address=own.address), NOW)
    table.register(own, NOW + 1)
    assert "10.0.0.1-1" in names(table)


def test_members_of_a_name_have_shares_too() -> None:
    table = RouteTable(limits=NameServerSettings(nameserver_members_max=4))
    table.register(broker(1, "10.0.0.1"), NOW)
    for number in range(2, 5):
        table.register(broker(number, name="10.0.0.1-1", broker_id=number), NOW)
    replica = broker(2, "10.0.0.2", name="10.0.0.1-1", broker_id=9)
    table.register(replica, NOW)
    members = table.members("10.0.0.1-1")
    assert (len(members), members[0], members[9]) == (4, "10.0.0.1:1", "10.0.0.2:2")


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("10.0.0.1:5", "10.0.0.1"),
        ("[::ffff:10.0.0.1]:5", "10.0.0.1"),
        ("[2001:db8:1:2:3:4:5:6]:5", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:5", "2001:db8:1:2::/64"),
    ],
)
def test_a_subnet_is_one_machine(remote: str, source: str) -> None:
    assert source_of(remote) == source
