"""Limits felt by unmodified Java clients: slower, and no errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.interop.clients import Clients, PushConsumer, bodies, numbered, unique, wait_for_bodies
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once, newest_once
from tests.interop.servers import Cluster, uses_apache
from tests.support.metaq import run

pytestmark = pytest.mark.skipif(uses_apache(), reason="Apache's brokers have no such limits")

RATE = 200
BURST = RATE // 10


def limit(clients: Clients, kind: str, name: str, rate: int | str, *more: str) -> None:
    """By the command, as an operator does it."""
    outcome = run(
        kind, "limit", name, "--messages-per-second", str(rate), *more, METAQ_NAMESRV=clients.cluster.namesrv
    )
    assert outcome.returncode == 0, outcome.stderr


def allowed(since_s: float, buckets: int = 1) -> float:
    """Returns how many may have passed since then, measured around everything, so never too few."""
    return RATE * (time.monotonic() - since_s) + buckets * BURST + 1


@each_once
def test_a_producer_over_the_limit_is_slowed_and_sees_no_error(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    limit(java, "topic", topic, RATE)
    for how in ("sync", "async"):
        since = time.monotonic()
        sent = producer.send(topic, numbered(150, how), how=how)
        assert allowed(since) >= 150, how
        assert {each["status"] for each in sent} == {"SEND_OK"}
    # A batch is never too large; what comes after it waits until it is paid for.
    since = time.monotonic()
    assert producer.send(topic, numbered(150, "batch"), how="batch")["status"] == "SEND_OK"
    assert producer.send(topic, numbered(1))[0]["status"] == "SEND_OK"
    assert allowed(since) >= 151
    limit(java, "topic", topic, "none")
    producer.send(topic, numbered(500, "free"), how="async")


@each_once
def test_a_sender_far_over_the_limit_is_told_why(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer()
    limit(java, "topic", topic, 1)
    # A hundred seconds' worth: those behind it wait too long, however slow the machine is.
    producer.send(topic, numbered(100), how="batch")
    with pytest.raises(ClientError) as raised:
        producer.send(topic, numbered(1))  # Which the client tries three times before it gives up.
    assert raised.value.broker_code == 2
    with pytest.raises(ClientError) as raised:
        producer.send(topic, [{"body": "x", "broker": "broker-a", "queue_id": 0}], how="queue")
    assert (raised.value.kind, raised.value.code) == ("MQBrokerException", 2)
    assert f"[FLOW] topic[{topic}] takes at most 1 messages a second" in raised.value.message


def shaved(clients: Clients, count: int) -> tuple[str, str, list[PushConsumer], float]:
    """Starts two consumers of a limited group with that many messages waiting."""
    topic, group = clients.topic(queues=4), unique("G")
    clients.producer().send(topic, numbered(count), how="async")
    limit(clients, "group", group, RATE, "--create")
    since = time.monotonic()
    return topic, group, [clients.push_consumer(topic, group=group) for _ in range(2)], since


@each_once
def test_a_group_is_served_at_its_rate(java: Clients) -> None:
    topic, group, consumers, since = shaved(java, 400)
    java.driver.wait_for(lambda _: any(consumer.messages for consumer in consumers), 90, "a message")
    wait_for_bodies(consumers, bodies(numbered(400)))
    received = [message for consumer in consumers for message in consumer.messages]
    assert len(received) <= allowed(since)

    limit(java, "group", group, "none")
    java.producer().send(topic, numbered(400, "free"), how="async")
    found = wait_for_bodies(consumers, bodies(numbered(400, "free")))
    seen = Counter(body for body in bodies(found) if body.startswith("free"))
    assert set(seen.values()) == {1}


@newest_once
def test_a_killed_broker_comes_back_with_the_limit(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    clients = java_against(cluster())
    _, _, consumers, since = shaved(clients, 300)

    def received() -> int:
        return sum(len(consumer.messages) for consumer in consumers)

    clients.driver.wait_for(lambda _: received() >= 100, 90, "the first hundred messages")
    assert received() <= allowed(since)
    broker = clients.cluster.brokers["broker-a"]
    broker.kill()
    broker.restart()
    found = wait_for_bodies(consumers, bodies(numbered(300)))
    # The restarted broker begins with a full bucket; what was not committed comes again and counts again.
    assert len(found) <= allowed(since, buckets=2)


@newest_once
def test_apaches_tool_sets_the_limits(java: Clients) -> None:
    topic, group = java.topic(), unique("G")
    address = java.cluster.brokers["broker-a"].address

    def mqadmin(line: str) -> str:
        outcome = java.driver.call("mqadmin", arguments=line.split())
        return f"{outcome['printed']}{outcome['complained']}"

    namesrv = java.cluster.namesrv
    mqadmin(f"updateTopic -t {topic} -b {address} -a +send.rate.messages=5,+send.rate.bytes=9 -n {namesrv}")
    mqadmin(f"updateSubGroup -g {group} -b {address} --attributes +consume.rate.messages=7 -n {namesrv}")
    shown = [
        run(kind, "limit", name, "-o", "json", METAQ_NAMESRV=namesrv).stdout
        for kind, name in (("topic", topic), ("group", group))
    ]
    assert '"messages_per_second": 5' in shown[0] and '"bytes_per_second": 9' in shown[0]
    assert '"messages_per_second": 7' in shown[1]
    refused = mqadmin(
        f"updateSubGroup -g {group} -b {address} --attributes +consume.rate.messages=0 -n {namesrv}"
    )
    assert "write 1 to 1000000000 messages per second" in refused
