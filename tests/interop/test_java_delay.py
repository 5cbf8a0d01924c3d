"""The Java client's delay levels, each at its time, with a broker that is stopped and killed."""

from __future__ import annotations

import time
from collections import Counter

from metaq.settings import DELAY_LEVELS_MS
from tests.interop.clients import Clients, Message, unique, wait_for_bodies
from tests.interop.kinds import each_once
from tests.support.waiting import eventually

LEVELS = len(DELAY_LEVELS_MS)
# The last level before the broker is stopped, and before it is killed.
STOPPED_AFTER, KILLED_AFTER = 7, 13
EARLY_MS = 900


def delayed(level: int, name: str = "level") -> Message:
    return {"body": f"{name}-{level}", "delay_level": level, "tags": "t", "keys": f"k{level}"}


@each_once
def test_every_level_comes_at_its_time(moved_java: Clients) -> None:
    clock, broker = moved_java.cluster.clock, moved_java.cluster.brokers["broker-a"]
    topic, group, producer = moved_java.topic(queues=1), unique("G"), moved_java.producer()
    # A message of each level comes a little earlier: the broker looks at the level while the other one waits.
    producer.send(topic, [delayed(level, "early") for level in range(1, LEVELS + 1)])
    clock.jump(EARLY_MS)
    sent_ms = clock.now_ms()
    # A level past the last one counts as the last one; level 0 means no delay.
    levels = [*range(LEVELS + 1), 99]
    sent = producer.send(topic, [delayed(level) for level in levels])
    assert {result["status"] for result in sent} == {"SEND_OK"}
    consumer = moved_java.push_consumer(topic, group=group)
    wait_for_bodies([consumer], ["level-0"])
    for level, level_ms in enumerate(DELAY_LEVELS_MS, 1):
        clock.jump(max(0, sent_ms + level_ms - EARLY_MS // 2 - clock.now_ms()))
        wait_for_bodies([consumer], [f"early-{level}"])
        clock.jump(EARLY_MS)
        wait_for_bodies([consumer], [f"level-{level}"])
        if level in (STOPPED_AFTER, KILLED_AFTER):
            consumer.wait_until_consumed(topic, 2 * level + 1)
            consumer.stop()
            moved_java.wait_for_committed(group, topic, [2 * level + 1])
            (broker.kill if level == KILLED_AFTER else broker.stop)()
            broker.restart()
            consumer = moved_java.push_consumer(topic, group=group)
    wait_for_bodies([consumer], ["level-99"])
    stored = moved_java.pull_consumer().read_all(topic)
    for message in stored:
        name, _, level = message["body"].partition("-")
        if name == "level" and level != "0":
            due_ms = sent_ms + DELAY_LEVELS_MS[min(int(level), LEVELS) - 1]
            assert message["store_timestamp_ms"] >= due_ms, message
            assert (message["tags"], message["properties"].get("DELAY")) == ("t", None)
    # Only messages delivered in the last moments before the kill may come once more.
    found = Counter(message["body"] for message in stored)
    twice = {body for body, times in found.items() if times > 1}
    before_kill = range(STOPPED_AFTER + 1, KILLED_AFTER + 1)
    assert twice <= {f"{name}-{level}" for level in before_kill for name in ("early", "level")}
    early = {f"early-{level}" for level in range(1, LEVELS + 1)}
    assert found.keys() == {f"level-{level}" for level in levels} | early


def test_a_delayed_message_is_not_seen_before(java: Clients) -> None:
    topic = java.topic(queues=1)
    producer, reader = java.producer(), java.pull_consumer()
    sent_at = time.monotonic()
    producer.send(topic, [{"body": "later", "delay_level": 1}, {"body": "never", "delay_level": 18}])
    assert reader.read_all(topic) == [] or time.monotonic() - sent_at > 1
    (came,) = eventually(lambda: reader.read_all(topic), bool, 60, "delivered")
    assert (came["body"], came["queue_id"]) == ("later", 0)
    assert came["store_timestamp_ms"] - came["born_timestamp_ms"] >= 1_000
