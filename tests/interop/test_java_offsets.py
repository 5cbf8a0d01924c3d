"""Consumed messages stay consumed when the consumer or the broker restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.interop.clients import Clients, bodies, numbered, unique, wait_for_bodies
from tests.interop.kinds import each_once
from tests.interop.servers import Cluster

RECOVERY_TIMEOUT_S = 120.0


def test_consumer_goes_on_where_it_stopped(java: Clients) -> None:
    topic, group = java.topic(), unique("G")
    producer = java.producer()
    producer.send(topic, numbered(100, "first"))
    consumer = java.push_consumer(topic, group=group)
    wait_for_bodies([consumer], bodies(numbered(100, "first")))
    consumer.wait_until_consumed(topic, 100)
    consumer.stop()
    java.wait_for_committed(group, topic, [25, 25, 25, 25])

    producer.send(topic, numbered(60, "second"))
    again = java.push_consumer(topic, group=group)
    found = wait_for_bodies([again], bodies(numbered(60, "second")))
    # It stopped in an orderly way with nothing under way: not one message may come twice.
    assert Counter(bodies(found)) == Counter(bodies(numbered(60, "second")))


def test_groups_do_not_share_offsets(java: Clients) -> None:
    topic = java.topic()
    java.producer().send(topic, numbered(40))
    for _ in range(2):
        consumer = java.push_consumer(topic)
        found = wait_for_bodies([consumer], bodies(numbered(40)))
        assert Counter(bodies(found)) == Counter(bodies(numbered(40)))


@each_once
def test_offsets_outlive_the_broker(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    servers = cluster(flush="sync")
    clients = java_against(servers)
    topic, group = clients.topic(), unique("G")
    clients.producer().send(topic, numbered(80, "first"))
    consumer = clients.push_consumer(topic, group=group)
    wait_for_bodies([consumer], bodies(numbered(80, "first")))
    consumer.wait_until_consumed(topic, 80)
    consumer.stop()

    broker = servers.brokers["broker-a"]
    broker.stop()
    broker.restart()
    clients.wait_for_route(topic, RECOVERY_TIMEOUT_S)
    clients.wait_for_committed(group, topic, [20, 20, 20, 20])
    again = clients.push_consumer(topic, group=group)
    clients.producer().send(topic, numbered(40, "second"))
    found = wait_for_bodies([again], bodies(numbered(40, "second")))
    assert Counter(bodies(found)) == Counter(bodies(numbered(40, "second")))
