"""Messages that are all due at one moment: their cost while they wait, and the speed of their delivery."""

from __future__ import annotations

import json
import time

from bench.process_figures import memory_bytes
from bench.servers import BrokerUnderTest
from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    create_topic,
    frame,
    queue_end,
    send_fields,
)

TOPIC = "delay"
QUEUES = 8
BODY = b"x" * 128
ONEWAY = 2
GET_BROKER_RUNTIME_INFO = 28
WINDOW = 1_000
"""Messages in one write. The messages of a queue are equal, so they are encoded once."""
SENT_PER_S_MIN = 25_000
DRAIN_TIMEOUT_S = 300
POLL_S = 0.02


def measure(server: BrokerUnderTest, count: int) -> dict[str, float]:
    """Sends `count` messages for one moment, looks at the broker just before it, and waits until all came."""
    with PlainClient(server.broker) as client:
        if create_topic(client, TOPIC, QUEUES).code != SUCCESS:
            raise RuntimeError(f"{server.name}: topic {TOPIC} was not created")
        before = _delivered(client)
        due_ms = int(time.time() * 1000) + 3_000 + count * 1000 // SENT_PER_S_MIN
        began = time.monotonic()
        _send(client, count, due_ms)
        while (pending := _pending(client)) < count:
            if time.time() * 1000 > due_ms:
                raise RuntimeError(f"only {pending} of {count} messages were sent before their moment")
            time.sleep(POLL_S)
        sent_per_second = count / (time.monotonic() - began)
        memory = memory_bytes(server.pid)
        time.sleep(max(0.0, due_ms / 1000 - time.time()))
        first_ms = _wait_for(client, before + 1, due_ms)
        last_ms = _wait_for(client, before + count, due_ms)
        return {
            "due_per_second": count / (last_ms / 1000),
            "first_late_ms": first_ms,
            "sent_per_second": sent_per_second,
            "waiting_own_bytes": memory["own"],
            "waiting_resident_bytes": memory["resident"],
            "delivered_own_bytes": memory_bytes(server.pid)["own"],
        }


def _send(client: PlainClient, count: int, due_ms: int) -> None:
    properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02"
    messages = [
        frame(SEND_MESSAGE_V2, send_fields(TOPIC, number % QUEUES, properties), BODY, flag=ONEWAY)
        for number in range(WINDOW)
    ]
    whole, rest = divmod(count, WINDOW)
    everything = b"".join(messages)
    for _ in range(whole):
        client.write(everything)
    client.write(b"".join(messages[:rest]))


def _pending(client: PlainClient) -> int:
    reply = client.call(GET_BROKER_RUNTIME_INFO, {})
    return int(json.loads(reply.body)["table"]["timerCongestNum"])


def _delivered(client: PlainClient) -> int:
    return sum(queue_end(client, TOPIC, queue_id) for queue_id in range(QUEUES))


def _wait_for(client: PlainClient, count: int, due_ms: int) -> float:
    """Returns how many milliseconds after the due time that number of messages had arrived."""
    while _delivered(client) < count:
        if time.time() > due_ms / 1000 + DRAIN_TIMEOUT_S:
            raise RuntimeError(f"{_delivered(client)} of {count} messages came in {DRAIN_TIMEOUT_S} s")
        time.sleep(POLL_S)
    return max(time.time() * 1000 - due_ms, 1.0)
