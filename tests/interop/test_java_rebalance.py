"""Queues find new owners when a consumer joins, leaves or dies, and nothing is left unconsumed on the way."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.clients import Clients, Queue, bodies, numbered, queue_of, unique, wait_for_bodies
from tests.interop.kinds import each_once
from tests.interop.programs import REBALANCE_INTERVAL_S
from tests.interop.servers import Cluster

QUEUES = 8
# Told by the broker, consumers share the queues anew at once and do not wait for their own clock.
REBALANCE_TIMEOUT_S = REBALANCE_INTERVAL_S - 2.0


def test_consumer_joins_and_leaves(java: Clients) -> None:
    topic, group = java.topic(queues=QUEUES), unique("G")
    stream = java.stream(topic)
    first = java.push_consumer(topic, group=group)
    alone = first.wait_for_assignment(topic, QUEUES)
    stream.wait_for_acknowledged(50)

    second = java.push_consumer(topic, group=group)
    theirs = second.wait_for_assignment(topic, QUEUES // 2, REBALANCE_TIMEOUT_S)
    ours = first.wait_for_assignment(topic, QUEUES // 2, REBALANCE_TIMEOUT_S)
    assert ours | theirs == alone
    assert not ours & theirs
    settled = len(stream.acknowledged)
    stream.wait_for_acknowledged(settled + 100)
    wait_for_bodies([second], [m["body"] for m in stream.acknowledged[settled:] if queue_of(m) in theirs])

    second.stop()
    assert first.wait_for_assignment(topic, QUEUES, REBALANCE_TIMEOUT_S) == alone
    settled = len(stream.acknowledged)
    stream.wait_for_acknowledged(settled + 100)
    stream.stop()
    # Everything that was acknowledged came to one of the two; what came after the second left, to the first.
    wait_for_bodies([first, second], bodies(stream.acknowledged))
    wait_for_bodies([first], bodies(stream.acknowledged[settled:]))
    assert {queue_of(m) for m in stream.acknowledged} == alone


def test_more_consumers_than_queues(java: Clients) -> None:
    topic, group = java.topic(queues=2), unique("G")
    consumers = [java.push_consumer(topic, group=group) for _ in range(3)]
    shares: list[set[Queue]] = []
    for consumer in sorted(consumers, key=lambda c: str(c.client_id)):
        # In the order of their identities the first two get a queue each, the third nothing.
        shares.append(consumer.wait_for_assignment(topic, 1 if len(shares) < 2 else 0, REBALANCE_TIMEOUT_S))
    assert set.union(*shares) == {("broker-a", 0), ("broker-a", 1)}
    java.producer().send(topic, numbered(40))
    found = wait_for_bodies(consumers, bodies(numbered(40)))
    assert len(found) == 40


@each_once
def test_consumer_is_killed(java: Clients, more_java: Callable[[Cluster], Clients]) -> None:
    topic, group = java.topic(queues=QUEUES), unique("G")
    survivor = java.push_consumer(topic, group=group)
    doomed_process = more_java(java.cluster)
    doomed = doomed_process.push_consumer(topic, group=group)
    theirs = doomed.wait_for_assignment(topic, QUEUES // 2)
    survivor.wait_for_assignment(topic, QUEUES // 2)
    stream = java.stream(topic)
    stream.wait_for_acknowledged(200)
    wait_for_bodies([doomed], [m["body"] for m in stream.acknowledged[:100] if queue_of(m) in theirs])

    doomed.driver.kill()
    assert len(survivor.wait_for_assignment(topic, QUEUES, REBALANCE_TIMEOUT_S)) == QUEUES
    settled = len(stream.acknowledged)
    stream.wait_for_acknowledged(settled + 100)
    stream.stop()
    # Messages that the dead consumer had not committed come again; together they must have everything.
    wait_for_bodies([survivor, doomed], bodies(stream.acknowledged))
    wait_for_bodies([survivor], bodies(stream.acknowledged[settled:]))
    assert {queue_of(m) for m in survivor.messages} >= theirs
