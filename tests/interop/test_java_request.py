"""Requests that wait for a reply, from one client through the broker to another."""

from __future__ import annotations

import pytest

from tests.interop.clients import Client, Clients, unique
from tests.interop.driver import ClientError


def replier(java: Clients, topic: str, **options: object) -> Client:
    arguments = {"namesrv": java.cluster.namesrv, "group": unique("R"), "topic": topic, **options}
    return Client(java.driver, "replier", arguments)


def test_a_request_gets_its_reply(java: Clients) -> None:
    topic = java.topic(queues=2)
    answering = replier(java, topic)
    producer = java.producer()
    for number in range(5):
        reply = producer.call("request", topic=topic, body=f"question-{number}")
        assert reply["body"] == f"re:question-{number}"
        assert reply["properties"]["MSG_TYPE"] == "reply"
        assert int(reply["properties"]["PUSH_REPLY_TIME"]) > 0
    java.driver.wait_for(
        lambda _: len(java.driver.events("replied", answering.handle)) == 5, 60, "five replies acknowledged"
    )
    replied = java.driver.events("replied", answering.handle)
    assert {sent["status"] for sent in replied} == {"SEND_OK"}
    assert {sent["topic"] for sent in replied} == {"DefaultCluster_REPLY_TOPIC"}
    answering.stop_soon()


def test_two_requesters_get_their_own_replies(java: Clients) -> None:
    topic = java.topic(queues=2)
    answering = replier(java, topic)
    producers = [java.producer(), java.producer()]
    for number in range(4):
        body = f"question-{number}"
        assert producers[number % 2].call("request", topic=topic, body=body)["body"] == f"re:{body}"
    answering.stop_soon()


def test_a_request_without_a_reply_times_out(java: Clients) -> None:
    topic = java.topic(queues=1)
    with pytest.raises(ClientError) as raised:
        java.producer().call("request", topic=topic, body="anybody?", timeout_ms=1_000)
    assert raised.value.kind == "RequestTimeoutException"
