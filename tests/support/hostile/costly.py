"""Clients that ask for much work: filters, look-ups, questions to other clients, names without end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from metaq.protocol.handling import peer_log
from tests.support.hostile.target import (
    KIB,
    LINGER_S,
    Deceived,
    Target,
    answers,
    filled,
    json_body,
    pour,
    pull_frame,
    refuse_all,
    send_batch,
)
from tests.support.plain_client import (
    QUERY_MESSAGE,
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    frame,
    send,
    send_fields,
)

SUBSCRIPTION_PARSE_FAILED = 23
HEART_BEAT, CHECK_CLIENT_CONFIG, GET_CONSUMER_RUNNING_INFO = 34, 46, 307
GET_PRODUCER_CONNECTIONS, DELETE_GROUP, DELETE_TOPIC = 204, 207, 215
FILTERED_TOPIC, KEYED_TOPIC = "hostile_filtered", "hostile_keyed"
PROPERTY_BYTES = 31 * KIB
KEYS_PER_BATCH = 3_000
HOUR_MS = 3_600_000
_serial = itertools.count()


def filter_much(target: Target) -> None:
    """Pulls with new SQL92 expressions of hundreds of searches over 34 MB of properties."""

    def fill(missing: int) -> None:
        for _ in range(missing):
            send(client, FILTERED_TOPIC, 0, b"x", f"p\x01{'v' * PROPERTY_BYTES}\x02")

    with target.connect() as client:
        filled(client, FILTERED_TOPIC, target.count(1_100, 200), fill)
        for searches in (800, 120):
            expressions = [_searches(searches) for _ in range(4)]
            frames = (
                pull_frame(FILTERED_TOPIC, expression=one, expression_type="SQL92") for one in expressions
            )
            codes = answers(client, frames)
            if searches == 800 and set(codes) != {SUBSCRIPTION_PARSE_FAILED}:
                raise Deceived(f"an expression with {searches} searches was answered with {dict(codes)}")


def check_expressions(target: Target) -> None:
    """300 different expressions of 16 KB are checked, and four heartbeats bring 4 MB of tags each."""

    def check(number: int) -> bytes:
        long = " OR ".join(f"p = '{number}-{term}'" for term in range(900))
        subscription = {"topic": FILTERED_TOPIC, "subString": long, "expressionType": "SQL92"}
        body = {"clientId": "hostile", "group": "hostile", "subscriptionData": subscription}
        return frame(CHECK_CLIENT_CONFIG, {}, json_body(body))

    with target.connect() as client:
        answers(client, (check(next(_serial)) for _ in range(target.count(300))))
        for group in range(4):
            refuse_all(answers(client, [_heartbeat("hostile", f"h{group}", 4_000_000)]), "4 MB of tags")


def query_in_vain(target: Target) -> None:
    """Queries by a key that 300,000 messages have, in a time in which none of them came."""
    with target.connect() as client:

        def fill(missing: int) -> None:
            for first in range(0, missing, KEYS_PER_BATCH):
                count = min(KEYS_PER_BATCH, missing - first)
                send_batch(client, KEYED_TOPIC, count, b"x", b"KEYS\x01common\x02")

        filled(client, KEYED_TOPIC, target.count(300_000, KEYS_PER_BATCH), fill)
        now_ms = int(time.time() * 1000)
        query = frame(
            QUERY_MESSAGE,
            {
                "topic": KEYED_TOPIC,
                "key": "common",
                "maxNum": "32",
                "beginTimestamp": str(now_ms - 100 * HOUR_MS),
                "endTimestamp": str(now_ms - 99 * HOUR_MS),
            },
        )
        answers(client, itertools.repeat(query, 8))


def ask_the_mute(target: Target) -> None:
    """Tools ask a consumer 1,200 times, through the broker, and it never answers."""
    client_id = f"mute-{os.getpid()}-{next(_serial)}"
    with target.connect() as consumer, target.connect() as tool:
        refused = consumer.call(HEART_BEAT, {}, _heartbeat_body(client_id, "hostile_mute", 0))
        if refused.code != SUCCESS:
            raise RuntimeError(f"heartbeat: {refused.code} {refused.remark}")
        fields = {"consumerGroup": "hostile_mute", "clientId": client_id}
        pour(tool, frame(GET_CONSUMER_RUNNING_INFO, fields) * target.count(1_200))
        # The first answer is a refusal: by then, as many questions as may wait do so.
        tool.socket.settimeout(1.0)
        with suppress(TimeoutError):
            tool.read_reply()


def change_identity(target: Target) -> None:
    """One connection sends heartbeats with 200,000 client ids, each in a group of its own."""

    groups = [f"p-{os.getpid()}-{next(_serial)}" for _ in range(target.count(200_000))]

    def beats() -> Iterator[bytes]:
        for group in groups:
            data = {"clientID": f"one-{group}", "producerDataSet": [{"groupName": group}]}
            yield frame(HEART_BEAT, {}, json_body(data))

    with target.connect() as client:
        answers(client, beats())
        asked = (frame(GET_PRODUCER_CONNECTIONS, {"producerGroup": group}) for group in groups[:100])
        refuse_all(answers(client, asked), "a client that another one has replaced is remembered")


def large_heartbeats(target: Target) -> None:
    """50 heartbeats of 4 MB in different groups, then as many clients with as much as one may have."""
    with target.connect() as client:
        for number in range(target.count(50)):
            refuse_all(answers(client, [_heartbeat("hostile", f"big{number}", 4_000_000)]), "4 MB of tags")
    clients: list[PlainClient] = []
    try:
        for number in range(target.count(100)):
            clients.append(target.connect())
            clients[-1].write(_heartbeat(f"large-{os.getpid()}-{number}", f"large{number % 8}", 250_000))
        for client in clients:
            client.read_reply()
    finally:
        for client in clients:
            client.socket.close()


def new_names(target: Target) -> None:
    """12,000 topics by their first message and 12,000 groups by their first pull; all are deleted again."""
    count = target.count(12_000)
    first = next(_serial) * count
    topics = [f"hostile_t_{os.getpid()}_{first + number}" for number in range(count)]
    groups = [f"hostile_g_{os.getpid()}_{first + number}" for number in range(count)]
    with target.connect() as client:
        answers(client, (frame(SEND_MESSAGE_V2, send_fields(topic, 0), b"x") for topic in topics))
        answers(client, (pull_frame("TBW102", group=group) for group in groups))
        forget(client, topics, groups)


def forget(client: PlainClient, topics: list[str], groups: list[str]) -> None:
    """Deletes topics and groups, as an operator does after a flood of them."""
    answers(client, (frame(DELETE_TOPIC, {"topic": topic}) for topic in topics))
    fields = [{"groupName": group, "cleanOffset": "true"} for group in groups]
    answers(client, (frame(DELETE_GROUP, one) for one in fields))


def _searches(count: int) -> str:
    """An expression that nobody sent before and that no message matches."""
    number = next(_serial)
    return " OR ".join(f"p CONTAINS 'n{os.getpid()}{number}-{term}'" for term in range(count))


def _heartbeat(client_id: str, group: str, tag_bytes: int) -> bytes:
    return frame(HEART_BEAT, {}, _heartbeat_body(client_id, group, tag_bytes))


def _heartbeat_body(client_id: str, group: str, tag_bytes: int) -> bytes:
    tags = [f"tag-{number:06}" for number in range(tag_bytes // 14)]
    subscription = {"topic": "hostile", "subString": "*", "tagsSet": tags, "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json_body({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []})


def flood_logs(target: Target) -> None:
    """Requests and bytes that make no sense, each of which once wrote more into the log than it had bytes."""
    before, began = target.log.stat().st_size, time.monotonic()
    count = target.count(5_000)
    for _ in range(count):
        with target.connect() as client:
            pour(client, b"\xff" * 8)
            client.closed_by_server(LINGER_S)
    with target.connect() as client, target.ask_names() as names:
        bad = frame(HEART_BEAT, {}, b"{nonsense")
        answers(client, itertools.repeat(bad, count))
        answers(names, itertools.repeat(frame(103, {"brokerName": "x"}), count))
    written = target.log.stat().st_size - before
    # The limits of the log are per span of time, and other attacks may run beside this one.
    spans = 1 + (time.monotonic() - began) / peer_log.INTERVAL_S
    if written > 20 * KIB * spans + 40 * count:
        raise Deceived(f"{3 * count} bad requests wrote {written} bytes into the log in {spans:.1f} spans")
