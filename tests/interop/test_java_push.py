"""Push consumers of the Java client: cluster, broadcast, concurrent, orderly, filters, start positions."""

from __future__ import annotations

import time
from collections import Counter

from tests.interop.clients import (
    WOKEN_S,
    Clients,
    Message,
    bodies,
    by_queue,
    numbered,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.support.waiting import wait_until


def test_concurrent_consumer_gets_everything_once(java: Clients) -> None:
    topic = java.topic(queues=4)
    producer = java.producer()
    before = producer.send(topic, numbered(100, "before"))
    consumer = java.push_consumer(topic)
    wait_for_bodies([consumer], bodies(numbered(100, "before")))
    after = producer.send(topic, numbered(100, "after"))
    found = wait_for_bodies([consumer], bodies(numbered(100, "after")))

    # Exactly once: the consumer neither stopped nor lost a queue, so nothing may come again.
    assert Counter(bodies(found)) == Counter(bodies(numbered(100, "before") + numbered(100, "after")))
    assert {(*queue_of(m), m["queue_offset"]): m["id"] for m in found} == {
        (*queue_of(r), r["queue_offset"]): r["id"] for r in before + after
    }


def test_waiting_consumer_is_woken_by_a_message(java: Clients) -> None:
    topic = java.topic(queues=1)
    producer = java.producer()
    consumer = java.push_consumer(topic)
    producer.send(topic, numbered(1, "first"))
    wait_for_bodies([consumer], ["first-0"])
    # Its next pull now waits at the broker.
    for number in range(5):
        producer.send(topic, [{"body": f"then-{number}"}])
        wait_for_bodies([consumer], [f"then-{number}"], timeout_s=WOKEN_S)
    arrived = [m for m in consumer.messages if m["body"].startswith("then")]
    assert len(arrived) == 5


def test_batches_reach_the_listener_whole(java: Clients) -> None:
    topic = java.topic(queues=2)
    java.producer().send(topic, numbered(200), how="async")
    consumer = java.push_consumer(topic, batch=16)
    found = wait_for_bodies([consumer], bodies(numbered(200)))
    assert Counter(bodies(found)) == Counter(bodies(numbered(200)))


def test_two_topics_one_consumer(java: Clients) -> None:
    first, second = java.topic(), java.topic()
    producer = java.producer()
    producer.send(first, numbered(20, "first"))
    producer.send(second, numbered(20, "second"))
    consumer = java.push_consumer(first, second)
    found = wait_for_bodies([consumer], bodies(numbered(20, "first") + numbered(20, "second")))
    assert {(m["topic"], m["body"].rpartition("-")[0]) for m in found} == {
        (first, "first"),
        (second, "second"),
    }
    assert len(found) == 40


def keyed(steps: range, keys: int = 12) -> list[Message]:
    return [{"body": f"{key}/{step}", "order_key": f"key-{key}"} for step in steps for key in range(keys)]


def assert_in_order(found: list[Message]) -> None:
    """Checks that each queue came without a gap, a repetition or a step back."""
    for queue, messages in by_queue(found).items():
        offsets = [m["queue_offset"] for m in messages]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), queue


def test_orderly_consumers_keep_the_order_of_each_queue(java: Clients) -> None:
    topic, group = java.topic(queues=8), unique("G")
    producer = java.producer()
    first = java.push_consumer(topic, group=group, orderly=True, threads=8)
    producer.send(topic, keyed(range(0, 10)), how="selected")
    wait_for_bodies([first], bodies(keyed(range(0, 10))))
    assert_in_order(first.messages)

    # A second consumer locks half of the queues; each queue continues where the first one left it.
    second = java.push_consumer(topic, group=group, orderly=True, threads=8)
    half = second.wait_for_assignment(topic, 4)
    first.wait_for_assignment(topic, 4)
    producer.send(topic, keyed(range(10, 20)), how="selected")
    wait_for_bodies([first, second], bodies(keyed(range(10, 20))))
    assert {queue_of(m) for m in second.messages} <= half
    assert second.messages, "the second consumer has queues and got nothing"
    for consumer in (first, second):
        assert_in_order(consumer.messages)

    # The first one leaves and releases its locks: the second gets all queues at once, not after the lease.
    first.stop()
    second.wait_for_assignment(topic, 8)
    producer.send(topic, keyed(range(20, 30)), how="selected")
    found = wait_for_bodies([first, second], bodies(keyed(range(20, 30))))
    assert Counter(bodies(found)) == Counter(bodies(keyed(range(0, 30))))
    for key in range(12):
        # Consumers never overlap on a queue, so the order of their events is the order of consumption.
        told = [m["body"] for m in java.driver.events("message") if m["body"].startswith(f"{key}/")]
        assert told == [f"{key}/{step}" for step in range(30)]


def test_broadcast_gives_everything_to_everyone(java: Clients) -> None:
    topic, group = java.topic(), unique("G")
    producer = java.producer()
    producer.send(topic, numbered(50))
    consumers = [java.push_consumer(topic, group=group, model="BROADCASTING") for _ in range(2)]
    for consumer in consumers:
        wait_for_bodies([consumer], bodies(numbered(50)))
    producer.send(topic, numbered(50, "later"))
    for consumer in consumers:
        found = wait_for_bodies([consumer], bodies(numbered(50, "later")))
        assert Counter(bodies(found)) == Counter(bodies(numbered(50) + numbered(50, "later")))


def test_tags_choose_messages(java: Clients) -> None:
    topic = java.topic()
    # "Aa" and "BB" have the same hash code: the broker lets both through and the client tells them apart.
    tags = ["red", "green", "Aa", "BB"]
    messages = [{"body": f"{tag}-{number}", "tags": tag} for number in range(25) for tag in tags]
    messages += [{"body": f"none-{number}"} for number in range(25)]
    java.producer().send(topic, messages)
    wanted = [m["body"] for m in messages if m.get("tags") in ("red", "Aa")]
    consumer = java.push_consumer(topic, expression="red || Aa")
    found = wait_for_bodies([consumer], wanted)

    # One more of each, the wanted ones last: when they are here, the others would have come before.
    producer = java.producer()
    for queue_id in range(4):
        last = [
            {"body": f"{tag}-last-{queue_id}", "tags": tag, "broker": "broker-a", "queue_id": queue_id}
            for tag in tags
        ]
        producer.send(topic, last[1:] + last[:1], how="queue")
    wanted += [f"{tag}-last-{queue_id}" for tag in ("red", "Aa") for queue_id in range(4)]
    found = wait_for_bodies([consumer], wanted)
    assert Counter(bodies(found)) == Counter(wanted)


def test_first_offset(java: Clients) -> None:
    topic = java.topic()
    java.producer().send(topic, numbered(40))
    consumer = java.push_consumer(topic, **{"from": "FIRST_OFFSET"})
    found = wait_for_bodies([consumer], bodies(numbered(40)))
    assert Counter(bodies(found)) == Counter(bodies(numbered(40)))


def test_last_offset(java: Clients) -> None:
    """A broadcast consumer keeps its own offsets and asks the broker only for the end of the queue."""
    topic = java.topic()
    producer = java.producer()
    producer.send(topic, numbered(40, "before"))
    consumer = java.push_consumer(topic, model="BROADCASTING", **{"from": "LAST_OFFSET"})
    consumer.wait_for_assignment(topic, 4)
    producer.send(topic, numbered(40, "after"))
    found = wait_for_bodies([consumer], bodies(numbered(40, "after")))
    assert Counter(bodies(found)) == Counter(bodies(numbered(40, "after")))


def test_last_offset_of_a_new_group_on_a_young_topic(java: Clients) -> None:
    """While a queue still has its first message, the broker tells a new group to begin there."""
    topic = java.topic()
    java.producer().send(topic, numbered(40))
    consumer = java.push_consumer(topic, **{"from": "LAST_OFFSET"})
    found = wait_for_bodies([consumer], bodies(numbered(40)))
    assert Counter(bodies(found)) == Counter(bodies(numbered(40)))


def test_timestamp(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    producer.send(topic, numbered(40, "before"))
    # The client gives the time in whole seconds, so the two halves must be in different seconds.
    boundary_s = int(time.time()) + 1
    wait_until(lambda: time.time() >= boundary_s)
    producer.send(topic, numbered(40, "after"))
    from_time = time.strftime("%Y%m%d%H%M%S", time.localtime(boundary_s))
    consumer = java.push_consumer(topic, model="BROADCASTING", from_time=from_time, **{"from": "TIMESTAMP"})
    found = wait_for_bodies([consumer], bodies(numbered(40, "after")))
    assert Counter(bodies(found)) == Counter(bodies(numbered(40, "after")))
