"""A topic of two queues on each of three brokers: messages for them all, and questions about them all."""

from __future__ import annotations

import time

from tests.interop.clients import CONSUME_TIMEOUT_S, Clients, Message, Queue, queue_of
from tests.interop.driver import eventually
from tests.interop.test_java_three_brokers import EVERY_QUEUE, RECOVERY_TIMEOUT_S

OFTEN = {"heartbeat_interval_ms": 1_000, "route_interval_ms": 1_000}
"""For clients that live through the loss of a broker: they find it in moments, not in half a minute."""


def to_every_queue(messages: list[Message]) -> list[Message]:
    """Each message once for each queue, which its body names."""
    return [
        {**message, "body": f"{broker}-{queue_id}-{message['body']}", "broker": broker, "queue_id": queue_id}
        for broker, queue_id in sorted(EVERY_QUEUE)
        for message in messages
    ]


def crash(java: Clients, broker: str, topic: str) -> None:
    """Kills a broker and has it back, with the topic's route complete again."""
    java.cluster.brokers[broker].kill()
    java.cluster.brokers[broker].restart()
    java.wait_for_route(topic, RECOVERY_TIMEOUT_S)


def moment_between() -> int:
    """A moment in milliseconds: later than what is stored by now, and earlier than what will be."""
    moment_ms = int(time.time() * 1000) + 5
    time.sleep(0.02)
    return moment_ms


def everywhere(value: object) -> dict[Queue, object]:
    return dict.fromkeys(EVERY_QUEUE, value)


def mqadmin(java: Clients, line: str) -> str:
    outcome = java.driver.call("mqadmin", arguments=[*line.split(), "-n", java.cluster.namesrv])
    assert outcome["ended"] and outcome["complained"] == "", outcome
    printed: str = outcome["printed"]
    return printed


def progress(java: Clients, group: str, topic: str) -> dict[Queue, object]:
    """Returns the group's offset in each queue, and the queue's end."""
    told = java.admin.call("consume_stats", group=group)
    return {
        queue_of(queue): (queue["committed_offset"], queue["max_offset"])
        for queue in told
        if queue["topic"] == topic
    }


def wait_for_progress(java: Clients, group: str, topic: str, wanted: dict[Queue, object]) -> None:
    eventually(
        lambda: progress(java, group, topic), lambda found: found == wanted, CONSUME_TIMEOUT_S, f"at {wanted}"
    )


def reset(java: Clients, group: str, topic: str, timestamp_ms: int) -> dict[Queue, object]:
    told = java.admin.call("reset_offsets", group=group, topic=topic, timestamp_ms=timestamp_ms)
    return {queue_of(queue): queue["queue_offset"] for queue in told}
