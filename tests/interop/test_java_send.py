"""Every way of sending that the Java client has, each read back message for message."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

from tests.interop.clients import (
    Clients,
    Message,
    binary,
    bodies,
    by_queue,
    numbered,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.interop.driver import eventually

MIB = 1024 * 1024


def places(messages: list[Message]) -> list[tuple[str, int, int, str, str]]:
    """Returns the queue, offset and id of each message."""
    return sorted((*queue_of(m), m["queue_offset"], m["id"], m["offset_id"]) for m in messages)


def assert_dense(messages: list[Message]) -> None:
    for queue, found in by_queue(messages).items():
        assert [m["queue_offset"] for m in found] == list(range(len(found))), queue


def test_synchronous(java: Clients) -> None:
    topic = java.topic(queues=4)
    before_ms = int(time.time() * 1000)
    sent = java.producer().send(topic, numbered(100))
    after_ms = int(time.time() * 1000)

    assert {result["status"] for result in sent} == {"SEND_OK"}
    assert len({result["id"] for result in sent}) == 100
    assert len({result["offset_id"] for result in sent}) == 100
    assert {result["queue_id"] for result in sent} == {0, 1, 2, 3}
    stored = java.pull_consumer().read_all(topic)
    assert places(stored) == places(sent)
    assert {m["id"]: m["body"] for m in stored} == {
        result["id"]: f"message-{number}" for number, result in enumerate(sent)
    }
    assert_dense(stored)
    broker = java.cluster.brokers["broker-a"].address
    for message in stored:
        assert message["store_host"] == f"/{broker}"
        assert message["born_host"] == "127.0.0.1"
        assert before_ms <= message["born_timestamp_ms"] <= message["store_timestamp_ms"] <= after_ms
        assert message["reconsume_times"] == 0


def test_asynchronous(java: Clients) -> None:
    topic = java.topic()
    sent = java.producer().send(topic, numbered(300), how="async")

    assert {result["status"] for result in sent} == {"SEND_OK"}
    stored = java.pull_consumer().read_all(topic)
    assert places(stored) == places(sent)
    # Each callback got the answer to its own message, although hundreds were under way.
    assert {m["id"]: m["body"] for m in stored} == {
        result["id"]: f"message-{number}" for number, result in enumerate(sent)
    }
    assert_dense(stored)


def test_oneway(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    assert producer.send(topic, numbered(50), how="oneway") == [None] * 50

    reader = java.pull_consumer()
    stored = eventually(
        lambda: reader.read_all(topic), lambda found: len(found) >= 50, 60, "50 messages stored"
    )
    assert sorted(bodies(stored)) == sorted(bodies(numbered(50)))
    assert_dense(stored)
    # The connection still matches answers to requests after many messages without an answer.
    assert producer.send(topic, numbered(1))[0]["status"] == "SEND_OK"


def test_batch(java: Clients) -> None:
    topic = java.topic()
    messages: list[Message] = [
        {
            "body": f"message-{number}",
            "tags": f"tag{number}",
            "keys": f"key{number}",
            "properties": {"n": str(number)},
        }
        for number in range(60)
    ]
    producer = java.producer()
    first = producer.send(topic, messages[:40], how="batch")
    second = producer.send(topic, messages[40:], how="batch")

    stored = {m["id"]: m for m in java.pull_consumer().read_all(topic)}
    assert len(stored) == 60
    for result, part in ((first, messages[:40]), (second, messages[40:])):
        assert result["status"] == "SEND_OK"
        ids = result["id"].split(",")
        assert len(ids) == len(part)
        assert result["offset_id"].split(",") == [stored[one]["offset_id"] for one in ids]
        in_order = [stored[one] for one in ids]
        assert {queue_of(m) for m in in_order} == {queue_of(result)}
        assert [m["queue_offset"] - result["queue_offset"] for m in in_order] == list(range(len(part)))
        for found, message in zip(in_order, part, strict=True):
            assert (found["body"], found["tags"], found["keys"]) == (
                message["body"],
                message["tags"],
                message["keys"],
            )
            assert found["properties"]["n"] == message["properties"]["n"]


def test_queue_chosen_by_key(java: Clients) -> None:
    topic = java.topic(queues=8)
    messages = [
        {"body": f"order-{order}/step-{step}", "order_key": f"order-{order}"}
        for step in range(10)
        for order in range(20)
    ]
    sent = java.producer().send(topic, messages, how="selected")

    queues_of_key: dict[str, set[tuple[str, int]]] = {}
    for message, result in zip(messages, sent, strict=True):
        queues_of_key.setdefault(message["order_key"], set()).add(queue_of(result))
    assert {len(queues) for queues in queues_of_key.values()} == {1}
    assert len(set.union(*queues_of_key.values())) > 1
    stored = java.pull_consumer().read_all(topic)
    assert places(stored) == places(sent)
    for order in range(20):
        steps = [m["body"] for m in stored if m["body"].startswith(f"order-{order}/")]
        assert steps == [f"order-{order}/step-{step}" for step in range(10)]


def test_queue_chosen_by_hand(java: Clients) -> None:
    topic = java.topic(queues=4)
    to_third = [{**message, "broker": "broker-a", "queue_id": 2} for message in numbered(10)]
    sent = java.producer().send(topic, to_third, how="queue")

    assert [(queue_of(r), r["queue_offset"]) for r in sent] == [(("broker-a", 2), n) for n in range(10)]
    assert bodies(java.pull_consumer().read_all(topic)) == bodies(numbered(10))


def test_body_of_almost_four_mebibytes(java: Clients) -> None:
    topic = java.topic()
    body = random.Random(1).randbytes(4 * MIB - 1024)
    producer = java.producer(compress_over_bytes=64 * MIB)
    assert producer.send(topic, [binary(body), binary(body[::-1])])[0]["status"] == "SEND_OK"

    consumer = java.push_consumer(topic)
    wanted = {hashlib.sha256(b).hexdigest() for b in (body, body[::-1])}
    java.driver.wait_for(
        lambda _: {m["body_sha256"] for m in consumer.messages} == wanted, 90, "both large messages consumed"
    )
    assert {m["body_bytes"] for m in consumer.messages} == {len(body)}


def test_compressed_body(java: Clients) -> None:
    topic = java.topic()
    body = b"the same words over and over again; " * 5000
    java.producer(compress_over_bytes=4096).send(topic, [binary(body), {"body": "short"}])

    long, short = sorted(java.pull_consumer().read_all(topic), key=lambda m: -m["body_bytes"])
    assert long["body_sha256"] == hashlib.sha256(body).hexdigest()
    assert long["stored_bytes"] < len(body) / 10, "the broker has to keep the body as it came"
    assert short["body"] == "short"


def test_keys_tags_and_properties_come_back(java: Clients) -> None:
    topic = java.topic()
    properties = {
        "plain": "value",
        "größe": "naïve café",
        "名字": "消息队列",
        "emoji": "🚀🦀 and more",
        "quoted": 'a "quoted" \\ backslash / slash',
        "lines": "one\ntwo\tthree",
        "equals=sign": "a=b;c=d,{e}",
        "spaces": "  kept  ",
    }
    message: Message = {
        "body": "Grüße, 世界 🌍",
        "tags": "Tag_一",
        "keys": "key1 key-2 键",
        "flag": 77,
        "properties": properties,
    }
    sent = java.producer().send(topic, [message])[0]
    consumer = java.push_consumer(topic)
    (found,) = wait_for_bodies([consumer], [message["body"]])

    assert (found["tags"], found["keys"], found["flag"]) == (message["tags"], message["keys"], 77)
    assert {name: found["properties"].get(name) for name in properties} == properties
    assert (found["id"], found["offset_id"]) == (sent["id"], sent["offset_id"])
    assert sent["region"] == "DefaultRegion"


def test_topic_created_by_its_first_message(java: Clients) -> None:
    topic = unique("auto")
    producer = java.producer(default_topic_queues=3)
    sent = producer.send(topic, numbered(30))

    assert {result["status"] for result in sent} == {"SEND_OK"}
    # The client wrote by the route of the template topic; the topic's own must show all that it wrote.
    java.wait_for_route(topic)
    route = java.admin.call("topic_route", topic=topic)
    assert [(q["broker"], q["write_queues"], q["permission"]) for q in route["queues"]] == [
        ("broker-a", 3, 6)
    ]
    consumer = java.push_consumer(topic)
    found = wait_for_bodies([consumer], bodies(numbered(30)))
    assert places(found) == places(sent)


def test_old_port(java: Clients) -> None:
    """Clients up to 4.4 send to two below the broker's port; the option still exists in every release."""
    topic = java.topic()
    sent = java.producer(vip=True).send(topic, numbered(20))
    assert {result["status"] for result in sent} == {"SEND_OK"}
    consumer = java.push_consumer(topic, vip=True)
    wait_for_bodies([consumer], bodies(numbered(20)))

    assert java.cluster.old_addresses["broker-a"] != java.cluster.brokers["broker-a"].address
    old_port = int(java.cluster.old_addresses["broker-a"].rpartition(":")[2])
    assert old_port in established_remote_ports()


def established_remote_ports() -> set[int]:
    """Remote ports of this machine's open TCP connections, IPv4 or IPv4 over IPv6 sockets."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, _, remote, state, *_ = line.split()
            if state == "01":
                ports.add(int(remote.rpartition(":")[2], 16))
    return ports
