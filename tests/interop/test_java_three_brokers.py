"""Three brokers, one of them lost: it delivers all that it had accepted when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.interop.clients import (
    Clients,
    Message,
    PushConsumer,
    Queue,
    bodies,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.interop.kinds import each_once, gives_up_lost_pulls
from tests.interop.test_java_order import assert_in_order, offsets_of
from tests.support.moved import MovedClock
from tests.support.servers import Cluster
from tests.support.waiting import eventually

BROKERS = ("broker-a", "broker-b", "broker-c")
QUEUES = 2
EVERY_QUEUE: set[Queue] = {(broker, queue_id) for broker in BROKERS for queue_id in range(QUEUES)}
RECOVERY_TIMEOUT_S = 120.0
HEARTBEAT_INTERVAL_MS = 1_000
COUNT = 24


def wait_for_halves(consumers: list[PushConsumer], topic: str) -> list[set[Queue]]:
    """Waits until two consumers share all queues. One may have its half before the other has left it."""

    def shares() -> list[set[Queue]]:
        return [consumer.wait_for_assignment(topic, len(EVERY_QUEUE) // 2) for consumer in consumers]

    return eventually(shares, lambda found: found[0] | found[1] == EVERY_QUEUE, 90, "both halves")


def made(kind: str, **more: object) -> list[Message]:
    return [{"body": f"{kind}-{number}", **more} for number in range(COUNT)]


@each_once
def test_one_of_three_brokers_is_lost(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients], java_kind: tuple[str, str]
) -> None:
    servers = cluster(brokers=BROKERS, moved=True, flush="sync")
    clients = java_against(servers)
    topic, group = clients.topic(queues=QUEUES), clients.retrying_group()
    often = {"heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS}
    sharing = [clients.push_consumer(topic, group=group, **often) for _ in range(2)]
    wait_for_halves(sharing, topic)
    in_order = unique("G")
    ordered = clients.push_consumer(topic, group=in_order, orderly=True, fails=False, **often)
    ordered.wait_for_assignment(topic, len(EVERY_QUEUE))
    waiting = send_what_waits(clients, topic, sharing)

    # One broker is lost: sends go to the others, and no acknowledged message is gone.
    stream = clients.stream(topic, retries=3, timeout_ms=3000)
    stream.wait_for_acknowledged(60)
    lost = servers.brokers["broker-b"]
    lost.kill()
    killed_at = len(stream.acknowledged)
    stream.wait_for_acknowledged(killed_at + 200, RECOVERY_TIMEOUT_S)
    assert {m["broker"] for m in stream.acknowledged[killed_at + 50 :]} == {"broker-a", "broker-c"}
    lost.restart()
    clients.driver.wait_for(
        lambda _: any(m["broker"] == "broker-b" for m in stream.acknowledged[killed_at + 200 :]),
        RECOVERY_TIMEOUT_S,
        "a message acknowledged by the broker that came back",
    )
    stream.stop()
    if not gives_up_lost_pulls(java_kind):
        # Others of the same groups take over: these would wait 30 s for an answer of the lost broker.
        for consumer in (*sharing, ordered):
            consumer.stop()
        sharing += [clients.push_consumer(topic, group=group, **often) for _ in range(2)]
        successor = clients.push_consumer(topic, group=in_order, orderly=True, fails=False, **often)
    else:
        successor = ordered

    # Now everything on the three brokers becomes due: retries, delays and transaction checks.
    wait_through(servers.clock, [ordered, successor], waiting)
    wait_through(servers.clock, sharing, waiting)
    for consumers in (sharing, [ordered, successor]):
        wait_for_bodies(consumers, bodies(stream.acknowledged), RECOVERY_TIMEOUT_S)
    eventually(
        lambda: {m["body"] for consumer in sharing for m in consumer.messages if m["reconsume_times"] == 1},
        lambda again: again == set(bodies(made("failing"))),
        RECOVERY_TIMEOUT_S,
        "everything that failed tried again",
    )
    consumed = ordered.messages if successor is ordered else ordered.messages + successor.messages
    for offsets in offsets_of(message for message in consumed if message["topic"] == topic).values():
        assert_in_order(offsets)
    seen = {m["body"] for consumer in (*sharing, ordered, successor) for m in consumer.messages}
    assert not seen & set(bodies(made("rollback") + made("undone")))


def wait_through(clock: MovedClock, consumers: list[PushConsumer], wanted: list[str]) -> None:
    """Waits until all of it came; a restarted broker asks producers when they are connected again."""

    def missing() -> set[str]:
        return set(wanted) - {m["body"] for consumer in consumers for m in consumer.messages}

    def ask() -> set[str]:
        clock.jump(31_000)
        time.sleep(0.4)
        return missing()

    eventually(ask, lambda left: not left, RECOVERY_TIMEOUT_S, "everything that waited")


def send_what_waits(clients: Clients, topic: str, consumers: list[PushConsumer]) -> list[str]:
    """Sends messages of every kind to every broker; returns the bodies that must arrive in the end."""
    producer, transactions = clients.producer(), clients.transaction_producer(heartbeat_interval_ms=1_000)
    delayed = producer.send(topic, made("delayed", delay_level=3))
    failing = producer.send(topic, made("failing", properties={"fails": "1"}))
    for name, local, checks in (
        ("commit", "commit", "unknown"),
        ("rollback", "rollback", "unknown"),
        ("done", "unknown", "commit"),
        ("undone", "unknown", "rollback"),
    ):
        transactions.send(topic, made(name, properties={"local": local, "checks": checks}))
    assert {queue_of(result) for result in delayed} == {queue_of(result) for result in failing} == EVERY_QUEUE
    wait_for_bodies(consumers, bodies(made("failing") + made("commit")))
    return bodies(made("delayed") + made("failing") + made("commit") + made("done"))
