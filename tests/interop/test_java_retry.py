"""Retries of the Java client: delays, limits, dead letters, order, broadcast, and a lost broker."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from metaq.settings import DELAY_LEVELS_MS
from tests.interop.clients import (
    CONSUME_TIMEOUT_S,
    Clients,
    Message,
    PushConsumer,
    bodies,
    unique,
    wait_for_bodies,
)
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once
from tests.support.metaq import run
from tests.support.waiting import eventually

LADDER_MS = DELAY_LEVELS_MS[2:]
# Each try is looked for this long before its time: nothing may come yet.
EARLY_MS = 500


class Deliveries:
    """Shows that the broker has delivered all delayed messages that are due."""

    def __init__(self, clients: Clients) -> None:
        self._clock = clients.cluster.clock
        self._topic, self._producer = clients.topic(queues=1), clients.producer()
        self._consumer = clients.push_consumer(self._topic)
        self._count = 0

    def wait_for_one(self) -> None:
        """Returns after the delivery of a message with the shortest delay; the clock moves by that."""
        self._count += 1
        body = f"probe-{self._count}"
        self._producer.send(self._topic, [{"body": body, "delay_level": 1}])
        self._clock.jump(DELAY_LEVELS_MS[0])
        wait_for_bodies([self._consumer], [body])


def failing(body: str, times: int, **more: object) -> Message:
    """Returns a message at which its listener fails that many times."""
    return {"body": body, "properties": {"fails": str(times)}, **more}


def tries(consumer: PushConsumer, body: str) -> list[Message]:
    return [message for message in consumer.messages if message["body"] == body]


def wait_for_try(consumer: PushConsumer, body: str, number: int) -> Message:
    """Returns the message as it came after that many failures."""

    def came(_: object = None) -> list[Message]:
        return [message for message in tries(consumer, body) if message["reconsume_times"] == number]

    consumer.driver.wait_for(lambda events: bool(came(events)), CONSUME_TIMEOUT_S, f"try {number} of {body}")
    return came()[0]


def dead_letters(clients: Clients, group: str, count: int) -> list[Message]:
    """Returns that many dead letters, once they are there; the first one creates the topic."""
    reader = clients.pull_consumer()

    def read() -> list[Message]:
        try:
            return reader.read_all(f"%DLQ%{group}")
        except ClientError as unknown:
            assert "Can not find Message Queue" in unknown.message, unknown
            return []

    return eventually(
        read,
        lambda found: len(found) >= count,
        CONSUME_TIMEOUT_S,
        f"{count} dead letters of {group}",
    )


@each_once
def test_a_message_climbs_the_ladder_and_ends_with_the_dead_letters(moved_java: Clients) -> None:
    topic, group = moved_java.topic(queues=1), moved_java.retrying_group()
    producer, consumer = moved_java.producer(), moved_java.push_consumer(topic, group=group)
    clock, deliveries = moved_java.cluster.clock, Deliveries(moved_java)
    producer.send(topic, [failing("poison", 99, keys="k1", tags="t"), failing("twice", 2), {"body": "fine"}])
    wait_for_bodies([consumer], ["poison", "twice", "fine"])
    consumer.wait_until_consumed(topic, 3)
    for number, level_ms in enumerate(LADDER_MS, 1):
        clock.jump(level_ms - EARLY_MS - DELAY_LEVELS_MS[0])
        deliveries.wait_for_one()
        clock.jump(EARLY_MS)
        wait_for_try(consumer, "poison", number)
        # The listener has returned, so the message waits again.
        consumer.wait_until_consumed(f"%RETRY%{group}", number + min(number, 2))

    climbed = tries(consumer, "poison")
    assert [message["reconsume_times"] for message in climbed] == list(range(17))
    assert [message["reconsume_times"] for message in tries(consumer, "twice")] == [0, 1, 2]
    assert len(tries(consumer, "fine")) == 1
    for level_ms, (before, after) in zip(LADDER_MS, pairwise(climbed), strict=True):
        assert after["store_timestamp_ms"] - before["store_timestamp_ms"] >= level_ms
    assert {(m["topic"], m["id"], m["keys"], m["tags"]) for m in climbed} == {
        (topic, climbed[0]["id"], "k1", "t")
    }
    assert {m["properties"]["ORIGIN_MESSAGE_ID"] for m in climbed[1:]} == {climbed[0]["offset_id"]}

    (dead,) = dead_letters(moved_java, group, 1)
    assert (dead["body"], dead["keys"], dead["id"]) == ("poison", "k1", climbed[0]["id"])

    def with_key() -> list[str]:
        asked = {"topic": f"%DLQ%{group}", "key": "k1", "begin_ms": 0, "end_ms": clock.now_ms() + 60_000}
        try:
            return [message["offset_id"] for message in producer.call("query", **asked)]
        except ClientError as none:
            assert none.code == 208, none
            return []

    # The index is built a moment after the log.
    eventually(with_key, lambda found: found == [dead["offset_id"]], CONSUME_TIMEOUT_S, "in the index")
    assert producer.call("view", topic=f"%DLQ%{group}", message_id=dead["offset_id"])["body"] == "poison"
    assert_resent(moved_java, consumer, topic, group)


def assert_resent(clients: Clients, consumer: PushConsumer, topic: str, group: str) -> None:
    """A dead letter that an operator resends reaches the group's consumers once, as if for the first time."""
    consumer.stop()
    successor = clients.push_consumer(topic, group=group, fails=False)
    listed = run("dlq", "list", group, "-o", "json", METAQ_NAMESRV=clients.cluster.namesrv)
    assert [letter["origin_topic"] for letter in json.loads(listed.stdout)] == [topic], listed.stderr
    resent = run("dlq", "resend", group, METAQ_NAMESRV=clients.cluster.namesrv)
    assert resent.returncode == 0, resent.stderr
    (again,) = wait_for_bodies([successor], ["poison"])
    assert (again["topic"], again["reconsume_times"], again["keys"]) == (topic, 0, "k1")


@each_once
def test_who_limits_the_retries(moved_java: Clients) -> None:
    topic, clock = moved_java.topic(queues=1), moved_java.cluster.clock
    limited, hasty, grouped = (moved_java.retrying_group() for _ in range(3))
    gives_up, without = unique("G"), unique("G")
    two_tries = moved_java.push_consumer(topic, group=limited, tries_max=2)
    impatient = moved_java.push_consumer(topic, group=hasty, retry_level=1, tries_max=1)
    not_at_all = moved_java.push_consumer(topic, group=gives_up, retry_level=-1)
    # A group's own limit is for consumers that send none, and a Java consumer always sends one.
    set_group(moved_java, grouped, tries_max=1)
    of_group = moved_java.push_consumer(topic, group=grouped)
    set_group(moved_java, without, retry_queues=0)
    never = moved_java.push_consumer(topic, group=without)
    everyone = moved_java.push_consumer(topic, model="BROADCASTING")
    moved_java.producer().send(topic, [failing("x", 99)])
    consumers = (two_tries, impatient, not_at_all, of_group, never, everyone)
    for consumer in consumers:
        wait_for_bodies([consumer], ["x"])
        consumer.wait_until_consumed(topic, 1)
    assert len(dead_letters(moved_java, gives_up, 1)) == 1

    clock.jump(1_000)
    wait_for_try(impatient, "x", 1)
    assert len(dead_letters(moved_java, hasty, 1)) == 1
    clock.jump(10_000)
    wait_for_try(two_tries, "x", 1)
    wait_for_try(of_group, "x", 1)
    two_tries.wait_until_consumed(f"%RETRY%{limited}", 1)
    of_group.wait_until_consumed(f"%RETRY%{grouped}", 1)
    clock.jump(30_000)
    wait_for_try(two_tries, "x", 2)
    wait_for_try(of_group, "x", 2)
    assert [letter["reconsume_times"] for letter in dead_letters(moved_java, limited, 1)] == [3]
    clock.jump(LADDER_MS[-1])
    Deliveries(moved_java).wait_for_one()
    moved_java.producer().send(topic, [{"body": "last"}])
    for consumer in consumers:
        wait_for_bodies([consumer], ["last"])
    counts = [len(tries(consumer, "x")) for consumer in consumers]
    assert counts[:3] == [3, 2, 1]
    assert counts[4:] == [1, 1], "a group without retry queues and a broadcast consumer never try again"


def set_group(clients: Clients, group: str, **settings: int) -> None:
    address = clients.cluster.brokers["broker-a"].address
    clients.admin.call("set_group", group=group, address=address, **settings)


@each_once
def test_an_orderly_consumer_tries_again_by_itself(java: Clients) -> None:
    topic, group = java.topic(queues=1), unique("G")
    java.producer().send(topic, [{"body": "first"}, failing("twice", 2), {"body": "then"}])
    patient = java.push_consumer(topic, orderly=True, suspend_ms=50)
    wait_for_bodies([patient], ["then"])
    assert [(m["body"], m["reconsume_times"]) for m in patient.messages] == [
        ("first", 0),
        ("twice", 0),
        ("twice", 1),
        ("twice", 2),
        ("then", 0),
    ]
    # One that may try only once more sends the message to the dead letters, and the queue goes on.
    limited = java.push_consumer(topic, group=group, orderly=True, suspend_ms=50, tries_max=1)
    wait_for_bodies([limited], ["then"])
    assert bodies(limited.messages) == ["first", "twice", "twice", "then"]
    (dead,) = dead_letters(java, group, 1)
    assert (dead["body"], dead["properties"]["RETRY_TOPIC"]) == ("twice", topic)


@each_once
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_pending_retries_survive_the_broker(moved_java: Clients, how: str) -> None:
    servers, broker = moved_java.cluster, moved_java.cluster.brokers["broker-a"]
    topic, group = moved_java.topic(queues=2), moved_java.retrying_group()
    wanted = [f"m{number}" for number in range(20)]
    moved_java.producer().send(topic, [failing(body, 2) for body in wanted])
    seen: list[Message] = []
    for number, level_ms in enumerate([0, *LADDER_MS[:2]]):
        servers.clock.jump(level_ms)
        consumer = moved_java.push_consumer(topic, group=group)
        for body in wanted:
            wait_for_try(consumer, body, number)
        # The listener has returned, so all of them wait at the broker.
        if number < 2:
            consumer.wait_until_consumed(*((f"%RETRY%{group}", 20) if number else (topic, 20)))
            consumer.stop()
            (broker.kill if how == "killed" else broker.stop)()
            broker.restart()
        seen += consumer.messages
    # A stopped broker repeats nothing. A killed one may repeat what it delivered moments ago.
    found = sorted((message["body"], message["reconsume_times"]) for message in seen)
    once = sorted((body, number) for body in wanted for number in range(3))
    assert (found if how == "stopped" else sorted(set(found))) == once
