"""Traces of Java clients, joined into timelines and compared with mqadmin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from metaq.admin import Admin, Timeline, TimelineEvent
from tests.interop.clients import Client, Clients, Producer, PushConsumer, unique
from tests.interop.kinds import each_once, newest_once
from tests.support.waiting import eventually


@pytest.fixture
def admin(java: Clients) -> Iterator[Admin]:
    with Admin(java.cluster.namesrv, timeout=30) as admin:
        yield admin


def send_one(producer: Producer, topic: str, **message: object) -> str:
    [sent] = producer.send(topic, [{"body": "x", **message}])
    return str(sent["id"])


def kinds(timeline: Timeline) -> list[str]:
    return [event.kind for event in timeline.events]


def of_kind(timeline: Timeline, kind: str) -> list[TimelineEvent]:
    return [event for event in timeline.events if event.kind == kind]


def traced(admin: Admin, topic: str, message_id: str, *wanted: str) -> Timeline:
    """Waits until the trace has these events: clients write traces in the background."""
    complete = sorted(wanted)
    found = eventually(
        lambda: admin.traces.timeline(message_id, topic),
        lambda found: sorted(kinds(found)) == complete and is_traced(found),
        90,
        f"a timeline of {wanted}",
        interval_s=0.2,
    )
    assert admin.traces.timeline(message_id).events == found.events, "the trace names the topic"
    return found


def is_traced(timeline: Timeline) -> bool:
    deliveries = of_kind(timeline, "delivered")
    return timeline.events[0].source == "trace" and all(event.result for event in deliveries)


def stop(*clients: Client) -> None:
    """Stops traced clients and waits. The clients of one process share a connection for traces, which the
    last one closes. The next test must not find it half closed."""
    for client in clients:
        client.stop()


def wait_for(consumer: PushConsumer, count: int) -> None:
    consumer.driver.wait_for(lambda _: len(consumer.messages) >= count, 90, f"{count} deliveries")


@each_once
def test_a_message_that_is_consumed_and_one_that_dies(
    java: Clients, admin: Admin, java_kind: tuple[str, str]
) -> None:
    topic, group = java.topic(queues=1), java.retrying_group()
    producer = java.producer(trace=True, group="traced_producers")
    good = send_one(producer, topic, keys="k1", tags="T")
    bad = send_one(producer, topic, properties={"fails": "9"})
    admin.groups.create(group, retries_max=1)
    consumer = java.push_consumer(topic, group=group, trace=True, tries_max=1, retry_level=1)
    wait_for(consumer, 3)

    found = traced(admin, topic, good, "born", "stored", "delivered")
    assert (found.topic, found.tag, found.keys, found.type) == (topic, "T", ("k1",), "normal")
    born, stored, delivered = found.events
    assert (born.group, born.result, born.source) == ("traced_producers", "success", "trace")
    assert stored.queue is not None
    assert (stored.queue.broker, stored.queue.id, stored.queue_offset) == ("broker-a", 0, 0)
    assert (delivered.group, delivered.result, delivered.retries) == (group, "success", 0)
    assert delivered.address is not None and delivered.address.startswith("127.0.0.1:")
    assert delivered.duration_ms is not None
    [state] = found.groups
    assert (state.group, state.state, state.members) == (group, "consumed", 1)

    died = traced(
        admin, topic, bad, "born", "stored", "delivered", "returned", "retried", "delivered", "dead"
    )
    first, second = of_kind(died, "delivered")
    assert (first.retries, first.result, second.retries, second.result) == (0, "failed", 1, "failed")
    [dead] = of_kind(died, "dead")
    assert (dead.group, dead.retries) == (group, 2)
    assert [state.state for state in died.groups] == ["dead"]
    if java_kind[0] == "5.5.0":
        compare_with_mqadmin(java, found)
        compare_with_mqadmin(java, died)
    stop(producer, consumer)


def compare_with_mqadmin(java: Clients, timeline: Timeline) -> None:
    """mqadmin 5.5.0 prints the same facts of the same trace."""
    line = f"queryMsgTraceById -i {timeline.id} -n {java.cluster.namesrv}"
    printed = str(java.driver.call("mqadmin", arguments=line.split())["printed"])
    rows = re.findall(
        r"(?m)^(Pub|Sub) +(\S+) +(\S+) +(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) +(\d+)ms +(success|failed)", printed
    )
    sends = [row for row in rows if row[0] == "Pub"]
    receives = [row for row in rows if row[0] == "Sub"]
    assert [row[1:] for row in sends] == [facts(event) for event in of_kind(timeline, "born")], printed
    ours = [facts(event) for event in of_kind(timeline, "delivered")]
    # It prints the end of a delivery, to the second; and its rows are in no order.
    assert sorted((row[1], row[2], row[4], row[5]) for row in receives) == sorted(
        (fact[0], fact[1], fact[3], fact[4]) for fact in ours
    ), printed


def facts(event: TimelineEvent) -> tuple[str, str, str, str, str]:
    assert event.at_ms is not None and event.address is not None
    at = datetime.fromtimestamp(event.at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    host = event.address.rpartition(":")[0]
    result = "success" if event.result == "success" else "failed"
    return event.group or "", host, at, str(event.duration_ms), result


@each_once
def test_transactions(java: Clients, admin: Admin) -> None:
    topic = java.topic(queues=1)
    producer = java.transaction_producer(trace=True)
    sent = producer.send(
        topic,
        [
            {"body": "paid", "properties": {"local": "commit"}},
            {"body": "not paid", "properties": {"local": "rollback"}},
        ],
    )
    paid, unpaid = (one["id"] for one in sent)
    found = traced(admin, topic, paid, "born", "committed", "stored")
    assert found.type == "transaction"
    [stored] = of_kind(found, "stored")
    assert stored.queue is not None and stored.queue.topic == topic
    rolled_back = traced(admin, topic, unpaid, "born", "rolled-back")
    assert (rolled_back.groups, rolled_back.notes) == ((), ())
    stop(producer)


@newest_once
def test_consumers_that_do_not_trace(java: Clients, admin: Admin) -> None:
    topic, group = java.topic(queues=1), unique("G")
    message_id = send_one(java.producer(), topic)
    wait_for(java.push_consumer(topic, group=group), 1)
    found = eventually(
        lambda: admin.traces.timeline(message_id, topic),
        lambda found: [state.state for state in found.groups] == ["passed"],
        90,
        "a committed offset",
        interval_s=0.2,
    )
    assert kinds(found) == ["born", "stored"]
    assert {event.source for event in found.events} == {"store"}
    assert [state.group for state in found.groups] == [group]
    [note] = found.notes
    assert note.startswith("there are no traces: ")


@newest_once
def test_mqadmin_agrees_on_who_has_consumed(java: Clients, admin: Admin) -> None:
    topic, group, tagged = java.topic(queues=1), unique("G"), unique("G")
    message_id = send_one(java.producer(), topic, tags="A")
    wait_for(java.push_consumer(topic, group=group), 1)
    java.push_consumer(topic, group=tagged, expression="B || C")
    found = eventually(
        lambda: admin.traces.timeline(message_id, topic),
        lambda found: (
            {state.group: state.state for state in found.groups} == {group: "passed", tagged: "filtered"}
        ),
        90,
        "offsets past the message",
        interval_s=0.2,
    )
    offset_id = of_kind(found, "stored")[0].offset_id
    line = f"queryMsgById -t {topic} -i {offset_id} -n {java.cluster.namesrv}"
    printed = str(java.driver.call("mqadmin", arguments=line.split())["printed"])
    assert re.search(rf"{group}.*trackType=CONSUMED\b", printed), printed
    assert re.search(rf"{tagged}.*trackType=CONSUMED_BUT_FILTERED", printed), printed
