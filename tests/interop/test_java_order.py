"""Each queue keeps its order while consumers die with their locks and the broker restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from tests.interop.clients import (
    CONSUME_TIMEOUT_S,
    Clients,
    Message,
    PushConsumer,
    Queue,
    Stream,
    bodies,
    by_queue,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.interop.kinds import each_once, gives_up_lost_pulls
from tests.support.servers import Cluster
from tests.support.waiting import eventually

QUEUES = 4
RECOVERY_TIMEOUT_S = 120.0
HEARTBEAT_INTERVAL_MS = 1_000


def in_queue(messages: Iterable[Message], topic: str) -> dict[Queue, list[int]]:
    """Returns the offsets of each queue of the topic in the order of consumption."""
    mine = [message for message in messages if message["topic"] == topic]
    return {queue: [m["queue_offset"] for m in told] for queue, told in by_queue(mine).items()}


def assert_in_order(offsets: list[int]) -> None:
    """Nothing comes before its predecessor. A message may come again, and then those after it, too."""
    assert offsets[0] == 0
    for before, after in pairwise(offsets):
        assert after <= before + 1, offsets


def wait_until_taken(survivor: PushConsumer, servers: Cluster, topic: str, queues: set[Queue]) -> None:
    """Lets the time of a lease pass, and more until the consumer asks again."""

    def consumed() -> set[Queue]:
        servers.clock.pass_by(8_000)
        return set(in_queue(survivor.messages, topic))

    eventually(consumed, lambda found: queues <= found, CONSUME_TIMEOUT_S, f"{queues} consumed")


@each_once
def test_the_queues_of_a_killed_consumer_move_when_its_leases_end(
    moved_java: Clients, more_java: Callable[..., Clients], java_kind: tuple[str, str]
) -> None:
    clients, servers = moved_java, moved_java.cluster
    # A topic with one queue has one order for all its messages.
    topic, single = clients.topic(queues=QUEUES), clients.topic(queues=1)
    options = {"group": unique("G"), "orderly": True, "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS}
    # Queues are assigned in the order of the consumers' names: the first one gets the single queue.
    doomed, survivor = (
        more_java(servers, rebalance_interval_s=1).push_consumer(topic, single, instance=name, **options)
        for name in ("a-doomed", "b-survivor")
    )
    theirs = doomed.wait_for_assignment(topic, QUEUES // 2)
    ours = survivor.wait_for_assignment(topic, QUEUES // 2)
    streams = [
        clients.stream(name, retries=3, timeout_ms=3000, route_interval_ms=1000) for name in (topic, single)
    ]
    for stream in streams:
        stream.wait_for_acknowledged(100)
    eventually(
        lambda: in_queue(doomed.messages, single), bool, CONSUME_TIMEOUT_S, "the single queue consumed"
    )
    eventually(lambda: set(in_queue(survivor.messages, topic)), ours.issubset, CONSUME_TIMEOUT_S, "consumed")

    doomed.driver.kill()
    # Until the leases end nobody else may read those queues, although messages arrive there.
    for stream in streams:
        stream.wait_for_acknowledged(len(stream.acknowledged) + 100)
    eventually(
        lambda: len(survivor.messages), lambda count: count > 100, CONSUME_TIMEOUT_S, "own queues go on"
    )
    before = {queue_of(m) for m in survivor.messages if m["topic"] == topic}
    assert before == ours
    assert not in_queue(survivor.messages, single)
    wait_until_taken(survivor, servers, topic, theirs)
    wait_until_taken(survivor, servers, single, {("broker-a", 0)})

    broker = servers.brokers["broker-a"]
    (broker.kill if gives_up_lost_pulls(java_kind) else broker.stop)()
    broker.restart()
    for stream in streams:
        stream.wait_for_acknowledged(len(stream.acknowledged) + 100, RECOVERY_TIMEOUT_S)
        stream.stop()
    assert_consumed_in_order(streams, [topic, single], doomed, survivor)


def assert_consumed_in_order(
    streams: list[Stream], topics: list[str], doomed: PushConsumer, survivor: PushConsumer
) -> None:
    for stream, topic in zip(streams, topics, strict=True):
        wait_for_bodies([doomed, survivor], bodies(stream.acknowledged), RECOVERY_TIMEOUT_S)
        first, then = in_queue(doomed.messages, topic), in_queue(survivor.messages, topic)
        assert len(then) == (1 if len(topics) > 1 and topic == topics[-1] else QUEUES)
        for queue, offsets in then.items():
            assert_in_order([*first.get(queue, []), *offsets])
