"""Topics on three brokers: each broker does its share, and clients and tools see one topic."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interop import test_java_sql as sql
from tests.interop.clients import (
    Clients,
    Message,
    Producer,
    bodies,
    by_queue,
    numbered,
    queue_of,
    unique,
    wait_for_bodies,
)
from tests.interop.conftest import Tail, shown
from tests.interop.driver import ClientError, Driver
from tests.interop.kinds import each_once, gives_up_lost_pulls, newest_once
from tests.interop.spread import (
    OFTEN,
    crash,
    everywhere,
    mqadmin,
    progress,
    reset,
    to_every_queue,
    wait_for_progress,
)
from tests.interop.test_java_flow import BURST, RATE, limit
from tests.interop.test_java_functions import FUNCTIONS, WANTED, painted
from tests.interop.test_java_request import replier
from tests.interop.test_java_three_brokers import (
    BROKERS,
    EVERY_QUEUE,
    QUEUES,
    RECOVERY_TIMEOUT_S,
    wait_for_halves,
)
from tests.interop.test_java_timer import RECALLS, assert_not_early, timed
from tests.support.servers import Cluster, start_cluster, uses_apache
from tests.support.waiting import eventually, moment_between

pytestmark = pytest.mark.skipif(uses_apache(), reason="functions and limits are MetaQ's own")


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("three")
    functions = home / "functions"
    functions.mkdir()
    (functions / "shop.py").write_text(FUNCTIONS)
    servers = start_cluster(home, brokers=BROKERS, settings={"filter_functions": functions, **RECALLS})
    with shown(tails, servers):
        yield servers


@pytest.fixture
def java(java_driver: Driver, three: Cluster) -> Iterator[Clients]:
    clients = Clients(java_driver, three)
    yield clients
    clients.close()
    java_driver.forget_events()


@newest_once
def test_a_function_chooses_on_every_broker(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    producer = java.producer()
    before, then = (to_every_queue(painted(prefix)) for prefix in ("before", "then"))
    wanted = [m["body"] for m in (*before, *then) if m["body"].endswith(("-red", "-green"))]
    producer.send(topic, before, how="queue")
    consumers = [java.push_consumer(topic, group=group, sql=WANTED) for group in [unique("G")] * 2]
    wait_for_halves(consumers, topic)
    wait_for_bodies(consumers, [body for body in wanted if "-before-" in body])
    producer.send(topic, then, how="queue")  # By now the consumers wait at the ends of their queues.
    found = wait_for_bodies(consumers, wanted)
    assert set(bodies(found)) == set(wanted)
    assert {queue: len(messages) for queue, messages in by_queue(found).items()}.keys() == EVERY_QUEUE
    with pytest.raises(ClientError, match="no function is called longer: there are shorter"):
        java.push_consumer(topic, sql="function:longer(1)")


def allowed(since_s: float) -> float:
    """Returns how many messages one broker may have let pass since then."""
    return RATE * (time.monotonic() - since_s) + BURST + 1


@newest_once
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


@newest_once
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


@newest_once
def test_moments_and_recalls_on_every_broker_one_of_them_killed(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    often = {"heartbeat_interval_ms": 1_000}
    consumer, producer = java.push_consumer(topic, **often), java.producer(**often)
    consumer.wait_for_assignment(topic, len(EVERY_QUEUE))
    now_ms = int(time.time() * 1000)
    messages = [
        timed(f"{timing}-{number}", timing, moment)
        for number in range(12)
        for timing, moment in (("setDelayTimeMs", 10_000), ("setDeliverTimeMs", now_ms + 11_000))
    ]
    sent = producer.call("send_timed", topic=topic, messages=messages)
    places = [(result["broker"], result["queue_id"]) for result in sent]
    assert set(places) == EVERY_QUEUE
    # Keep four and recall four in turn: every broker has some of both.
    recalled = [number for number in range(len(sent)) if number // 4 % 2]
    for number in recalled:
        handle = sent[number]["recall_handle"]
        assert producer.call("recall", topic=topic, recall_handle=handle) == sent[number]["id"]
    kept = [message["body"] for number, message in enumerate(messages) if number not in recalled]
    assert {places[number][0] for number in recalled} == set(BROKERS)

    java.cluster.brokers["broker-b"].kill()
    java.cluster.brokers["broker-b"].restart()
    found = wait_for_bodies([consumer], kept, 90)
    last = producer.send(topic, to_every_queue([{"body": "last"}]), how="queue", failures="told")
    assert [each.get("error") for each in last] == [None] * len(EVERY_QUEUE)
    found = wait_for_bodies([consumer], bodies(to_every_queue([{"body": "last"}])))
    on_time = [message for message in found if message["body"] in kept]
    assert sorted(bodies(on_time)) == sorted(kept)
    assert len(found) == len(kept) + len(EVERY_QUEUE), bodies(found)
    waits_ms = {"setDelayTimeMs": 10_000, "setDeliverTimeMs": 11_000}
    assert_not_early(on_time, {body: now_ms + waits_ms[body.split("-")[0]] for body in kept})


@each_once
def test_offsets_of_stopped_groups_are_reset_on_every_broker(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    group, copied, skipping = (java.retrying_group() for _ in range(3))
    producer, reader = java.producer(), java.pull_consumer()
    before, after, last = (
        to_every_queue(numbered(count, part)) for count, part in ((3, "before"), (2, "after"), (1, "last"))
    )
    producer.send(topic, before, how="queue")
    moment_ms = moment_between()
    producer.send(topic, after, how="queue")
    for broker, queue_id in EVERY_QUEUE:
        queue = {"topic": topic, "broker": broker, "queue_id": queue_id}
        moments_ms = (0, moment_ms, moment_ms + 3_600_000)
        found = [reader.call("search_offset", **queue, timestamp_ms=moment) for moment in moments_ms]
        assert found == [0, 3, 5], queue
    consumer = java.push_consumer(topic, group=group)
    consumer.wait_until_consumed(topic, len(before) + len(after))
    consumer.stop()
    wait_for_progress(java, group, topic, everywhere((5, 5)))

    assert reset(java, group, topic, moment_ms) == everywhere(3)
    crash(java, "broker-b", topic)  # The broker keeps the offsets that it acknowledged.
    assert progress(java, group, topic) == everywhere((3, 5))
    spans = java.admin.call("time_spans", topic=topic, group=group)
    assert {queue_of(span) for span in spans} == EVERY_QUEUE
    for span in spans:
        assert span["first_ms"] <= span["consumed_ms"] < moment_ms <= span["last_ms"], span
        assert 0 < span["behind_ms"] <= time.time() * 1000 - moment_ms, span
    for other in (copied, skipping):
        java.admin.call("clone_offsets", group=group, to=other, topic=topic)
        assert progress(java, other, topic) == everywhere((3, 5))
    assert reset(java, skipping, topic, -1) == everywhere(5)
    assert {s["behind_ms"] for s in java.admin.call("time_spans", topic=topic, group=skipping)} == {0}

    java.producer().send(topic, last, how="queue")
    wanted = {group: after + last, copied: after + last, skipping: last}
    assert progress(java, skipping, topic) == everywhere((5, 6))
    consumers = {name: java.push_consumer(topic, group=name) for name in wanted}
    for name, messages in wanted.items():
        found = wait_for_bodies([consumers[name]], bodies(messages))
        assert Counter(bodies(found)) == Counter(bodies(messages)), name


def switch_server_side_reset(java: Clients, value: str) -> None:
    mqadmin(java, f"updateBrokerConfig -c DefaultCluster -k useServerSideResetOffset -v {value}")


@newest_once
def test_running_groups_are_reset_on_every_broker(java: Clients) -> None:
    """One group goes back by the answers to its pulls, the other by a notice of every broker (code 220)."""
    topic = java.topic(queues=QUEUES)
    # A client blocks a thread for ten seconds for each broker that sends it elsewhere.
    options = {"callback_threads": 8}
    answered, told = java.retrying_group(), java.retrying_group()
    groups = {
        group: [java.push_consumer(topic, group=group, **options) for _ in range(2)]
        for group in (answered, told)
    }
    for consumers in groups.values():
        wait_for_halves(consumers, topic)
    producer = java.producer()
    before, after = (to_every_queue(numbered(2, part)) for part in ("before", "after"))
    producer.send(topic, before, how="queue")
    moment_ms = moment_between()
    producer.send(topic, after, how="queue")
    for consumer in itertools.chain(*groups.values()):
        consumer.wait_until_consumed(topic, len(before + after) // 2)

    printed = mqadmin(java, f"resetOffsetByTime -g {answered} -t {topic} -s {moment_ms}")
    rows = re.findall(r"(?m)^(broker-\w) +(\d+) +(\d+) *$", printed)
    assert {(broker, int(queue_id)): int(place) for broker, queue_id, place in rows} == everywhere(2)
    switch_server_side_reset(java, "false")
    try:
        assert reset(java, told, topic, moment_ms) == everywhere(2)
    finally:
        switch_server_side_reset(java, "true")

    # The client waits ten seconds before it goes there.
    wanted = Counter(bodies(before + after + after))
    for group, consumers in groups.items():
        eventually(
            lambda consumers=consumers: Counter(m["body"] for c in consumers for m in c.messages),
            lambda found: found >= wanted,
            RECOVERY_TIMEOUT_S,
            f"again what came after the moment, by {group}",
        )
    statistics = rf"(?m)^{topic} +{told} +0 +\S+ +\S+ +{len(before) + len(after)} "
    eventually(
        lambda: mqadmin(java, f"statsAll -t {topic}"),
        lambda printed: re.search(statistics, printed) is not None,
        90,
        "all that the three brokers got in the statistics",
    )
    # A last message shows that nothing else is under way.
    last = to_every_queue([{"body": "last"}])
    producer.send(topic, last, how="queue")
    for group, consumers in groups.items():
        found = wait_for_bodies(consumers, bodies(last))
        assert Counter(bodies(found)) == wanted + Counter(bodies(last)), group
        wait_for_progress(java, group, topic, everywhere((5, 5)))


@each_once
def test_messages_are_found_on_whichever_broker_has_them(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    early, late = (
        [{**message, "keys": f"all {message['body']}"} for message in to_every_queue(numbered(2, part))]
        for part in ("early", "late")
    )
    begin_ms = moment_between()
    sent = java.producer().send(topic, early, how="queue")
    crash(java, "broker-c", topic)
    moment_ms = moment_between()
    producer = java.producer()
    sent += producer.send(topic, late, how="queue")
    end_ms = moment_between()

    def with_key(key: str, begin: int = begin_ms, end: int = end_ms) -> list[str]:
        try:
            found = producer.call("query", topic=topic, key=key, begin_ms=begin, end_ms=end)
        except ClientError as none:
            assert none.code == 208, none
            return []
        return sorted(bodies(found))

    # The index is built a moment after the log.
    every_body = sorted(bodies(early + late))
    eventually(lambda: with_key("all"), lambda found: found == every_body, 90, "in the index of every broker")
    assert with_key("all", end=moment_ms) == sorted(bodies(early))
    assert with_key("all", begin=moment_ms) == sorted(bodies(late))
    assert with_key("all", begin=end_ms, end=end_ms + 60_000) == with_key("nobody") == []
    for message, result in zip(early + late, sent, strict=True):
        assert with_key(message["body"]) == [message["body"]]
        stored_at = f"/{java.cluster.brokers[message['broker']].address}"
        for message_id in (result["id"], result["offset_id"]):
            found = producer.call("view", topic=topic, message_id=message_id)
            assert (found["body"], found["store_host"]) == (message["body"], stored_at)
            assert (found["queue_id"], found["queue_offset"]) == (message["queue_id"], result["queue_offset"])


@newest_once
def test_tools_see_what_runs_on_every_broker(java: Clients) -> None:
    topic, group, producers = java.topic(queues=QUEUES), java.retrying_group(), unique("P")
    consumers = [java.push_consumer(topic, group=group) for _ in range(2)]
    shares = wait_for_halves(consumers, topic)
    producer = java.producer(group=producers, **OFTEN)
    begin, then = (to_every_queue(numbered(2, part)) for part in ("begin", "then"))
    sent = producer.send(topic, begin, how="queue")
    moment_ms = moment_between()
    producer.send(topic, then, how="queue")
    wait_for_bodies(consumers, bodies(begin + then))
    wait_for_progress(java, group, topic, everywhere((4, 4)))

    assert java.admin.call("topic_groups", topic=topic) == [group]
    printed = mqadmin(java, f"consumerProgress -g {group}")
    rows = re.findall(rf"(?m)^{topic} +(broker-\w) +(\d+) +4 +4 +0 ", printed)
    assert {(broker, int(queue_id)) for broker, queue_id in rows} == EVERY_QUEUE
    for name, broker in java.cluster.brokers.items():
        connected = mqadmin(java, f"consumerConnection -g {group} -b {broker.address}")
        assert all(str(consumer.client_id) in connected for consumer in consumers), connected
        behind = mqadmin(java, f"brokerConsumeStats -b {broker.address}")
        rows = re.findall(rf"(?m)^{topic} +{group} +(\S+) +(\d+) +4 +4 +0 ", behind)
        assert sorted(rows) == [(name, str(queue_id)) for queue_id in range(QUEUES)]
        eventually(
            lambda broker=broker: mqadmin(java, f"producer -b {broker.address}"),
            lambda printed: f"producer group ({producers}) instance" in printed,
            90,
            f"the producer known to {name}",
        )
    for consumer, share in zip(consumers, shares, strict=True):
        status = mqadmin(java, f"consumerStatus -g {group} -i {consumer.client_id} -s")
        assert "#Consumer jstack#" in status
        held = re.findall(rf"(?m)^{topic} +(broker-\w) +(\d+) ", status)
        assert {(broker, int(queue_id)) for broker, queue_id in held} == share
    printed = mqadmin(java, f"printMsg -t {topic} -b {moment_ms} -d true")
    assert sorted(re.findall(r"BODY: (\S+)", printed)) == sorted(bodies(then))
    # The tool has a message consumed again, by the consumer that it names.
    one_of_each = {message["broker"]: (message, result) for message, result in zip(begin, sent, strict=True)}
    assert one_of_each.keys() == set(BROKERS)
    for (message, result), consumer in zip(one_of_each.values(), itertools.cycle(consumers), strict=False):
        line = f"queryMsgById -t {topic} -i {result['offset_id']} -g {group} -d {consumer.client_id}"
        seen = bodies(consumer.messages).count(message["body"])
        assert "consumeResult=CR_SUCCESS" in mqadmin(java, line)
        assert bodies(consumer.messages).count(message["body"]) == seen + 1


@newest_once
def test_a_priority_chooses_the_queue_of_every_broker(java: Clients) -> None:
    topic = java.topic(queues=3)
    messages = [
        {"body": f"{broker}-{priority}", "priority": priority, "broker": broker, "queue_id": queue_id}
        for broker in BROKERS
        for priority in (0, 1, 2, 3, 1_000)
        for queue_id in range(3)
    ]
    producer = java.producer()
    assert {each["status"] for each in producer.send(topic, messages, how="queue")} == {"SEND_OK"}
    producer.send(topic, [{"body": "any-1", "priority": 1}] * 30)
    crash(java, "broker-a", topic)
    stored = java.pull_consumer().read_all(topic)
    assert Counter(bodies(stored)) == Counter([*bodies(messages), *["any-1"] * 30])
    for message in stored:
        broker, _, priority = message["body"].rpartition("-")
        assert message["queue_id"] == min(int(priority), 2), message
        assert message["broker"] == broker or broker == "any", message
    assert {m["broker"] for m in stored if m["body"] == "any-1"} == set(BROKERS)


def ask_everywhere(java: Clients, producer: Producer, topic: str, part: str, *, patient: bool) -> None:
    """Asks until every broker has passed on a question and a reply; a patient one ignores lost requests."""
    reader, deadline = java.pull_consumer(), time.monotonic() + RECOVERY_TIMEOUT_S
    earlier, timeout_ms = len(java.driver.events("replied")), 3_000 if patient else 20_000
    for number in itertools.count():
        question = f"{part}-{number}"
        try:
            reply = producer.call("request", topic=topic, body=question, timeout_ms=timeout_ms)
            assert reply["body"] == f"re:{question}"
        except ClientError:
            if not patient:
                raise
            time.sleep(0.1)
        asked = {m["broker"] for m in reader.read_all(topic) if m["body"].startswith(part)}
        replied = {told["broker"] for told in java.driver.events("replied")[earlier:]}
        if asked == replied == set(BROKERS):
            return
        assert time.monotonic() < deadline, (part, number, asked, replied)


@each_once
def test_requests_and_replies_use_every_broker(java: Clients, java_kind: tuple[str, str]) -> None:
    topic, group = java.topic(queues=QUEUES), unique("R")
    producer, answering = java.producer(**OFTEN), replier(java, topic, group=group, **OFTEN)
    ask_everywhere(java, producer, topic, "first", patient=False)
    crash(java, "broker-b", topic)
    if not gives_up_lost_pulls(java_kind):
        answering.stop()
        answering = replier(java, topic, group=group, **OFTEN)
    ask_everywhere(java, producer, topic, "then", patient=True)
    # Every stored question was answered, although the requester may have given up.
    questions = len(java.pull_consumer().read_all(topic))
    eventually(
        lambda: len(java.driver.events("replied") + java.driver.events("unreplied")),
        lambda heard: heard >= questions,
        RECOVERY_TIMEOUT_S,
        f"{questions} questions heard",
    )
    answering.stop_soon()


@each_once
def test_batches_stay_whole_on_every_broker(java: Clients) -> None:
    topic = java.topic(queues=QUEUES)
    producer = java.producer(retries=5, **OFTEN)
    sent: list[tuple[Message, list[Message]]] = []

    def send(part: str, brokers: set[str]) -> None:
        """Sends batches until each of these brokers has got one; no other broker may get any."""
        used: set[str] = set()
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while used != brokers or len(sent) % 10:
            batch = numbered(5, f"{part}-{len(sent)}")
            result = producer.send(topic, batch, how="batch")
            assert result["status"] == "SEND_OK"
            sent.append((result, batch))
            used.add(result["broker"])
            assert used <= brokers
            assert time.monotonic() < deadline, used
            time.sleep(0.01)

    lost = java.cluster.brokers["broker-b"]
    send("before", set(BROKERS))
    lost.kill()
    send("meanwhile", {"broker-a", "broker-c"})
    lost.restart()
    java.wait_for_route(topic, RECOVERY_TIMEOUT_S)
    send("after", set(BROKERS))

    consumer = java.push_consumer(topic)
    wait_for_bodies([consumer], [body for _, batch in sent for body in bodies(batch)])
    stored = {message["id"]: message for message in java.pull_consumer().read_all(topic)}
    assert len(stored) == sum(len(batch) for _, batch in sent)
    for result, batch in sent:
        found = [stored[one] for one in result["id"].split(",")]
        assert bodies(found) == bodies(batch)
        assert {queue_of(message) for message in found} == {queue_of(result)}
        first: int = result["queue_offset"]
        assert [message["queue_offset"] for message in found] == list(range(first, first + len(batch)))


@newest_once
def test_an_expression_chooses_on_every_broker_one_of_them_killed(java: Clients) -> None:
    topic, group = java.topic(queues=QUEUES), unique("G")
    before, then = (to_every_queue(sql.painted(9, part)) for part in ("before", "then"))
    wanted = {
        part: [
            f"{broker}-{queue_id}-{body}" for broker, queue_id in EVERY_QUEUE for body in sql.wanted(9, part)
        ]
        for part in ("before", "then")
    }
    last = to_every_queue([{"body": "last", "properties": {"note": "x"}}])
    java.producer().send(topic, before, how="queue")
    consumers = [java.push_consumer(topic, group=group, sql=sql.WANTED, **OFTEN) for _ in range(2)]
    wait_for_bodies(consumers, wanted["before"])
    crash(java, "broker-b", topic)
    java.producer().send(topic, then, how="queue")
    wait_for_bodies(consumers, wanted["then"], RECOVERY_TIMEOUT_S)
    java.producer().send(topic, last, how="queue")
    found = wait_for_bodies(consumers, bodies(last), RECOVERY_TIMEOUT_S)
    # Messages whose offsets the killed broker had not received may come again.
    assert set(bodies(found)) == {*wanted["before"], *wanted["then"], *bodies(last)}
