"""The requests of operators about a broker's group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq._core import Clock, Store
from metaq.broker.requests.replication import ReplicationRequests, _Rates
from metaq.broker.requests.without_role import WithoutRole
from metaq.ha.operators.group_control import GroupStatus, NodeStatus, StandAlone, SwitchRefused
from metaq.protocol.bodies import HaStatus
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import GetBrokerHaStatus
from metaq.protocol.commands.replication import DrainBroker, GetGroupStatus, SwitchMaster
from metaq.protocol.dispatch import Handlers
from metaq.settings import StoreSettings
from tests.support.fake_request import FakeRequest

MASTER = NodeStatus(1, "h:1", "master", "in sync", 0, 0)


class Group:
    """A control whose state a test sets."""

    def __init__(self, node_id: int, *nodes: NodeStatus) -> None:
        self.node_id = node_id
        self.nodes = nodes
        self.orders: list[str] = []
        self.refusal = ""

    def status(self) -> GroupStatus:
        in_sync = tuple(node.id for node in self.nodes if node.state == "in sync")
        return GroupStatus("g", 5, 1, 2, in_sync, self.nodes)

    async def switch(self, target: int, *, force: bool = False) -> None:
        self.orders.append(f"switch {target}{' by force' if force else ''}")
        if self.refusal:
            raise SwitchRefused(self.refusal)

    async def drain(self, wait_s: float | None = None) -> None:
        self.orders.append("drain")
        if self.refusal:
            raise SwitchRefused(self.refusal)


@pytest.fixture
def clock() -> Clock:
    return Clock.manual(1_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(StoreSettings(directory=str(tmp_path)), clock)


def ask(handlers: Handlers, command: Command) -> tuple[int, str | None, bytes]:
    request = FakeRequest(code=command.code, fields=command.to_fields())

    async def answered() -> None:
        await handlers.answer(request)
        # Orders are answered later.
        while not request.answers:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(answered(), 60))
    [(code, remark, _, body)] = request.answers
    return code, remark, body


def test_every_node_shows_its_view(store: Store, clock: Clock) -> None:
    group = Group(1, MASTER)
    code, _, body = ask(Handlers(ReplicationRequests(group, store, clock)), GetGroupStatus())
    assert (code, GroupStatus.decode(body)) == (0, group.status())


def test_orders_are_answered_when_they_are_done_or_refused(store: Store, clock: Clock) -> None:
    group = Group(1, MASTER)
    handlers = Handlers(ReplicationRequests(group, store, clock))
    assert ask(handlers, SwitchMaster(target=2))[0] == 0
    assert ask(handlers, DrainBroker())[0] == 0
    group.refusal = "node 2 is not in sync"
    for command in (SwitchMaster(target=2), DrainBroker()):
        assert ask(handlers, command)[:2] == (ResponseCode.ILLEGAL_OPERATION, "node 2 is not in sync")
    assert group.orders == ["switch 2", "drain", "switch 2", "drain"]
    ask(handlers, SwitchMaster(target=0, force=True))
    assert group.orders[-1] == "switch 0 by force"


def test_an_order_outlives_the_handlers_and_is_bounded(store: Store, clock: Clock) -> None:
    class Slow(Group):
        async def drain(self, wait_s: float | None = None) -> None:
            await finish.wait()

    async def scenario() -> None:
        handlers = Handlers(ReplicationRequests(Slow(1, MASTER), store, clock))
        requests = [FakeRequest(code=DrainBroker.code) for _ in range(9)]
        for request in requests:
            assert handlers.begin(request) is None, "the role does not wait for it"
        await asyncio.sleep(0)
        assert [len(request.answers) for request in requests] == [0] * 8 + [1]
        assert requests[8].answers[0][0] == ResponseCode.SYSTEM_BUSY
        finish.set()
        while not all(request.answers for request in requests):
            await asyncio.sleep(0)
        assert {request.answers[0][0] for request in requests[:8]} == {0}

    finish = asyncio.Event()
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_broker_alone_refuses_orders(store: Store, clock: Clock) -> None:
    handlers = Handlers(ReplicationRequests(StandAlone("broker-a", "h:1"), store, clock))
    for command in (SwitchMaster(target=2), DrainBroker()):
        code, remark, _ = ask(handlers, command)
        assert code == ResponseCode.ILLEGAL_OPERATION and "broker-a has no replicas" in (remark or "")


def ha_status(handlers: Handlers) -> HaStatus:
    code, _, body = ask(handlers, GetBrokerHaStatus())
    assert code == 0
    return HaStatus.decode(body)


def test_rates_are_measured_between_questions(clock: Clock) -> None:
    rates = _Rates(clock)
    assert rates.of(2, 1_000) == 0
    clock.advance_ms(500)
    assert rates.of(2, 9_000) == 0, "half a second is too short"
    clock.advance_ms(1_500)
    assert (rates.of(2, 11_000), rates.of(3, 11_000)) == (5_000, 0)
    clock.advance_ms(2_000)
    assert rates.of(2, 500) == 0, "a log that was cut has no negative rate"


def log_end(store: Store) -> int:
    return store.figures().commit_log_max_offset


def test_a_master_lists_its_replicas_for_mqadmin(store: Store, clock: Clock) -> None:
    group = Group(
        1,
        MASTER,
        NodeStatus(2, "h:2", "replica", "in sync", 0, 0),
        NodeStatus(3, "h:3", "replica", "catching up", 0, 9),
        NodeStatus(4, "h:4", "replica", "gone", 0, 90_000),
    )
    status = ha_status(Handlers(ReplicationRequests(group, store, clock)))
    assert status.master and status.ha_client_runtime_info is None
    assert status.master_commit_log_max_offset == log_end(store)
    assert [(replica.addr, replica.in_sync) for replica in status.ha_connection_info] == [
        ("h:2", True),
        ("h:3", False),
    ]
    assert status.in_sync_slave_nums == 1


def test_a_replica_names_its_master_for_mqadmin(store: Store, clock: Clock) -> None:
    master = NodeStatus(1, "h:1", "master", "in sync")
    group = Group(2, master, NodeStatus(2, "h:2", "replica", "in sync"))
    status = ha_status(Handlers(ReplicationRequests(group, store, clock)))
    source = status.ha_client_runtime_info
    assert not status.master and source is not None
    assert (source.master_addr, source.activated, source.max_offset) == ("h:1", True, log_end(store))
    assert source.master_flush_offset == -1, "it is not known"


def test_a_node_without_a_role_says_what_it_knows_of_its_group(store: Store, clock: Clock) -> None:
    group = Group(1)
    handlers = WithoutRole(group, ReplicationRequests(group, store, clock))
    assert ask(handlers, GetGroupStatus())[0] == ResponseCode.SERVICE_NOT_AVAILABLE, "it knows nothing yet"
    group.nodes = (MASTER,)
    code, _, body = ask(handlers, GetGroupStatus())
    assert (code, GroupStatus.decode(body)) == (ResponseCode.SUCCESS, group.status())
    for order in (DrainBroker(), GetBrokerHaStatus()):
        assert ask(handlers, order)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert group.orders == []
