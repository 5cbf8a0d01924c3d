"""Apache's Go client (v2) sends and consumes, and its consumers share the queues."""

from __future__ import annotations

from collections import Counter

from tests.interop.clients import (
    Clients,
    Message,
    bodies,
    by_queue,
    numbered,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.support.waiting import eventually


def test_send_and_consume(go: Clients) -> None:
    topic = go.topic(queues=4)
    message: Message = {
        "body": "Grüße, 世界",
        "tags": "Tag",
        "keys": "key1",
        "properties": {"größe": "naïve 🚀"},
    }
    sent = go.producer().send(topic, [*numbered(100), message])
    assert {result["status"] for result in sent} == {"SEND_OK"}
    assert {result["queue_id"] for result in sent} == {0, 1, 2, 3}
    for queue, results in by_queue(sent).items():
        assert [result["queue_offset"] for result in results] == list(range(len(results))), queue

    consumer = go.push_consumer(topic)
    found = wait_for_bodies([consumer], [*bodies(numbered(100)), message["body"]])
    assert Counter(bodies(found)) == Counter([*bodies(numbered(100)), message["body"]])
    assert {m["id"]: m["queue_offset"] for m in found} == {r["id"]: r["queue_offset"] for r in sent}
    (special,) = (m for m in found if m["body"] == message["body"])
    assert (special["tags"], special["keys"].strip()) == ("Tag", "key1")
    assert special["properties"]["größe"] == "naïve 🚀"


def test_other_ways_to_send(go: Clients) -> None:
    topic = go.topic(queues=4)
    producer = go.producer()
    producer.send(topic, numbered(50, "async"), how="async")
    producer.send(topic, numbered(50, "oneway"), how="oneway")
    batch = producer.send(topic, numbered(50, "batch"), how="batch")
    assert batch["status"] == "SEND_OK"
    wanted = bodies(numbered(50, "async") + numbered(50, "oneway") + numbered(50, "batch"))
    consumer = go.push_consumer(topic)
    found = wait_for_bodies([consumer], wanted)
    assert Counter(bodies(found)) == Counter(wanted)


def test_tags_choose_messages(go: Clients) -> None:
    topic = go.topic(queues=1)
    messages = [{"body": f"{tag}-{n}", "tags": tag} for n in range(20) for tag in ("no", "yes")]
    go.producer().send(topic, messages)
    consumer = go.push_consumer(topic, expression="yes || other")
    wanted = [f"yes-{n}" for n in range(20)]
    assert Counter(bodies(wait_for_bodies([consumer], wanted))) == Counter(wanted)


def test_topic_created_by_its_first_message(go: Clients) -> None:
    topic = unique("auto")
    sent = go.producer().send(topic, numbered(20))
    assert {result["status"] for result in sent} == {"SEND_OK"}
    go.wait_for_route(topic)
    consumer = go.push_consumer(topic)
    assert Counter(bodies(wait_for_bodies([consumer], bodies(numbered(20))))) == Counter(bodies(numbered(20)))


def test_two_consumers_share_the_queues(go: Clients) -> None:
    topic, group = go.topic(queues=4), unique("G")
    producer = go.producer()
    first = go.push_consumer(topic, group=group)
    producer.send(topic, numbered(40, "alone"))
    wait_for_bodies([first], bodies(numbered(40, "alone")))
    second = go.push_consumer(topic, group=group)

    # This client does not say which queues it has; the messages that it gets show it.
    rounds = iter(range(1000))
    sent: list[str] = []

    def queues_of_a_round() -> list[set[tuple[str, int]]]:
        batch = numbered(40, f"round{next(rounds)}")
        placed = {
            message["body"]: queue_of(result)
            for message, result in zip(batch, producer.send(topic, batch), strict=True)
        }
        sent.extend(bodies(batch))
        wait_for_bodies([first, second], bodies(batch))
        return [{placed[m["body"]] for m in c.messages if m["body"] in placed} for c in (first, second)]

    shared = eventually(
        queues_of_a_round, lambda shares: [len(s) for s in shares] == [2, 2], 90, "two queues each"
    )
    assert not shared[0] & shared[1]

    second.stop()
    taken_back = eventually(queues_of_a_round, lambda shares: len(shares[0]) == 4, 90, "four queues again")
    assert not taken_back[1]
    wait_for_bodies([first, second], sent)
