"""Only settled messages are committed, full buffers stop pulling, and higher queues come first."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.pull.buffers import Limits, QueueBuffer, Turns
from metaq.client.consumer.pull.requests import PullRequests, PullResult
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session


def messages(first: int, count: int, size: int = 1, queue: Queue | None = None) -> list[Message]:
    queue = queue or Queue("T", "b", 0)
    return [Message("T", b"x" * size, queue=queue, queue_offset=first + n) for n in range(count)]


def buffer(queue_id: int = 0, queue_offset: int = 0, **limits: int) -> QueueBuffer:
    return QueueBuffer(Queue("T", "b", queue_id), queue_offset, Limits(**limits))


@given(st.integers(1, 40), st.data())
def test_committable_is_the_lowest_that_is_not_settled(count: int, data: st.DataObject) -> None:
    held = buffer(queue_offset=100)
    held.put(messages(100, count), 100 + count)
    taken = held.take(count)
    left = {message.queue_offset for message in taken}
    for message in data.draw(st.permutations(taken)):
        held.settle([message])
        left.discard(message.queue_offset)
        assert held.committable == (min(left) if left else 100 + count)
        assert held.unsettled == len(left)
    assert held.bytes_held == 0
    assert held.in_hand == 0


def test_messages_that_the_filter_skipped_count_as_settled() -> None:
    held = buffer()
    held.put([], 500)
    assert held.committable == 500


def test_each_limit_stops_the_pull() -> None:
    by_count = buffer(count_max=3)
    by_count.put(messages(0, 3), 3)
    assert by_count.is_full
    by_bytes = buffer(bytes_max=10)
    by_bytes.put(messages(0, 1, size=10), 1)
    assert by_bytes.is_full
    by_span = buffer(span_max=100)
    by_span.put([*messages(0, 1), *messages(100, 1)], 101)
    assert by_span.is_full
    by_span.settle(by_span.take(1))
    assert not by_span.is_full, "only what is unsettled spans"


def test_taking_makes_no_room_but_settling_does() -> None:
    held = buffer(count_max=2)
    held.put(messages(0, 2), 2)
    taken = held.take(2)
    assert held.is_full
    held.settle(taken[:1])
    assert not held.is_full


def test_messages_given_back_come_first_and_in_order() -> None:
    held = buffer()
    held.put(messages(0, 5), 5)
    first = held.take(2)
    held.give_back(first)
    assert [message.queue_offset for message in held.take(5)] == [0, 1, 2, 3, 4]


def test_a_broker_that_sends_older_messages_does_not_move_the_offset_back() -> None:
    held = buffer(queue_offset=10)
    held.put(messages(8, 4), 12)
    assert [message.queue_offset for message in held.take(9)] == [10, 11]
    assert held.committable == 10


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="count_max is 0"):
        Limits(count_max=0)


def filled(queue_id: int, count: int) -> QueueBuffer:
    held = buffer(queue_id, count_max=10_000)
    held.put(messages(0, count, queue=held.queue), count)
    return held


def deliver(turns: Turns, buffers: list[QueueBuffer], count: int) -> list[int]:
    order: list[int] = []
    for _ in range(count):
        chosen = turns.next([held for held in buffers if len(held)])
        if chosen is None:
            break
        chosen.settle(chosen.take(1))
        order.append(chosen.queue.id)
    return order


def test_without_priority_the_queues_take_turns() -> None:
    order = deliver(Turns(), [filled(queue_id, 10) for queue_id in range(3)], 30)
    assert Counter(order[:9]) == {0: 3, 1: 3, 2: 3}


def test_higher_priority_comes_first() -> None:
    order = deliver(Turns(priority=True, patience=8), [filled(queue_id, 8) for queue_id in range(3)], 24)
    assert order[:8] == [2] * 8
    assert Counter(order) == {0: 8, 1: 8, 2: 8}


@given(st.integers(2, 8), st.integers(1, 12))
def test_no_priority_is_starved(levels: int, patience: int) -> None:
    """With all queues always full, the highest gets its share and the others wait for a bounded time."""
    buffers = [filled(queue_id, 600) for queue_id in range(levels)]
    order = deliver(Turns(priority=True, patience=patience), buffers, 500)
    for queue_id in range(levels - 1):
        places = [-1, *(place for place, served in enumerate(order) if served == queue_id), len(order)]
        longest = max(after - before for before, after in itertools.pairwise(places))
        assert longest <= (patience + 1) * (levels - 1)
    assert Counter(order)[levels - 1] >= len(order) * patience / (patience + 1) - 1


def test_queues_of_the_same_priority_on_several_brokers_take_turns() -> None:
    pair = [QueueBuffer(Queue("T", broker, 7), 0, Limits()) for broker in ("a", "b")]
    for held in pair:
        held.put(messages(0, 4, queue=held.queue), 4)
    turns = Turns(priority=True)
    brokers: list[str] = []
    for _ in range(6):
        chosen = turns.next(pair)
        assert chosen is not None
        chosen.take(1)
        brokers.append(chosen.queue.broker)
    assert Counter(brokers) == {"a": 3, "b": 3}


def test_a_patience_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="patience"):
        Turns(priority=True, patience=0)


def test_all_queues_together_hold_no_more_bytes_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def pull(
        requests: PullRequests, queue: Queue, queue_offset: int, *_: object, bytes_max: int, **__: object
    ) -> PullResult:
        asked.append(bytes_max)
        found = messages(queue_offset, 1, size=min(100, bytes_max), queue=queue)
        await asyncio.sleep(0)
        return PullResult(found, queue_offset + 1, False, [])

    monkeypatch.setattr(PullRequests, "pull", pull)

    async def scenario() -> None:
        options = ConsumerOptions("g", (Subscription.of("T"),), limits=Limits(bytes_max=10_000))
        member = GroupMember(Session("127.0.0.1:1"), options)
        prefetch, pulls = member.prefetch, member._pulls
        for number in range(20):
            pulls.begin(Queue("T", "b", number), 0, 0.0)
        while prefetch.buffered_bytes < 10_000 or not all(
            held.awaits_room for held in prefetch.buffers.values()
        ):
            await asyncio.sleep(0)
        assert prefetch.buffered_bytes == 10_000
        assert max(asked) == 500
        for number in range(20):
            await pulls.drop(Queue("T", "b", number))

    asyncio.run(asyncio.wait_for(scenario(), 60))
