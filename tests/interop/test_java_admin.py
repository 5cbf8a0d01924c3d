"""The administration calls that clients need, and messages found again by id and by key."""

from __future__ import annotations

import time

import pytest

from tests.interop.clients import Clients, bodies, by_queue, numbered, unique
from tests.interop.driver import ClientError
from tests.support.waiting import eventually


def test_topic_is_created_and_seen(java: Clients) -> None:
    topic = java.topic(queues=6)
    route = java.admin.call("topic_route", topic=topic)
    assert route["queues"] == [{"broker": "broker-a", "read_queues": 6, "write_queues": 6, "permission": 6}]
    broker = java.cluster.brokers["broker-a"].address
    assert route["brokers"] == {"broker-a": {"cluster": "DefaultCluster", "addresses": {"0": broker}}}
    assert topic in java.admin.call("topic_names")
    queues = java.producer().call("publish_queues", topic=topic)
    assert sorted(queue["queue_id"] for queue in queues) == list(range(6))


def test_topic_gets_more_queues(java: Clients) -> None:
    topic = java.topic(queues=2)
    address = java.cluster.brokers["broker-a"].address
    java.admin.call("create_topic", topic=topic, queues=5, address=address)
    eventually(
        lambda: java.admin.call("topic_route", topic=topic)["queues"][0]["write_queues"],
        lambda found: found == 5,
        60,
        "5 queues in the route",
    )
    sent = java.producer().send(topic, numbered(20))
    assert {result["queue_id"] for result in sent} == set(range(5))


def test_topic_stats(java: Clients) -> None:
    topic = java.topic(queues=3)
    before_ms = int(time.time() * 1000)
    sent = java.producer().send(topic, numbered(30))
    after_ms = int(time.time() * 1000)
    counts = {queue: len(found) for queue, found in by_queue(sent).items()}
    stats = java.admin.call("topic_stats", topic=topic)
    assert {(q["broker"], q["queue_id"]): (q["min_offset"], q["max_offset"]) for q in stats} == {
        queue: (0, count) for queue, count in counts.items()
    }
    assert all(before_ms <= q["last_update_ms"] <= after_ms for q in stats)


def test_route_of_a_topic_that_is_not_there(java: Clients) -> None:
    with pytest.raises(ClientError) as raised:
        java.admin.call("topic_route", topic=unique("nowhere"))
    assert raised.value.code == 17


def test_connected_consumers_are_listed(java: Clients) -> None:
    topic, group = java.topic(), unique("G")
    consumers = [java.push_consumer(topic, group=group) for _ in range(2)]
    for consumer in consumers:
        consumer.wait_for_assignment(topic, 2)
    # The tool asks the name server for the group, which may know it a moment later than its consumers.
    java.wait_for_route(f"%RETRY%{group}")
    assert sorted(java.admin.call("consumer_connections", group=group)) == sorted(
        str(c.client_id) for c in consumers
    )


def test_message_by_id(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    sent = producer.send(
        topic, [{"body": f"body-{n}", "tags": "T", "properties": {"n": str(n)}} for n in range(5)]
    )
    for number, result in enumerate(sent):
        found = producer.call("view", topic=topic, message_id=result["offset_id"])
        assert (found["topic"], found["body"], found["tags"]) == (topic, f"body-{number}", "T")
        assert (found["queue_id"], found["queue_offset"]) == (result["queue_id"], result["queue_offset"])
        assert found["properties"]["n"] == str(number)


def test_message_by_the_id_its_sender_gave_it(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    sent = producer.send(topic, numbered(5))

    def view(message_id: str) -> str | None:
        try:
            found: str = producer.call("view", topic=topic, message_id=message_id)["body"]
            return found
        except ClientError as not_yet:
            assert not_yet.code == 208, not_yet
            return None

    # The index is built a moment after the log.
    last: str = sent[-1]["id"]
    eventually(lambda: view(last), lambda found: found is not None, 60, "in the index")
    assert [view(result["id"]) for result in sent] == bodies(numbered(5))


def test_messages_by_key(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    begin_ms = int(time.time() * 1000) - 60_000
    end_ms = begin_ms + 120_000
    messages = [{"body": f"body-{n}", "keys": f"all every{n % 3} only{n}"} for n in range(12)]
    producer.send(topic, messages)

    def bodies_with(key: str, begin: int = begin_ms, end: int = end_ms) -> list[str]:
        try:
            found = producer.call("query", topic=topic, key=key, begin_ms=begin, end_ms=end)
        except ClientError as none:
            assert none.code == 208, none
            return []
        return sorted(message["body"] for message in found)

    eventually(lambda: bodies_with("only11"), lambda found: found == ["body-11"], 60, "in the index")
    assert bodies_with("all") == sorted(f"body-{n}" for n in range(12))
    assert bodies_with("every1") == sorted(f"body-{n}" for n in (1, 4, 7, 10))
    assert bodies_with("only5") == ["body-5"]
    assert bodies_with("nobody") == []
    assert bodies_with("all", begin_ms - 7_200_000, begin_ms - 3_600_000) == []
