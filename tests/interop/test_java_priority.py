"""Priorities as the Java client sets them since 5.4: the broker chooses the queue."""

from __future__ import annotations

import pytest

from tests.interop.clients import Clients, bodies
from tests.interop.kinds import java_id

since_5_4 = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json"), ("5.5.0", "binary")], ids=java_id, indirect=True, scope="session"
)


@since_5_4
def test_a_priority_chooses_the_queue(java: Clients) -> None:
    topic = java.topic(queues=4)
    messages = [{"body": f"p{priority}", "priority": priority} for priority in (0, 1, 2, 3, 4, 1_000_000)] * 2
    sent = java.producer().send(topic, messages)
    assert [result["queue_id"] for result in sent] == [0, 1, 2, 3, 3, 3] * 2
    # Also against the sender's own choice of a queue.
    chosen = java.producer().send(
        topic, [{"body": "p2", "priority": 2, "broker": "broker-a", "queue_id": 0}], how="queue"
    )
    assert chosen[0]["queue_id"] in (0, 2)  # The client reports the queue it asked for, or the broker's.
    stored = java.pull_consumer().read_all(topic)
    assert {body: {m["queue_id"] for m in stored if m["body"] == body} for body in set(bodies(stored))} == {
        "p0": {0},
        "p1": {1},
        "p2": {2},
        "p3": {3},
        "p4": {3},
        "p1000000": {3},
    }
    assert {m["properties"]["_SYS_MSG_PRIORITY_"] for m in stored if m["body"] == "p4"} == {"4"}


@since_5_4
def test_a_priority_does_not_count_for_what_has_its_queue_for_another_reason(java: Clients) -> None:
    topic = java.topic(queues=4)
    producer = java.producer()
    where = {"broker": "broker-a", "queue_id": 1}
    for other in ({"delay_level": 1}, {"sharding_key": "k"}):
        producer.send(topic, [{"body": "other", "priority": 3, **where, **other}], how="queue")
    java.transaction_producer().send(
        topic, [{"body": "half", "priority": 3, "properties": {"local": "commit"}}] * 4
    )
    consumer = java.push_consumer(topic)
    consumer.driver.wait_for(lambda _: len(consumer.messages) == 6, 90, "six messages")
    assert {m["queue_id"] for m in consumer.messages if m["body"] == "other"} == {1}
    assert {m["queue_id"] for m in consumer.messages if m["body"] == "half"} == {0, 1, 2, 3}
    assert not any("_SYS_MSG_PRIORITY_" in m["properties"] for m in consumer.messages)
