"""The Java client's transactions: committed, rolled back, asked for, and all of it across a lost broker."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.clients import Clients, Message, TransactionProducer, bodies, wait_for_bodies
from tests.interop.driver import eventually
from tests.interop.kinds import each_once
from tests.interop.servers import Cluster

COMMIT = 8
TRANSACTION_BITS = 12
# Quick, so that a test need not wait for minutes; the order of things is the same.
QUICK_CHECKS = {
    "transaction_timeout_ms": 1_000,
    "transaction_check_interval_s": 1,
    "transaction_check_max": 5,
}
CHECK_TIMEOUT_S = 90.0
TOO_OFTEN = "TRANS_CHECK_MAX_TIME_TOPIC"


def halves(count: int, local: str, checks: str = "commit", **properties: str) -> list[Message]:
    return [
        {
            "body": f"{local}-{checks}-{number}",
            "tags": "t",
            "keys": f"k{number}",
            "properties": {"local": local, "checks": checks, **properties},
        }
        for number in range(count)
    ]


def test_committed_messages_arrive_and_others_do_not(java: Clients) -> None:
    topic = java.topic(queues=4)
    producer = java.transaction_producer()
    consumer = java.push_consumer(topic)
    committed = producer.send(topic, halves(20, "commit"))
    producer.send(topic, halves(20, "rollback"))
    producer.send(topic, halves(20, "unknown"))
    assert {result["status"] for result in committed} == {"SEND_OK"}
    found = wait_for_bodies([consumer], bodies(halves(20, "commit")))
    assert sorted(bodies(found)) == sorted(bodies(halves(20, "commit")))
    assert {message["id"] for message in found} == {result["id"] for result in committed}
    assert {message["system_flag"] & TRANSACTION_BITS for message in found} == {COMMIT}
    assert {message["tags"] for message in found} == {"t"}
    assert {message["queue_id"] for message in found} == {0, 1, 2, 3}


@each_once
def test_the_producer_is_asked_until_it_knows(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    clients = java_against(cluster(settings=QUICK_CHECKS))
    topic = clients.topic()
    producer, consumer = clients.transaction_producer(), clients.push_consumer(topic)
    at_once = producer.send(topic, halves(5, "unknown", "commit"))
    producer.send(topic, halves(5, "unknown", "unknown,unknown,commit"))
    producer.send(topic, halves(5, "unknown", "unknown,rollback"))
    wanted = bodies(halves(5, "unknown", "commit") + halves(5, "unknown", "unknown,unknown,commit"))
    found = wait_for_bodies([consumer], wanted, CHECK_TIMEOUT_S)
    assert sorted(bodies(found)) == sorted(wanted)
    by_body = checks_of(producer)
    assert {len(by_body[body]) for body in bodies(halves(5, "unknown", "commit"))} == {1}
    assert {len(by_body[body]) for body in bodies(halves(5, "unknown", "unknown,unknown,commit"))} == {3}
    eventually(
        lambda: sum(len(asked) for body, asked in checks_of(producer).items() if "rollback" in body),
        lambda count: count == 10,
        CHECK_TIMEOUT_S,
        "asked twice for each that is rolled back",
    )
    (asked,) = by_body[at_once_body := "unknown-commit-0"]
    assert (asked["topic"], asked["keys"], asked["body"]) == (topic, "k0", at_once_body)
    assert asked["transaction_id"] == at_once[0]["id"]


@each_once
def test_what_nobody_knows_is_parked(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    clients = java_against(cluster(settings=QUICK_CHECKS))
    topic = clients.topic()
    producer = clients.transaction_producer()
    producer.send(topic, halves(1, "unknown", "unknown"))
    producer.send(topic, halves(1, "unknown", "commit", CHECK_IMMUNITY_TIME_IN_SECONDS="3600"))
    parked = eventually(
        lambda: clients.pull_consumer().read_all(TOO_OFTEN),
        bool,
        CHECK_TIMEOUT_S,
        "parked",
    )
    assert bodies(parked) == ["unknown-unknown-0"]
    assert parked[0]["properties"]["REAL_TOPIC"] == topic
    assert {body: len(asked) for body, asked in checks_of(producer).items()} == {"unknown-unknown-0": 5}
    assert clients.pull_consumer().read_all(topic) == []

    # An operator reopens it, and it is checked again from the first time on; any other message is refused.
    assert clients.admin.call("resume_half", topic=TOO_OFTEN, message_id=parked[0]["offset_id"]) is True
    asked_again = eventually(
        lambda: checks_of(producer)["unknown-unknown-0"][5:], bool, CHECK_TIMEOUT_S, "asked for once more"
    )
    assert asked_again[0]["properties"]["TRANSACTION_CHECK_TIMES"] == "1"
    ordinary = clients.producer().send(topic, [{"body": "ordinary"}])[0]
    assert clients.admin.call("resume_half", topic=topic, message_id=ordinary["offset_id"]) is False


@each_once
def test_a_killed_broker_knows_its_open_transactions(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    servers = cluster(settings=QUICK_CHECKS | {"transaction_timeout_ms": 8_000}, flush="sync")
    clients = java_against(servers)
    topic = clients.topic()
    producer = clients.transaction_producer(heartbeat_interval_ms=1_000)
    consumer = clients.push_consumer(topic, heartbeat_interval_ms=1_000)
    producer.send(topic, halves(20, "commit"))
    wait_for_bodies([consumer], bodies(halves(20, "commit")))
    producer.send(topic, halves(20, "unknown", "commit"))
    producer.send(topic, halves(20, "unknown", "rollback"))

    servers.brokers["broker-a"].kill()
    servers.brokers["broker-a"].restart()
    wanted = bodies(halves(20, "commit") + halves(20, "unknown", "commit"))
    # A newcomer: a 4.x consumer that the killed broker owes an answer waits 30 s for it.
    newcomer = clients.push_consumer(topic, heartbeat_interval_ms=1_000)
    wait_for_bodies([newcomer], wanted, 60.0)
    producer.send(topic, halves(1, "commit", "again"))
    wait_for_bodies([newcomer], ["commit-again-0"], 60.0)
    stored = bodies(clients.pull_consumer().read_all(topic))
    assert sorted(stored) == sorted([*wanted, "commit-again-0"])


def checks_of(producer: TransactionProducer) -> dict[str, list[Message]]:
    """The checks that it received so far, by body."""
    found: dict[str, list[Message]] = {}
    for asked in producer.checks:
        found.setdefault(asked["body"], []).append(asked)
    return found
