"""Messages of the Java client for a given time, and their recall."""

from __future__ import annotations

import time

import pytest

from tests.interop.clients import Clients, Message, Producer, bodies, unique, wait_for_bodies
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once, java_id
from tests.support.servers import uses_apache

RECALLS = {"recall_messages": True}
WAIT_MS = 10_000
EARLY_MS = 1_000 if uses_apache() else 0
"""Apache rounds a time down to the second."""
with_timers = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json"), ("5.5.0", "binary")], ids=java_id, indirect=True, scope="session"
)


def timed(body: str, timing: str, moment: int) -> Message:
    return {"body": body, "tags": "t", "timing": timing, "time": moment}


def assert_not_early(found: list[Message], moments_ms: dict[str, int]) -> None:
    for message in found:
        assert message["store_timestamp_ms"] + EARLY_MS >= moments_ms[message["body"]], message
        # Apache does not remove them.
        assert uses_apache() or not {"REAL_TOPIC", "REAL_QID"} & set(message["properties"])


@with_timers
def test_messages_come_at_their_moment(java: Clients) -> None:
    topic = java.topic()
    consumer, producer = java.push_consumer(topic), java.producer()
    now_ms = int(time.time() * 1000)
    messages = [
        timed("seconds", "setDelayTimeSec", 2),
        timed("milliseconds", "setDelayTimeMs", 1_300),
        timed("moment", "setDeliverTimeMs", now_ms + 2_500),
        timed("past", "setDeliverTimeMs", now_ms - 1_000),
    ]
    sent = producer.call("send_timed", topic=topic, messages=messages)
    assert {result["status"] for result in sent} == {"SEND_OK"}
    found = wait_for_bodies([consumer], bodies(messages))
    assert sorted(bodies(found)) == sorted(bodies(messages))
    assert {message["body"]: message["id"] for message in found} == {
        message["body"]: result["id"] for message, result in zip(messages, sent, strict=True)
    }
    wanted = {"seconds": 2_000, "milliseconds": 1_300, "moment": 2_500, "past": 0}
    assert_not_early(found, {body: now_ms + delay_ms for body, delay_ms in wanted.items()})


@pytest.mark.parametrize(
    "java_kind", [("4.9.8", "json"), ("4.9.8", "binary")], ids=java_id, indirect=True, scope="session"
)
def test_an_old_client_names_the_moment_as_a_property(java: Clients) -> None:
    topic = java.topic()
    consumer = java.push_consumer(topic)
    now_ms = int(time.time() * 1000)
    message = {"body": "later", "properties": {"TIMER_DELAY_MS": "1500"}}
    java.producer().send(topic, [message])
    assert_not_early(wait_for_bodies([consumer], ["later"]), {"later": now_ms + 1_500})


@with_timers
def test_a_time_too_far_ahead_is_refused(java: Clients) -> None:
    topic = java.topic()
    producer = java.producer(retries=0)
    with pytest.raises(ClientError) as refused:
        producer.call("send_timed", topic=topic, messages=[timed("far", "setDelayTimeSec", 10**9)])
    assert refused.value.code == 13


@with_timers
def test_a_recalled_message_does_not_come(timed_java: Clients) -> None:
    topic = timed_java.topic(queues=1)
    consumer, producer = timed_java.push_consumer(topic), timed_java.producer()
    messages = [timed(f"m{number}", "setDelayTimeMs", WAIT_MS) for number in range(20)]
    sent = producer.call("send_timed", topic=topic, messages=messages)
    for result in sent[::2]:
        recalled = producer.call("recall", topic=topic, recall_handle=result["recall_handle"])
        assert recalled == result["id"]
    # Messages come in the order of their times: a recalled one would come before the last.
    producer.call("send_timed", topic=topic, messages=[timed("last", "setDelayTimeMs", WAIT_MS + 1_000)])
    timed_java.cluster.let_pass(WAIT_MS + 1_000)
    kept = [*bodies(messages[1::2]), "last"]
    assert sorted(bodies(wait_for_bodies([consumer], kept))) == sorted(kept)
    for handle, code in ((sent[1]["recall_handle"], 604), (sent[1]["recall_handle"][:-8], None)):
        with pytest.raises(ClientError) as refused:
            producer.call("recall", topic=topic, recall_handle=handle)
        assert code is None or refused.value.code == code


@each_once
def test_waiting_messages_and_recalls_survive_a_kill(timed_java: Clients, java_kind: tuple[str, str]) -> None:
    topic = timed_java.topic(queues=1)
    wanted = [f"m{number}" for number in range(20)]
    if java_kind[0].startswith("5."):
        recalled = [f"recalled-{number}" for number in range(10)]
        producer, sent = send_delayed(timed_java, java_kind, topic, [*wanted, *recalled])
        for result in sent[len(wanted) :]:
            producer.call("recall", topic=topic, recall_handle=result["recall_handle"])
    else:  # The old client cannot recall.
        send_delayed(timed_java, java_kind, topic, wanted)
    broker = timed_java.cluster.brokers["broker-a"]
    broker.kill()
    broker.restart()
    consumer = timed_java.push_consumer(topic, group=unique("G"))
    # Messages come in the order of their times: one that came again would come before the last.
    send_delayed(timed_java, java_kind, topic, ["last"])
    timed_java.cluster.let_pass(WAIT_MS)
    wanted.append("last")
    found = bodies(wait_for_bodies([consumer], wanted, 90))
    assert set(found) == set(wanted)
    # After a kill Apache's broker reads its waiting messages once more and delivers some of them twice.
    assert uses_apache() or sorted(found) == sorted(wanted), "each once: it was killed long before their time"


def send_delayed(
    timed_java: Clients, java_kind: tuple[str, str], topic: str, wanted: list[str]
) -> tuple[Producer, list[Message]]:
    """Sends messages that come after WAIT_MS, in the way that this release of the client has."""
    producer = timed_java.producer()
    if java_kind[0].startswith("5."):
        messages = [timed(body, "setDelayTimeMs", WAIT_MS) for body in wanted]
        return producer, producer.call("send_timed", topic=topic, messages=messages)
    messages = [{"body": body, "properties": {"TIMER_DELAY_MS": str(WAIT_MS)}} for body in wanted]
    return producer, producer.send(topic, messages)
