"""Leases of queues, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.broker.state.client_limits import LockLimits
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.broker.state.locks import LEASE_MS, QUEUES_AT_ONCE, QueueLocks, Sender
from metaq.protocol.bodies import ConsumerData, LockBatchRequestBody, LockBatchResponseBody, TopicConfig
from metaq.protocol.commands.clients import LockBatchQueues, UnlockBatchQueues
from metaq.protocol.errors import Refused
from metaq.protocol.java_json import MessageQueue

ALL = [MessageQueue("broker-a", queue_id, "orders") for queue_id in range(4)]


@pytest.fixture
def locks(tables: Any) -> QueueLocks:
    tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    return QueueLocks(tables.clock, tables.topics, tables.journal)


def test_a_queue_has_one_owner(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", ALL[:2]) == ALL[:2]
    assert locks.lock("g", "b", ALL) == ALL[2:]
    assert locks.lock("g", "a", ALL) == ALL[:2]


def test_groups_do_not_disturb_each_other(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", ALL) == ALL
    assert locks.lock("h", "b", ALL) == ALL


def test_only_the_owner_gives_back(locks: QueueLocks) -> None:
    locks.lock("g", "a", ALL)
    locks.unlock("g", "b", ALL)
    assert locks.lock("g", "b", ALL) == []
    locks.unlock("g", "a", ALL[:1])
    assert locks.lock("g", "b", ALL) == ALL[:1]


def test_a_lease_ends_unless_it_is_renewed(locks: QueueLocks, tables: Any) -> None:
    locks.lock("g", "a", ALL)
    tables.clock.advance_ms(LEASE_MS - 1)
    assert locks.lock("g", "b", ALL) == []
    locks.lock("g", "a", ALL[:2])
    tables.clock.advance_ms(1)
    assert locks.lock("g", "b", ALL) == ALL[2:]
    assert locks.has_lease("g")
    tables.clock.advance_ms(LEASE_MS)
    assert not locks.has_lease("g")
    assert list(locks.forget_expired()) == []
    assert locks._leases == {}


def test_many_expired_leases_are_given_up_in_steps(locks: QueueLocks, tables: Any) -> None:
    tables.topics.put(TopicConfig(topic_name="wide", read_queue_nums=500, write_queue_nums=500))
    wide = [MessageQueue("broker-a", queue_id, "wide") for queue_id in range(500)]
    locks.lock("g", "a", wide)
    locks.lock("h", "a", wide)
    tables.clock.advance_ms(LEASE_MS)
    before = locks._count
    for step, _ in enumerate(locks.forget_expired()):
        assert before - locks._count <= QUEUES_AT_ONCE
        if step == 0:
            # Renewed, or given to others, between two steps.
            locks.lock("g", "a", wide[-10:])
            locks.unlock("h", "a", wide[:200])
        before = locks._count
    assert locks._count == 10 and set(locks._leases) == {"g"}


def test_a_queue_that_is_not_here_is_not_granted(locks: QueueLocks) -> None:
    strange = [MessageQueue("broker-a", 4, "orders"), MessageQueue("broker-a", 0, "nowhere")]
    assert locks.lock("g", "a", strange) == []
    assert locks._leases == {}


def test_over_the_wire(locks: QueueLocks, request_with: Any) -> None:
    body = LockBatchRequestBody(client_id="a", consumer_group="g", mq_set=ALL).encode()
    answer = asyncio.run(locks.lock_batch_queues(LockBatchQueues(), request_with(body)))
    assert answer.body.startswith(b'{"lockOKMQSet":[')
    assert LockBatchResponseBody.decode(answer.body).lock_ok_mq_set == ALL
    locks.unlock_batch_queues(UnlockBatchQueues(), request_with(body))
    assert locks.lock("g", "b", ALL) == ALL


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (LockBatchRequestBody(client_id="", consumer_group="g"), "client id"),
        (LockBatchRequestBody(client_id="a", consumer_group="a b"), "group name"),
        (LockBatchRequestBody(client_id="a", consumer_group="g", mq_set=ALL * 2501), "the limit is 10000"),
    ],
)
def test_bad_requests_say_why(
    locks: QueueLocks, request_with: Any, asked: LockBatchRequestBody, says: str
) -> None:
    with pytest.raises(Refused) as raised:
        asyncio.run(locks.lock_batch_queues(LockBatchQueues(), request_with(asked.encode())))
    assert raised.value.code == 29
    assert says in raised.value.remark


def lock_over_the_wire(locks: QueueLocks, request_with: Any, client_id: str) -> list[MessageQueue]:
    body = LockBatchRequestBody(client_id=client_id, consumer_group="g", mq_set=ALL).encode()
    answer = asyncio.run(locks.lock_batch_queues(LockBatchQueues(), request_with(body)))
    return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set


def test_the_next_master_knows_the_owners_and_gives_them_a_whole_lease(
    locks: QueueLocks, tables: Any, request_with: Any
) -> None:
    assert lock_over_the_wire(locks, request_with, "a@1") == ALL
    written = tables.journal.appended_bytes
    assert lock_over_the_wire(locks, request_with, "a@1") == ALL
    assert tables.journal.appended_bytes == written, "a renewal is not written"
    locks.unlock("g", "a@1", ALL[:1])
    asyncio.run(locks.keep())
    tables.clock.advance_ms(10 * LEASE_MS)
    following = QueueLocks(tables.clock, tables.topics, tables.journal)
    following.load()
    assert following.lock("g", "b", ALL) == ALL[:1]
    tables.clock.advance_ms(LEASE_MS)
    assert following.lock("g", "b", ALL) == ALL


class NotWalked(dict[Any, Any]):
    """A table that is too long to be looked at as a whole."""

    def _walk(self, *arguments: object) -> Any:
        raise AssertionError("every lease of the group is looked at")

    items = values = keys = __iter__ = _walk


def test_the_leases_of_a_client_cost_nothing_for_those_of_others(locks: QueueLocks) -> None:
    locks.lock("g", "a", ALL[:3])
    locks.lock("g", "b", ALL[3:])
    locks._leases["g"] = NotWalked(locks._leases["g"])
    assert locks.held_by("g", "nobody") == {}
    assert set(locks.held_by("g", "a")) == {("orders", 0), ("orders", 1), ("orders", 2)}
    assert set(locks.held_by("g", "b")) == {("orders", 3)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lock", "unlock", "release", "follow", "give up", "wait"]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 3),
        ),
        max_size=40,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_leases_of_each_client_agree_with_those_of_the_group(
    tables: Any, events: list[tuple[str, str, int]]
) -> None:
    tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    locks = QueueLocks(tables.clock, tables.topics, tables.journal)
    for what, client_id, number in events:
        if what == "lock":
            locks.lock("g", client_id, ALL[number:])
        elif what == "unlock":
            locks.unlock("g", client_id, ALL[number:])
        elif what == "release":
            locks.release("g", client_id, locks.held_by("g", client_id))
        elif what == "follow":
            locks.follow(f"g@orders@{number}", client_id.encode())
        elif what == "give up":
            locks.follow(f"g@orders@{number}", None)
        else:
            tables.clock.advance_ms(LEASE_MS // 2)
        leases = locks._leases.get("g", {})
        for each in ("a", "b"):
            held = {key: lease.ends_ms for key, lease in leases.items() if lease.client_id == each}
            assert locks.held_by("g", each) == held
        again = QueueLocks(tables.clock, tables.topics, tables.journal, locks._leases)
        assert (again._of_client, again._count) == (locks._of_client, locks._count)


def test_a_full_disk_keeps_nobody_from_reading(
    locks: QueueLocks, tables: Any, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        assert lock_over_the_wire(locks, request_with, "a") == ALL
    asyncio.run(locks.keep())
    following = QueueLocks(tables.clock, tables.topics, tables.journal)
    following.load()
    assert following.lock("g", "b", ALL) == []


def test_one_request_looks_for_its_owner_once(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=1_000, write_queue_nums=1_000))
    clients = Clients(tables.clock, 120.0, lambda group, change: None)
    clients.put_consumer(ConsumerData(group_name="g"), Member(1, "a", 0, 513, "h:1", tables.clock.now_ms()))
    looks: list[str] = []
    find = ConsumerGroup.find

    def counted(group: ConsumerGroup, client_id: str, heard_since_ms: int) -> Member | None:
        looks.append(client_id)
        return find(group, client_id, heard_since_ms)

    monkeypatch.setattr(ConsumerGroup, "find", counted)
    locks = QueueLocks(tables.clock, tables.topics, tables.journal, clients=clients)
    queues = [MessageQueue("broker-a", queue_id, "orders") for queue_id in range(1_000)]
    locks.lock("g", "a", queues, Sender(1, "h"))
    stranger = Sender(2, "x")
    locks.lock("g", "a", queues, stranger)
    locks.unlock("g", "a", queues, stranger)
    assert len(looks) == 2, "and not once for each of 1,000 queues"
    assert len(locks.held_by("g", "a")) == 1_000, "only the owner unlocks"


def test_one_machine_has_half_of_all_locks_with_all_addresses_of_its_subnet(
    tables: Any, request_with: Any
) -> None:
    tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=200, write_queue_nums=200))
    locks = QueueLocks(tables.clock, tables.topics, tables.journal, limits=LockLimits(total_max=100))

    def lock(queue_id: int, remote: str) -> int:
        queues = [MessageQueue("broker-a", queue_id, "orders")]
        body = LockBatchRequestBody(client_id=remote, consumer_group="g", mq_set=queues).encode()
        request = request_with(body, queue_id, remote=remote)
        try:
            return asyncio.run(locks.lock_batch_queues(LockBatchQueues(), request)).code
        except Refused as refused:
            return refused.code

    codes = [lock(number, f"[2001:db8::{number:x}]:50000") for number in range(100)]
    assert (codes.count(0), codes.count(2)) == (50, 50)
    assert lock(150, "[2001:db8:0:1::1]:50000") == 0, "others have room"


def test_a_long_request_lets_others_have_their_turn(tables: Any, request_with: Any) -> None:
    tables.topics.put(TopicConfig(topic_name="orders", read_queue_nums=1_000, write_queue_nums=1_000))
    locks = QueueLocks(tables.clock, tables.topics, tables.journal)
    queues = [MessageQueue("broker-a", queue_id, "orders") for queue_id in range(1_000)]
    body = LockBatchRequestBody(client_id="a", consumer_group="g", mq_set=queues).encode()

    async def both() -> None:
        locked = asyncio.ensure_future(locks.lock_batch_queues(LockBatchQueues(), request_with(body)))
        seen = set()
        while not locked.done():
            seen.add(len(locks.held_by("g", "a")))
            await asyncio.sleep(0)
        assert {256, 512, 768} <= seen
        assert LockBatchResponseBody.decode((await locked).body).lock_ok_mq_set == queues
        unlocked = locks.unlock_batch_queues(UnlockBatchQueues(), request_with(body))
        assert unlocked is not None
        await unlocked
        assert locks.held_by("g", "a") == {}

    asyncio.run(both())
