"""Closed connections: their clients leave their groups in turns, and nobody finds them meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from metaq._core import Clock
from metaq.broker.background.closed_connections import ClosedConnections
from metaq.broker.state.clients import REMOVED_AT_ONCE, Clients
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.protocol.bodies import ConsumerData

GROUPS = 450


class Desk:
    """Clients that are in many groups."""

    def __init__(self) -> None:
        self.clock = Clock.manual(1_000_000)
        self.removed = 0
        self.vanished: list[tuple[str, str]] = []
        self.clients = Clients(self.clock, 120.0, lambda group, change: None)
        self.clients.vanished = lambda group, client_id: self.vanished.append((group, client_id))
        self.clients.member_changed = self._count
        self.connections = ClosedConnections(self.clients)

    def _count(self, group: str, connection: int) -> None:
        self.removed += 1

    def join(self, connection: int, client_id: str, groups: int = GROUPS) -> None:
        for number in range(groups):
            member = Member(connection, client_id, 0, 513, "h:1", self.clock.now_ms())
            self.clients.put_consumer(ConsumerData(group_name=f"g{number}"), member)
            producer = Member(connection, client_id, 0, 513, "h:1", self.clock.now_ms())
            self.clients.put_producer(f"p{number}", producer)

    def left_in(self, connection: int) -> tuple[ConsumerGroup, str]:
        """A consumer group and a producer group that the client is still to be removed from."""
        consuming, producing = self.clients._memberships(connection)
        group = self.clients.consumer_group(next(iter(consuming)))
        assert group is not None and connection in group.members
        return group, next(iter(producing))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_clients_of_many_closed_connections_leave_in_turns(desk: Desk) -> None:
    async def scenario() -> None:
        for connection in range(1, 17):
            desk.join(connection, f"c{connection}")
        desk.removed = 0
        for connection in range(1, 17):
            desk.connections.add(connection)
        before = desk.removed
        assert before <= 16 * REMOVED_AT_ONCE
        turns = 0
        while desk.connections._waiting:
            await asyncio.sleep(0)
            turns += 1
            assert desk.removed - before <= REMOVED_AT_ONCE
            before = desk.removed
        assert turns > 16 * GROUPS // REMOVED_AT_ONCE

    asyncio.run(scenario())
    assert desk.clients.all_consumer_groups() == [] and desk.clients.producer_groups() == []
    assert len(desk.vanished) == 16 * GROUPS
    assert desk.clients.budget.total.bytes == 0
    assert not desk.clients._closed and not desk.clients._id_of and len(desk.clients._due) == 0


def test_a_client_is_not_found_once_its_connection_has_closed(desk: Desk) -> None:
    async def scenario() -> None:
        desk.join(1, "gone")
        desk.connections.add(1)
        group, producing = desk.left_in(1)
        assert group.find("gone", 0) is None and group.present() == []
        assert desk.clients.producers(producing) == []
        assert desk.clients.producer_connection("gone") is None
        assert desk.clients.groups_of(1) == (set(), set())

        # The client has connected again.
        desk.join(2, "gone")
        back = group.find("gone", 0)
        assert back is not None and back.connection == 2
        assert desk.clients.producer_connection("gone") == 2
        while desk.connections._waiting:
            await asyncio.sleep(0)
        assert [member.connection for member in group.present()] == [2]
        assert group.client_ids() == ["gone"]
        # It was back before it had left these groups.
        assert len(desk.vanished) <= REMOVED_AT_ONCE

    asyncio.run(scenario())


def test_a_client_of_few_groups_leaves_at_once(desk: Desk) -> None:
    async def scenario() -> None:
        desk.join(1, "gone", groups=10)
        desk.connections.add(1)
        assert desk.clients.all_consumer_groups() == []
        desk.connections.add(1)
        desk.connections.stop()

    asyncio.run(scenario())


def test_a_node_that_stops_leaves_the_rest(desk: Desk) -> None:
    async def scenario() -> None:
        desk.join(1, "gone")
        desk.connections.add(1)
        desk.connections.stop()
        before = desk.removed
        for _ in range(10):
            await asyncio.sleep(0)
        assert desk.removed == before

    asyncio.run(scenario())
