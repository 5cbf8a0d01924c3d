"""Namespaces of the Java client: prefixes of topics and groups, which the broker takes as they are."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.clients import Clients, binary, bodies, numbered, unique, wait_for_bodies
from tests.interop.kinds import each_once, java_id


def within(java: Clients, topic: str, namespace: str) -> str:
    """Creates the topic and returns the name that it has outside of the namespace."""
    full = f"{namespace}%{topic}"
    for broker in java.cluster.brokers.values():
        java.admin.call("create_topic", topic=full, queues=2, address=broker.address)
    java.wait_for_route(full)
    return full


def test_two_namespaces_do_not_see_each_other(java: Clients) -> None:
    topic, group = unique("T"), unique("G")
    first, second = unique("N"), unique("N")
    full = {name: within(java, topic, name) for name in (first, second)}
    consumers = {name: java.push_consumer(topic, group=group, namespace=name) for name in full}
    for name in full:
        producer = java.producer(namespace=name)
        producer.send(topic, numbered(10, name))
        producer.send(topic, numbered(10, f"batch-{name}"), how="batch")
    for name, consumer in consumers.items():
        wanted = bodies(numbered(10, name) + numbered(10, f"batch-{name}"))
        found = wait_for_bodies([consumer], wanted)
        assert Counter(bodies(found)) == Counter(wanted)
        # The client removes its namespace before its listener sees the topic.
        assert {message["topic"] for message in found} == {topic}
        assert sorted(bodies(java.pull_consumer().read_all(full[name]))) == sorted(wanted)


@each_once
def test_a_retry_stays_in_its_namespace(java: Clients) -> None:
    topic, group, namespace = unique("T"), unique("G"), unique("N")
    within(java, topic, namespace)
    within(java, group, f"%RETRY%{namespace}")
    consumer = java.push_consumer(topic, group=group, namespace=namespace, retry_level=1, tries_max=1)
    java.producer(namespace=namespace).send(topic, [{"body": "x", "properties": {"fails": "9"}}])
    consumer.driver.wait_for(lambda _: len(consumer.messages) == 2, 90, "a second try")
    assert [(m["topic"], m["reconsume_times"]) for m in consumer.messages] == [(topic, 0), (topic, 1)]
    consumer.wait_until_consumed(f"%RETRY%{namespace}%{group}", 1)
    assert bodies(java.pull_consumer().read_all(f"%DLQ%{namespace}%{group}")) == ["x"]


@pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json"), ("5.5.0", "binary")], ids=java_id, indirect=True, scope="session"
)
def test_a_namespace_beside_the_names_changes_none_of_them(java: Clients) -> None:
    """The second kind of namespace (5.x) is a field of each request for a proxy; brokers ignore it."""
    topic = java.topic(queues=2)
    consumer = java.push_consumer(topic, namespace_v2=unique("N"))
    java.producer(namespace_v2=unique("N")).send(topic, numbered(10))
    assert len(wait_for_bodies([consumer], bodies(numbered(10)))) == 10
    assert len(java.pull_consumer().read_all(topic)) == 10


def test_compressed_bodies_are_stored_as_they_came(java: Clients) -> None:
    topic, namespace = unique("T"), unique("N")
    full = within(java, topic, namespace)
    producer = java.producer(namespace=namespace, compress_over_bytes=100)
    producer.send(topic, [binary(b"abc" * 10_000)])
    consumer = java.push_consumer(topic, namespace=namespace)
    consumer.driver.wait_for(lambda _: len(consumer.messages) == 1, 90, "the message")
    (found,) = consumer.messages
    assert found["body_bytes"] == 30_000
    assert found["stored_bytes"] < 3_000, "the broker unpacked it"
    assert java.pull_consumer().read_all(full)[0]["body_sha256"] == found["body_sha256"]
