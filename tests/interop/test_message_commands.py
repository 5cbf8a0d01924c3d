"""The message commands of `metaq` and of mqadmin print the same facts, on MetaQ's broker and on Apache's."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.interop.clients import Clients, unique
from tests.interop.kinds import newest_once
from tests.support.invoking import CommandLine
from tests.support.waiting import eventually, wait_until

pytestmark = newest_once


def mqadmin(java: Clients, *arguments: str) -> str:
    outcome = java.driver.call("mqadmin", arguments=[*arguments, "-n", java.cluster.namesrv])
    printed: str = outcome["printed"]
    return printed


def facts(printed: str) -> dict[str, str]:
    """Reads the fields that mqadmin prints of one message."""
    return dict(re.findall(r"(?m)^([A-Z][A-Za-z ]+?): +(\S.*?)\s*$", printed))


def test_a_message_has_the_same_fields(java: Clients) -> None:
    command = CommandLine(java.cluster.namesrv)
    topic = java.topic(queues=2)
    [sent] = java.producer().send(topic, [{"body": "seven", "keys": "order-7", "tags": "new"}])
    found = eventually(
        lambda: command.document("message", "find", topic, "--key", "order-7"),
        lambda found: len(found) == 1,
        60,
        "an index entry",
    )
    by_place = command.document("message", "get", sent["offset_id"])
    by_id = command.document("message", "get", sent["id"], "--topic", topic)
    assert by_place == by_id == {**found[0], "other_offset_ids": []}
    for printed in (
        mqadmin(java, "queryMsgById", "-t", topic, "-i", sent["offset_id"]),
        mqadmin(java, "queryMsgByUniqueKey", "-t", topic, "-i", sent["id"]),
    ):
        said = facts(printed)
        assert said["Topic"] == by_id["topic"]
        assert said["Tags"] == f"[{by_id['tag']}]"
        assert said["Keys"] == f"[{' '.join(by_id['keys'])}]"
        assert (int(said["Queue ID"]), int(said["Queue Offset"])) == (
            by_id["queue_id"],
            by_id["queue_offset"],
        )
        assert int(said["Reconsume Times"]) == by_id["reconsume_times"]
        assert said["Born Host"] == by_id["born_host"] and said["Store Host"] == by_id["store_host"]
        for name, value in by_id["properties"].items():
            # The tool's client adds properties of its own, and the broker shows its own only to some.
            if name not in ("MSG_REGION", "TRACE_ON"):
                assert f"{name}={value}" in printed
    by_key = mqadmin(java, "queryMsgByKey", "-t", topic, "-k", "order-7")
    assert by_id["id"] in by_key and re.search(rf"\b{by_id['queue_id']}\s+{by_id['queue_offset']}\b", by_key)


def lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_messages_of_java_are_consumed_given_up_and_sent_again(java: Clients) -> None:
    command = CommandLine(java.cluster.namesrv)
    topic, group = java.topic(queues=1), unique("G")
    java.producer().send(topic, [{"body": f"m{number}", "tags": "A"} for number in range(4)])
    consume = ("consume", topic, "--group", group, "-o", "json")
    assert [message["body"] for message in lines(command.printed(*consume, "--count", "2"))] == ["m0", "m1"]
    command.printed(*consume, "--count", "1", "--reject")
    [letter] = eventually(
        lambda: command.document("dlq", "list", group),
        lambda found: len(found) == 1,
        60,
        "one dead letter",
    )
    assert (letter["body"], letter["origin_topic"]) == ("m2", topic)
    resent = command.document("dlq", "resend", group)
    assert (resent["resent"], resent["failed"]) == (1, 0)
    again = lines(command.printed(*consume, "--count", "2"))
    assert {message["body"] for message in again} == {"m2", "m3"}
    assert f"%DLQ%{group}" in mqadmin(java, "topicList")


def test_java_gets_what_is_sent(java: Clients) -> None:
    command = CommandLine(java.cluster.namesrv)
    topic = java.topic(queues=2)
    command.printed("send", topic, "m%d", "--count", "50", "--tag", "A", "--property", "n=1")
    assert command.document("send", topic, "later", "--delay", "1s")["queue_id"] is None
    consumer = java.push_consumer(topic)
    consumer.wait_until_consumed(topic, 51)
    wait_until(lambda: len(command.printed("tail", topic, "--no-follow").splitlines()) == 51)
    tail = ("tail", topic, "--no-follow", "-f", r"%b\n")
    assert len(command.printed(*tail, "--sql", "n = 1").splitlines()) == 50
    assert command.printed(*tail, "--last", "1") == "later\n"
