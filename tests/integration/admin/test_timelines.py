"""Timelines of messages of Python clients, on MetaQ's broker and on Apache's."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

import metaq
from metaq.admin import Admin, Timeline, TimelineEvent, aio, spans
from metaq.errors import NoRoute, NoSuchMessage, UsageError
from metaq.protocol.trace_entries import PubTrace, SubBeforeTrace, encode
from tests.integration.admin.conftest import Served
from tests.support.waiting import eventually

HOUR_S = 3600
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def fresh(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:8]}"


def new_topic(admin: Admin) -> str:
    topic = fresh("T")
    admin.topics.create(topic, queues=1)
    return topic


def kinds(timeline: Timeline) -> list[str]:
    return [event.kind for event in timeline.events]


def only(timeline: Timeline, kind: str) -> TimelineEvent:
    [event] = [event for event in timeline.events if event.kind == kind]
    return event


def complete(admin: Admin, message_id: str, topic: str, *wanted: str) -> Timeline:
    """Waits for these events: traces and retries come in the background."""

    def is_complete(found: Timeline) -> bool:
        ended = all(event.result for event in found.events if event.kind == "delivered")
        return ended and sorted(kinds(found)) == sorted(wanted)

    return eventually(
        lambda: admin.traces.timeline(message_id, topic),
        is_complete,
        90,
        f"a timeline of {wanted}",
        interval_s=0.1,
    )


def test_a_message_that_is_retried_and_dies(cluster: Served, admin: Admin) -> None:
    topic, group = new_topic(admin), fresh("G")
    admin.groups.create(group, retries_max=1)
    with metaq.Client(cluster.nameserver, trace_topic=True) as client:
        producer = client.producer("traced")
        producer.start()
        sent = producer.send(topic, b"broken", tag="T", keys=["k1"])

        def handle(message: metaq.Message) -> None:
            if message.reconsume_times == 0:
                raise metaq.Retry(after=1)
            raise ValueError("cannot be read")

        client.consumer(topic, group=group, start="earliest", retries_max=1)(handle)
        # The producer of the trace topic is the first to need it.
        wanted = ("born", "stored", "delivered", "returned", "retried", "delivered", "dead")
        found = complete(admin, sent.id, topic, *wanted)
        [first, second] = [event for event in found.events if event.kind == "delivered"]
        assert first.client_id == second.client_id
        assert first.client_id is not None and "@" in first.client_id
    assert (found.topic, found.tag, found.keys, found.type, found.body_bytes) == (
        *(topic, "T", ("k1",), "normal", 6),
    )
    born, stored, dead = only(found, "born"), only(found, "stored"), only(found, "dead")
    assert (born.group, born.result, born.source, born.offset_id) == (
        *("traced", "success", "trace", stored.offset_id),
    )
    assert (stored.queue, stored.queue_offset, stored.address) == (sent.queue, 0, cluster.broker)
    assert (first.group, first.retries, first.result) == (group, 0, "failed")
    assert (second.group, second.retries, second.result) == (group, 1, "exception")
    assert only(found, "retried").retries == 1
    assert (dead.group, dead.retries) == (group, 2)
    if cluster.is_metaq:
        assert dead.reason is not None and "cannot be read" in dead.reason
        assert dead.error_type == "ValueError"
    assert [(state.group, state.state) for state in found.groups] == [(group, "dead")]
    assert found.notes == ()

    [letter] = admin.dead_letters.resend(group)
    assert letter.message.id == sent.id
    resent = complete(admin, sent.id, topic, *wanted, "resent")
    assert [state.state for state in resent.groups] == ["retrying"]


def test_a_transaction_and_a_recalled_message(cluster: Served, admin: Admin) -> None:
    topic = new_topic(admin)
    with metaq.Client(cluster.nameserver, trace_topic=True) as client, client.producer("traced") as producer:
        producer.check(lambda message: True)
        with producer.transaction(topic, b"paid") as transaction:
            paid = transaction.id
        later = producer.send(topic, b"later", delay=HOUR_S)
        scheduled = complete(admin, later.id, topic, "born", "scheduled")
        producer.recall(topic, later.recall_handle)
    committed = complete(admin, paid, topic, "born", "committed", "stored")
    assert committed.type == "transaction"
    due_ms = only(scheduled, "scheduled").due_ms
    assert due_ms is not None and scheduled.events[0].at_ms is not None
    assert due_ms - scheduled.events[0].at_ms >= (HOUR_S - 1) * 1000
    recalled = complete(admin, later.id, topic, "born", "scheduled", "recalled")
    assert only(recalled, "recalled").source == "trace"
    assert (recalled.type, recalled.notes) == ("delay", ())


def test_groups_of_clients_that_do_not_trace(cluster: Served, admin: Admin) -> None:
    topic, done, behind, none = new_topic(admin), fresh("done"), fresh("behind"), fresh("none")
    with metaq.Client(cluster.nameserver) as client, client.producer("quiet") as producer:
        sent = producer.send(topic, b"x", properties={"traceparent": TRACEPARENT})
    for group in (done, behind):
        admin.groups.create(group)
    admin.offsets.commit(done, {sent.queue: 1})
    admin.offsets.commit(behind, {sent.queue: 0})
    found = eventually(
        lambda: admin.traces.timeline(sent.id, topic),
        lambda found: len(found.groups) == 2,
        60,
        "two groups",
        interval_s=0.1,
    )
    assert kinds(found) == ["born", "stored"]
    assert {event.source for event in found.events} == {"store"}
    states = {state.group: (state.state, state.committed_offset, state.members) for state in found.groups}
    assert states == {done: ("passed", 1, 0), behind: ("waiting", 0, 0)}
    assert none not in states
    [why] = [note for note in found.notes if note.startswith("there are no traces: ")]
    assert "recorded one" in why or "does not exist" in why
    assert found.traceparent == TRACEPARENT
    [resource] = [one for one in spans(found)["resourceSpans"] if "broker-a" in str(one["resource"])]
    [span] = resource["scopeSpans"][0]["spans"]
    assert (span["name"], span["traceId"]) == (f"store {topic}", TRACEPARENT.split("-")[1])


def test_a_message_that_nobody_knows(cluster: Served, admin: Admin) -> None:
    topic = new_topic(admin)
    with pytest.raises(NoSuchMessage, match="has no trace of a message with the id 00FF") as unknown:
        admin.traces.timeline("00FF")
    assert "name its topic" in unknown.value.hint
    with pytest.raises(NoSuchMessage, match=f"neither {topic} nor RMQ_SYS_TRACE_TOPIC has a message 00FF"):
        admin.traces.timeline("00FF", topic)
    with pytest.raises(NoRoute, match="topic nowhere does not exist"):
        admin.traces.timeline("00FF", "nowhere")
    with pytest.raises(UsageError, match="the id is empty"):
        admin.traces.timeline(" ")


def test_forged_traces_are_skipped_and_counted(cluster: Served, admin: Admin) -> None:
    topic, trace_topic = new_topic(admin), new_topic(admin)
    with metaq.Client(cluster.nameserver) as client, client.producer("forger") as producer:
        sent = producer.send(topic, b"x")
        for body in (b"\xff\x00\x02Pub\x01", b"Pub\x01now\x01" * 9, f"Recall\x011\x01{sent.id}\x02".encode()):
            producer.send(trace_topic, body, keys=[sent.id])
    found = eventually(
        lambda: admin.traces.timeline(sent.id, topic, trace_topic=trace_topic),
        lambda found: found.skipped_entries == 1,
        60,
        "all forged traces",
        interval_s=0.1,
    )
    assert kinds(found) == ["born", "stored"]
    assert "1 trace entries could not be read" in found.notes


def test_forged_names_are_not_asked_for(cluster: Served, admin: Admin) -> None:
    topic, trace_topic = new_topic(admin), new_topic(admin)
    with metaq.Client(cluster.nameserver) as client, client.producer("forger") as producer:
        sent = producer.send(topic, b"x")
        forged = [
            PubTrace(1, None, "p", "no topic\n", sent.id, None, None, None, 1, 1, 99, None, True),
            PubTrace(1, None, "p", "T_nowhere", sent.id, None, None, None, 1, 1, 99, None, True),
            *(SubBeforeTrace(n, None, f"G{n}", f"Q{n}", sent.id, 0, None) for n in range(120)),
            SubBeforeTrace(1, None, "x" * 999, "Q", sent.id, 0, None),
        ]
        producer.send(trace_topic, "".join(map(encode, forged)).encode(), keys=[sent.id])
    found = eventually(
        lambda: admin.traces.timeline(sent.id, topic, trace_topic=trace_topic),
        lambda found: len(found.events) == len(forged) + 1,
        60,
        "all forged traces",
        interval_s=0.1,
    )
    assert len(found.groups) == 100
    assert "the traces name 120 groups; 100 were looked at" in found.notes
    assert found.type is None
    led_astray = admin.traces.timeline(sent.id, trace_topic=trace_topic)
    assert led_astray.topic == "T_nowhere"
    [note] = [note for note in led_astray.notes if note.startswith("the topic that the trace names")]
    assert "T_nowhere does not exist" in note


def test_asyncio(cluster: Served, admin: Admin) -> None:
    topic = new_topic(admin)
    with metaq.Client(cluster.nameserver) as client, client.producer("quiet") as producer:
        sent = producer.send(topic, b"x")

    async def ask() -> Timeline:
        async with aio.Admin(cluster.nameserver, timeout=30) as asking:
            return await asking.traces.timeline(sent.id, topic)

    assert complete(admin, sent.id, topic, "born", "stored").events == asyncio.run(ask()).events
