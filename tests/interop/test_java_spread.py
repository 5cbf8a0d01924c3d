"""Topics spread over three brokers: filter functions, limits and moments are each broker's own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interop.clients import Clients, Message, bodies, by_queue, numbered, unique, wait_for_bodies
from tests.interop.conftest import Tail
from tests.interop.driver import ClientError, Driver
from tests.interop.kinds import java_id
from tests.interop.servers import Cluster, start_cluster, uses_apache
from tests.interop.test_java_flow import BURST, RATE, limit
from tests.interop.test_java_functions import FUNCTIONS, WANTED, painted
from tests.interop.test_java_three_brokers import BROKERS, EVERY_QUEUE, QUEUES
from tests.interop.test_java_timer import RECALLS, assert_not_early, timed

pytestmark = [
    pytest.mark.parametrize("java_kind", [("5.5.0", "json")], ids=java_id, indirect=True, scope="session"),
    pytest.mark.skipif(uses_apache(), reason="functions and limits are MetaQ's own"),
]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("three")
    functions = home / "functions"
    functions.mkdir()
    (functions / "shop.py").write_text(FUNCTIONS)
    servers = start_cluster(home, brokers=BROKERS, settings={"filter_functions": functions, **RECALLS})
    tails.append(servers.tail)
    yield servers
    servers.close()
    tails.remove(servers.tail)


@pytest.fixture
def java(java_driver: Driver, three: Cluster) -> Iterator[Clients]:
    clients = Clients(java_driver, three)
    yield clients
    clients.close()
    java_driver.forget_events()


def to_every_queue(messages: list[Message]) -> list[Message]:
    """Each message once for each queue, which its body names."""
    return [
        {**message, "body": f"{broker}-{queue_id}-{message['body']}", "broker": broker, "queue_id": queue_id}
        for broker, queue_id in sorted(EVERY_QUEUE)
        for message in messages
    ]


def test_a_function_chooses_on_every_broker(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    producer = java.producer()
    before, then = (to_every_queue(painted(prefix)) for prefix in ("before", "then"))
    wanted = [m["body"] for m in (*before, *then) if m["body"].endswith(("-red", "-green"))]
    producer.send(topic, before, how="queue")
    consumers = [java.push_consumer(topic, group=group, sql=WANTED) for group in [unique("G")] * 2]
    shares = [consumer.wait_for_assignment(topic, len(EVERY_QUEUE) // 2) for consumer in consumers]
    assert shares[0] | shares[1] == EVERY_QUEUE
    wait_for_bodies(consumers, [body for body in wanted if "-before-" in body])
    producer.send(topic, then, how="queue")  # The consumers wait at the ends of their queues by now.
    found = wait_for_bodies(consumers, wanted)
    assert set(bodies(found)) == set(wanted)
    assert {queue: len(messages) for queue, messages in by_queue(found).items()}.keys() == EVERY_QUEUE
    with pytest.raises(ClientError, match="no function is called longer: there are shorter"):
        java.push_consumer(topic, sql="function:longer(1)")


def allowed(since_s: float) -> float:
    """What one broker may have let pass since then."""
    return RATE * (time.monotonic() - since_s) + BURST + 1


def test_each_broker_slows_its_share_of_a_topic(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    producer = java.producer()
    limit(java, "topic", topic, RATE)
    for how in ("sync", "async"):
        since = time.monotonic()
        sent = producer.send(topic, numbered(450, how), how=how)
        of_one = allowed(since)
        assert {each["status"] for each in sent} == {"SEND_OK"}
        counts = Counter(each["broker"] for each in sent)
        assert counts.keys() == set(BROKERS)
        assert max(counts.values()) <= of_one, (how, counts)


def test_each_broker_serves_a_group_at_its_rate(java: Clients) -> None:
    topic, group = java.topic(queues=QUEUES), unique("G")
    java.producer().send(topic, numbered(900), how="async")
    limit(java, "group", group, RATE, "--create")
    since = time.monotonic()
    consumers = [java.push_consumer(topic, group=group) for _ in range(2)]
    found = wait_for_bodies(consumers, bodies(numbered(900)))
    of_one = allowed(since)
    counts = Counter(message["broker"] for message in found)
    assert counts.keys() == set(BROKERS)
    assert max(counts.values()) <= of_one, counts

    limit(java, "group", group, "none")
    java.producer().send(topic, numbered(300, "free"), how="async")
    wait_for_bodies(consumers, bodies(numbered(300, "free")))


def test_moments_and_recalls_on_every_broker_one_of_them_killed(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    often = {"heartbeat_interval_ms": 1_000}
    consumer, producer = java.push_consumer(topic, **often), java.producer(**often)
    consumer.wait_for_assignment(topic, len(EVERY_QUEUE))
    now_ms = int(time.time() * 1000)
    messages = [
        timed(f"{timing}-{number}", timing, moment)
        for number in range(12)
        for timing, moment in (("setDelayTimeMs", 6_000), ("setDeliverTimeMs", now_ms + 7_000))
    ]
    sent = producer.call("send_timed", topic=topic, messages=messages)
    places = [(result["broker"], result["queue_id"]) for result in sent]
    assert set(places) == EVERY_QUEUE
    # Four in a row are kept and four recalled, which leaves some of both on every broker.
    recalled = [number for number in range(len(sent)) if number // 4 % 2]
    for number in recalled:
        handle = sent[number]["recall_handle"]
        assert producer.call("recall", topic=topic, recall_handle=handle) == sent[number]["id"]
    kept = [message["body"] for number, message in enumerate(messages) if number not in recalled]
    assert {places[number][0] for number in recalled} == set(BROKERS)

    java.cluster.brokers["broker-b"].kill()
    java.cluster.brokers["broker-b"].restart()
    found = wait_for_bodies([consumer], kept, 60)
    last = producer.send(topic, to_every_queue([{"body": "last"}]), how="queue", failures="told")
    assert [each.get("error") for each in last] == [None] * len(EVERY_QUEUE)
    found = wait_for_bodies([consumer], bodies(to_every_queue([{"body": "last"}])))
    on_time = [message for message in found if message["body"] in kept]
    assert sorted(bodies(on_time)) == sorted(kept)
    assert len(found) == len(kept) + len(EVERY_QUEUE), bodies(found)
    waits_ms = {"setDelayTimeMs": 6_000, "setDeliverTimeMs": 7_000}
    assert_not_early(on_time, {body: now_ms + waits_ms[body.split("-")[0]] for body in kept})
