"""One machine cannot use up the room for topics that all brokers share."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.nameserver.brokers import NEWCOMER_MS, Registration
from metaq.nameserver.route_table import RouteTable
from metaq.protocol.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable
from metaq.protocol.errors import Refused
from metaq.settings import NameServerSettings

NOW = 10_000_000
LIMITS = NameServerSettings(nameserver_topics_max=100, nameserver_broker_topics_max=50)


def broker(number: int, host: str, topics: int, *, first: int = 0) -> Registration:
    names = [f"T-{number}-{topic}" for topic in range(first, first + topics)]
    table = TopicConfigTable(DataVersion(1, 0, 7), {name: TopicConfig(topic_name=name) for name in names})
    return Registration(
        *("c", f"b{number}", 0, f"{host}:{10_000 + number}", table),
        connection=number,
        remote=f"{host}:{50_000 + number}",
    )


def registered(*brokers: Registration, now_ms: int = NOW) -> RouteTable:
    table = RouteTable(limits=LIMITS)
    for one in brokers:
        table.register(one, now_ms)
    return table


def test_an_address_gets_half_of_the_room() -> None:
    table = registered(broker(1, "6.6.6.6", 40))
    with pytest.raises(
        Refused, match=r"more than 50 topics from 6\.6\.6\.6.*50 % of 100 \(nameserver_topics_max"
    ):
        table.register(broker(2, "6.6.6.6", 11), NOW)
    table.register(broker(2, "6.6.6.6", 10), NOW)
    table.register(broker(3, "10.0.0.1", 50), NOW)
    assert len(table.topics()) == 100


def test_the_share_of_an_address_is_a_setting() -> None:
    limits = NameServerSettings(nameserver_topics_max=100, nameserver_topics_per_address_percent=90)
    table = RouteTable(limits=limits)
    table.register(broker(1, "10.0.0.1", 90), NOW)
    with pytest.raises(Refused, match="nameserver_topics_per_address_percent"):
        table.register(broker(2, "10.0.0.1", 2), NOW)


def test_a_broker_name_that_is_repeated_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = registered(broker(1, "6.6.6.6", 40), broker(2, "6.6.6.6", 10))
    asked: list[str] = []
    room_for = table._topic_shares.room_for

    def counted(name: str, *rest: Any) -> Any:
        asked.append(name)
        return room_for(name, *rest)

    monkeypatch.setattr(table._topic_shares, "room_for", counted)
    with pytest.raises(Refused, match="1 more topics of b1"):
        table.put_queues("One", [QueueData("b1", 6, 1, 0, 1)] * 1_600, 1, NOW)
    assert asked == ["b1"]


def test_those_who_just_came_and_have_most_make_room_for_others() -> None:
    table = registered(broker(1, "6.6.6.6", 30), broker(2, "7.7.7.7", 48), broker(3, "10.0.0.1", 22))
    table.register(broker(4, "10.0.0.2", 20), NOW)
    assert table.members("b2") == {}
    assert table.members("b1") and table.members("b3") and table.members("b4")
    assert len(table.topics()) == 72


def test_a_broker_announces_one_more_topic_in_a_full_table() -> None:
    table = registered(broker(1, "6.6.6.6", 48), broker(2, "7.7.7.7", 48), broker(3, "10.0.0.1", 4))
    table.put_queues("One", [QueueData("b3", 6, 1, 0, 1)], 3, NOW)
    assert table.has_topic("One")
    assert [bool(table.members(name)) for name in ("b1", "b2", "b3")].count(True) == 2
    assert table.members("b3")


def test_brokers_that_have_been_there_for_long_keep_their_topics() -> None:
    table = registered(broker(1, "10.0.0.1", 50), broker(2, "10.0.0.2", 50))
    with pytest.raises(Refused, match=r"no room for 2 more topics.*nameserver_topics_max"):
        table.register(broker(3, "6.6.6.6", 2), NOW + NEWCOMER_MS)
    assert table.members("b1") and table.members("b2")
    # A restart does not make newcomers of them.
    table.connection_closed(1, NOW + NEWCOMER_MS)
    table.register(broker(1, "10.0.0.1", 50), NOW + NEWCOMER_MS + 1_000)
    with pytest.raises(Refused, match="no room"):
        table.register(broker(3, "6.6.6.6", 2), NOW + NEWCOMER_MS + 2_000)
    assert table.members("b1")
