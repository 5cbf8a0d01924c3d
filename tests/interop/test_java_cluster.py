"""Several name servers, several brokers, and clients that go on when one of them is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.interop.clients import Clients, PushConsumer, Stream, bodies, numbered, queue_of, wait_for_bodies
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once, gives_up_lost_pulls
from tests.interop.servers import Cluster

StartCluster = Callable[..., Cluster]
Against = Callable[[Cluster], Clients]
RECOVERY_TIMEOUT_S = 120.0
# A broker that restarted knows a consumer again by its next heartbeat, and refuses it (code 24) till then.
HEARTBEAT_INTERVAL_MS = 1_000
# Errors that a producer's caller may see while the only broker is away.
REFUSALS = {
    "MQClientException",
    "MQBrokerException",
    "RemotingConnectException",
    "RemotingSendRequestException",
    "RemotingTimeoutException",
    "RemotingTooMuchRequestException",
}
T = TypeVar("T")


def insist(do: Callable[[], T]) -> T:
    """Tries again: a new client asks one name server, drawn by lot, and leaves the rest to its caller."""
    failures = []
    for _ in range(15):
        try:
            return do()
        except ClientError as failure:
            assert "connect to" in failure.message, failure
            failures.append(failure)
    raise failures[-1]


@each_once
@pytest.mark.parametrize("lost", [0, 1], ids=["first lost", "second lost"])
def test_name_server_is_lost(cluster: StartCluster, java_against: Against, lost: int) -> None:
    servers = cluster(nameservers=2)
    clients = java_against(servers)
    topic = clients.topic()
    producer, consumer = clients.producer(), clients.push_consumer(topic)
    producer.send(topic, numbered(20, "before"))
    wait_for_bodies([consumer], bodies(numbered(20, "before")))

    servers.nameservers[lost].kill()
    # A connected client does not notice.
    producer.send(topic, numbered(20, "after"))
    wait_for_bodies([consumer], bodies(numbered(20, "after")))
    # A new client finds its way through the other one, and so does a new topic.
    new_topic = insist(clients.topic)
    new_producer, new_consumer = clients.producer(), insist(lambda: clients.push_consumer(new_topic))
    insist(lambda: new_producer.send(new_topic, numbered(20)))
    found = wait_for_bodies([new_consumer], bodies(numbered(20)))
    assert sorted(bodies(found)) == sorted(bodies(numbered(20)))


@each_once
def test_topic_on_two_brokers(
    cluster: StartCluster, java_against: Against, java_kind: tuple[str, str]
) -> None:
    servers = cluster(brokers=("broker-a", "broker-b"))
    clients = java_against(servers)
    topic = clients.topic(queues=4)
    every_queue = {(broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in range(4)}
    sent = clients.producer().send(topic, numbered(160))
    assert {queue_of(result) for result in sent} == every_queue
    consumer = clients.push_consumer(topic, heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS)
    assert consumer.wait_for_assignment(topic, 8) == every_queue
    found = wait_for_bodies([consumer], bodies(numbered(160)))
    assert len(found) == 160

    # One broker dies without a word: sends go to the other.
    stream = clients.stream(topic, retries=3)
    stream.wait_for_acknowledged(100)
    servers.brokers["broker-b"].kill()
    killed_at = len(stream.acknowledged)
    stream.wait_for_acknowledged(killed_at + 200, RECOVERY_TIMEOUT_S)
    later = stream.acknowledged[killed_at + 50 :]
    assert {broker for broker, _ in map(queue_of, later)} == {"broker-a"}

    # It comes back with all that it had acknowledged, and gets messages again.
    servers.brokers["broker-b"].restart()
    clients.driver.wait_for(
        lambda _: any(m["broker"] == "broker-b" for m in stream.acknowledged[killed_at + 200 :]),
        RECOVERY_TIMEOUT_S,
        "a message acknowledged by the broker that came back",
    )
    stream.stop()
    assert {queue_of(m) for m in stream.acknowledged} == every_queue
    assert_nothing_lost(clients, topic, stream, consumer if gives_up_lost_pulls(java_kind) else None)


def assert_nothing_lost(clients: Clients, topic: str, stream: Stream, consumer: PushConsumer | None) -> None:
    """To the consumer that was there all the time, and to one that comes and begins at the beginning."""
    offsets = {(*queue_of(m), m["queue_offset"]) for m in stream.acknowledged}
    assert len(offsets) == len(stream.acknowledged), "two acknowledged messages have the same place"
    newcomer = clients.push_consumer(topic)
    for who in (newcomer, *([consumer] if consumer else [])):
        wait_for_bodies([who], bodies(stream.acknowledged), RECOVERY_TIMEOUT_S)


@each_once
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_broker_restarts_during_sends(
    cluster: StartCluster, java_against: Against, java_kind: tuple[str, str], how: str
) -> None:
    servers = cluster(flush="sync")
    clients = java_against(servers)
    topic = clients.topic()
    consumer = clients.push_consumer(topic, heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS)
    stream = clients.stream(topic, retries=3, timeout_ms=3000, route_interval_ms=1000)
    stream.wait_for_acknowledged(200)

    broker = servers.brokers["broker-a"]
    if how == "killed":
        broker.kill()
    else:
        broker.stop()
    before = len(stream.acknowledged)
    broker.restart()
    stream.wait_for_acknowledged(before + 200, RECOVERY_TIMEOUT_S)
    stream.stop()
    followed = how == "stopped" or gives_up_lost_pulls(java_kind)
    assert_nothing_lost(clients, topic, stream, consumer if followed else None)
    assert {refused["class"] for refused in stream.refused} <= REFUSALS
