"""Every queue goes to exactly one member, the same that a Java client would compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.consumer.allocation import average, by_machine_room, circular, sticky, strategy_named
from metaq.client.session.routes import Queue

queues = (
    st.integers(0, 40)
    .map(lambda count: [Queue("T", f"broker-{n % 3}", n // 3) for n in range(count)])
    .map(sorted)
)
members = st.lists(st.text("abcdef@#0123", min_size=1), min_size=1, max_size=12, unique=True).map(sorted)
rooms = by_machine_room(lambda broker: broker[-1], lambda client_id: client_id[0])
STRATEGIES = {"average": average, "circular": circular, "sticky": sticky, "rooms": rooms}


def shares(strategy: str, all_queues: list[Queue], client_ids: list[str]) -> dict[str, list[Queue]]:
    return {member: STRATEGIES[strategy](member, all_queues, client_ids) for member in client_ids}


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(queues, members)
def test_every_queue_has_exactly_one_member(
    strategy: str, all_queues: list[Queue], client_ids: list[str]
) -> None:
    given_out = [queue for share in shares(strategy, all_queues, client_ids).values() for queue in share]
    assert sorted(given_out) == all_queues


@pytest.mark.parametrize("strategy", ["average", "circular"])
@given(queues, members)
def test_shares_differ_by_one_at_most(strategy: str, all_queues: list[Queue], client_ids: list[str]) -> None:
    sizes = [len(share) for share in shares(strategy, all_queues, client_ids).values()]
    assert max(sizes) - min(sizes) <= 1


def java_average(index: int, queue_count: int, member_count: int) -> range:
    """Computes the rule as Java clients do: every share has at least one queue, and members whose share would
    start past the end get none."""
    rest = queue_count % member_count
    early = rest > 0 and index < rest
    size = 1 if queue_count <= member_count else queue_count // member_count + (1 if early else 0)
    start = index * size if early else index * size + rest
    count = min(size, queue_count - start)
    return range(start, start + max(count, 0))


@given(st.integers(0, 200), st.integers(1, 50))
def test_average_is_the_rule_of_java_clients(queue_count: int, member_count: int) -> None:
    all_queues = [Queue("T", "b", n) for n in range(queue_count)]
    client_ids = [f"{n:03}" for n in range(member_count)]
    for index, client_id in enumerate(client_ids):
        expected = [all_queues[place] for place in java_average(index, queue_count, member_count)]
        assert average(client_id, all_queues, client_ids) == expected


@given(queues, members)
def test_sticky_gives_nobody_more_than_a_share_rounded_up(
    all_queues: list[Queue], client_ids: list[str]
) -> None:
    sizes = [len(share) for share in shares("sticky", all_queues, client_ids).values()]
    assert max(sizes) <= -(-len(all_queues) // len(client_ids))


def test_sticky_moves_fewer_queues_than_average_when_a_member_leaves() -> None:
    all_queues = [Queue("T", "b", n) for n in range(64)]
    client_ids = [f"client-{n}" for n in range(8)]

    def moved(strategy: str) -> int:
        before = shares(strategy, all_queues, client_ids)
        after = shares(strategy, all_queues, client_ids[1:])
        return sum(len(set(before[member]) - set(after[member])) for member in client_ids[1:])

    assert moved("sticky") < moved("average")


def test_a_room_reads_its_own_brokers() -> None:
    near = by_machine_room(lambda broker: broker.split("@")[0], lambda client_id: client_id.split("@")[0])
    all_queues = sorted(Queue("T", broker, n) for broker in ("east@b", "west@b", "north@b") for n in range(2))
    client_ids = ["east@1", "west@1"]
    east = near("east@1", all_queues, client_ids)
    assert {queue.broker for queue in east} == {"east@b", "north@b"}
    assert len(east) == 3, "the queues of a room without members are shared by all"


def test_a_client_that_is_not_a_member_gets_nothing() -> None:
    for strategy in STRATEGIES.values():
        assert strategy("stranger", [Queue("T", "b", 0)], ["a"]) == []


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="average, circular, sticky"):
        strategy_named("random")
