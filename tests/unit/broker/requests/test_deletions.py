"""Deletions of topics and groups with very many committed offsets: on a thread, and in parts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Store
from metaq.broker.requests.topics import TopicRequests
from metaq.broker.state.groups import GroupDeletion
from metaq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from metaq.protocol.commands.groups import DeleteSubscriptionGroup
from metaq.protocol.commands.topics import DeleteTopicInBroker
from metaq.work_pools import WorkPools

PAIRS = 500


class FakePlane:
    """Keeps pairs of a group and a topic, and the number that each call has removed."""

    def __init__(self, pairs: set[tuple[str, str]]) -> None:
        self.pairs = pairs
        self.removed: list[tuple[int, bool]] = []
        """With whether that was on the event loop's thread."""

    def groups_of_topic(self, topic: str) -> list[str]:
        return self._listed(sorted(group for group, other in self.pairs if other == topic))

    def topics_of_group(self, group: str) -> list[str]:
        return self._listed(sorted(topic for other, topic in self.pairs if other == group))

    def _listed(self, names: list[str]) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        return names

    def remove_offsets(self, group: str | None = None, topic: str | None = None) -> None:
        gone = {pair for pair in self.pairs if group in (None, pair[0]) and topic in (None, pair[1])}
        self.pairs -= gone
        self.removed.append((len(gone), threading.current_thread() is threading.main_thread()))

    def remove_topic(self, topic: str) -> None:
        self.pairs.add(("late", topic))


class FakeStore:
    deleted: list[str]

    def delete_topic(self, topic: str) -> None:
        self.deleted = [*getattr(self, "deleted", []), topic]


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane(
        {(f"g{number}", "orders") for number in range(PAIRS)}
        | {("billing", f"t{number}") for number in range(PAIRS)}
        | {("other", "other")}
    )


def check(plane: FakePlane) -> None:
    on_threads = [count for count, on_loop in plane.removed if not on_loop]
    assert on_threads == [1] * PAIRS
    assert all(count <= 1 for count, on_loop in plane.removed if on_loop)


def test_the_offsets_of_a_deleted_topic_are_removed_in_parts(
    plane: FakePlane, tables: Any, request_with: Any
) -> None:
    tables.topics.put(TopicConfig(topic_name="orders"))
    tables.topics.put(TopicConfig(topic_name="%RETRY%g7_orders"))
    store = FakeStore()
    requests = TopicRequests(
        tables.topics,
        tables.groups,
        cast(Store, store),
        cast(BrokerPlane, plane),
        "b",
        "b:1",
        WorkPools(),
    )
    asyncio.run(requests.delete_topic_in_broker(DeleteTopicInBroker(topic="orders"), request_with()))
    check(plane)
    assert not any(topic == "orders" for _, topic in plane.pairs), "nor those of the last moment"
    assert ("other", "other") in plane.pairs and ("billing", "t0") in plane.pairs
    assert store.deleted == ["orders", "%RETRY%g7_orders"]
    assert "orders" not in tables.topics and "%RETRY%g7_orders" not in tables.topics


def test_the_offsets_of_a_deleted_group_are_removed_in_parts(
    plane: FakePlane, tables: Any, request_with: Any
) -> None:
    tables.groups.put(SubscriptionGroupConfig(group_name="billing"))
    deletion = GroupDeletion(tables.groups, cast(BrokerPlane, plane), WorkPools())
    command = DeleteSubscriptionGroup(group_name="billing")
    asyncio.run(deletion.delete_group(command, request_with()))
    assert plane.removed == [] and tables.groups.get("billing") is None
    command = DeleteSubscriptionGroup(group_name="billing", clean_offset=True)
    asyncio.run(deletion.delete_group(command, request_with()))
    check(plane)
    assert not any(group == "billing" for group, _ in plane.pairs)
    assert ("g0", "orders") in plane.pairs
