"""Errors reach the caller as the exception and the code that Apache's broker gives."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.interop.clients import Clients, binary, bodies, numbered, unique
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once
from tests.interop.servers import Cluster

MIB = 1024 * 1024
TOPIC_NOT_EXIST, MESSAGE_ILLEGAL, NO_PERMISSION, NO_ROUTE = 17, 13, 16, 10005


@each_once
def test_unknown_topic_without_auto_creation(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    clients = java_against(cluster(settings={"auto_create_topic": False}))
    known, unknown = clients.topic(), unique("unknown")
    producer = clients.producer()
    with pytest.raises(ClientError, match="No route info") as raised:
        producer.send(unknown, numbered(1))
    assert (raised.value.kind, raised.value.code) == ("MQClientException", NO_ROUTE)

    # A client that knows the broker from another topic gets as far as asking it.
    producer.send(known, numbered(1))
    with pytest.raises(ClientError) as raised:
        producer.send(unknown, [{"body": "x", "broker": "broker-a", "queue_id": 0}], how="queue")
    assert raised.value.broker_code == TOPIC_NOT_EXIST
    consumer = clients.pull_consumer()
    consumer.call("subscribe_queues", topic=known)
    consumer.call("queue_bounds", topic=known, broker="broker-a", queue_id=0)
    with pytest.raises(ClientError) as raised:
        consumer.call("pull", topic=unknown, broker="broker-a", queue_id=0, queue_offset=0)
    assert (raised.value.kind, raised.value.code) == ("MQBrokerException", TOPIC_NOT_EXIST)
    # And it is still well served.
    assert producer.send(known, numbered(1))[0]["status"] == "SEND_OK"


def test_body_past_the_limit(java: Clients) -> None:
    topic = java.topic()
    body = random.Random(2).randbytes(4 * MIB + 1)
    with pytest.raises(ClientError) as raised:
        java.producer().send(topic, [binary(body)])
    assert (raised.value.kind, raised.value.code, raised.value.broker_code) == ("MQClientException", 13, None)

    # A client with a limit of its own above the broker's is refused by the broker, and goes on.
    producer = java.producer(message_bytes_max=8 * MIB, compress_over_bytes=64 * MIB)
    with pytest.raises(ClientError) as raised:
        producer.send(topic, [binary(body)])
    assert raised.value.broker_code == MESSAGE_ILLEGAL
    assert producer.send(topic, numbered(1))[0]["status"] == "SEND_OK"
    assert bodies(java.pull_consumer().read_all(topic)) == bodies(numbered(1))


def test_properties_past_the_limit(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    fits = {"body": "fits", "properties": {"long": "x" * 30_000}}
    assert producer.send(topic, [fits])[0]["status"] == "SEND_OK"
    with pytest.raises(ClientError) as raised:
        producer.send(topic, [{"body": "does not", "properties": {"long": "x" * 33_000}}])
    assert raised.value.broker_code == MESSAGE_ILLEGAL
    (stored,) = java.pull_consumer().read_all(topic)
    assert stored["properties"]["long"] == "x" * 30_000


@pytest.mark.parametrize(
    "topic", ["with space", "semi;colon", "x" * 128], ids=["space", "semicolon", "128 letters"]
)
def test_illegal_topic_cannot_be_created(java: Clients, topic: str) -> None:
    with pytest.raises(ClientError) as raised:
        java.admin.call("create_topic", topic=topic, address=java.cluster.brokers["broker-a"].address)
    assert raised.value.code is not None
    assert topic not in java.admin.call("topic_names")


def test_topic_that_may_only_be_read(java: Clients) -> None:
    topic = java.topic(permission=4)
    producer = java.producer()
    # No queue of the route can be written to, so the client does not even ask.
    with pytest.raises(ClientError, match="No route info") as raised:
        producer.send(topic, numbered(1))
    assert (raised.value.kind, raised.value.code) == ("MQClientException", NO_ROUTE)
    assert java.pull_consumer().read_all(topic) == []


def test_topic_that_may_only_be_written(java: Clients) -> None:
    topic = java.topic(permission=2)
    assert java.producer().send(topic, numbered(1))[0]["status"] == "SEND_OK"
    consumer = java.pull_consumer()
    with pytest.raises(ClientError):
        consumer.call("subscribe_queues", topic=topic)
    with pytest.raises(ClientError) as raised:
        consumer.call("pull", topic=topic, broker="broker-a", queue_id=0, queue_offset=0)
    assert (raised.value.kind, raised.value.code) == ("MQBrokerException", NO_PERMISSION)


def test_queue_past_the_last(java: Clients) -> None:
    topic = java.topic(queues=2)
    producer, consumer = java.producer(), java.pull_consumer()
    producer.send(topic, numbered(1))
    consumer.call("subscribe_queues", topic=topic)
    nowhere = {"broker": "broker-a", "queue_id": 7}
    with pytest.raises(ClientError) as pulled:
        consumer.call("pull", topic=topic, queue_offset=0, **nowhere)
    with pytest.raises(ClientError) as sent:
        producer.send(topic, [{"body": "lost", **nowhere}], how="queue")
    # 4.x brokers say 1 and 5.x brokers 29.
    assert pulled.value.broker_code in (1, 29)
    assert sent.value.broker_code in (1, 29)
    assert bodies(consumer.read_all(topic)) == bodies(numbered(1))
