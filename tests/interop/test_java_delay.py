"""The Java client's delay levels, each at its time, with a broker that is stopped and killed."""

from __future__ import annotations

import time
from collections.abc import Callable

from metaq.settings import DELAY_LEVELS_MS
from tests.interop.clients import Clients, Message, bodies, unique, wait_for_bodies
from tests.interop.driver import eventually
from tests.interop.kinds import each_once
from tests.interop.servers import Cluster

LEVELS = len(DELAY_LEVELS_MS)
# The last level before each loss of the broker.
STOPPED_AFTER, KILLED_AFTER = 7, 13
EARLY_MS = 900
LOOK_S = 0.12


def delayed(level: int) -> Message:
    return {"body": f"level-{level}", "delay_level": level, "tags": "t", "keys": f"k{level}"}


@each_once
def test_every_level_comes_at_its_time(
    cluster: Callable[..., Cluster], java_against: Callable[[Cluster], Clients]
) -> None:
    servers = cluster(moved=True, flush="sync")
    clients, broker, clock = java_against(servers), servers.brokers["broker-a"], servers.clock
    topic, group = clients.topic(queues=1), unique("G")
    # A level past the last one counts as the last one; level 0 means no delay.
    levels = [*range(LEVELS + 1), 99]
    sent = clients.producer().send(topic, [delayed(level) for level in levels])
    sent_ms = clock.now_ms()
    assert {result["status"] for result in sent} == {"SEND_OK"}
    found: list[Message] = []
    consumer = clients.push_consumer(topic, group=group)
    wait_for_bodies([consumer], ["level-0"])
    for level, level_ms in enumerate(DELAY_LEVELS_MS, 1):
        clock.jump(sent_ms + level_ms - EARLY_MS - clock.now_ms())
        time.sleep(LOOK_S)
        clock.jump(EARLY_MS)
        wait_for_bodies([consumer], [f"level-{level}"])
        if level in (STOPPED_AFTER, KILLED_AFTER):
            consumer.wait_until_consumed(topic, level + 1)
            consumer.stop()
            clients.wait_for_committed(group, topic, [level + 1])
            found += consumer.messages
            (broker.kill if level == KILLED_AFTER else broker.stop)()
            broker.restart()
            consumer = clients.push_consumer(topic, group=group)
    wait_for_bodies([consumer], ["level-99"])
    stored = clients.pull_consumer().read_all(topic)
    for message in stored[1:]:
        level = min(int(message["body"].removeprefix("level-")), LEVELS)
        assert message["store_timestamp_ms"] - message["born_timestamp_ms"] >= DELAY_LEVELS_MS[level - 1]
    # Only messages delivered in the last moments before the kill may come once more.
    twice = {body for body in bodies(stored) if bodies(stored).count(body) > 1}
    assert twice <= {f"level-{level}" for level in range(STOPPED_AFTER + 1, KILLED_AFTER + 1)}
    assert set(bodies(stored)) == {f"level-{level}" for level in levels}
    assert {(m["tags"], m["properties"].get("DELAY")) for m in stored[1:]} == {("t", None)}


def test_a_delayed_message_is_not_seen_before(java: Clients) -> None:
    topic = java.topic(queues=1)
    producer, reader = java.producer(), java.pull_consumer()
    sent_at = time.monotonic()
    producer.send(topic, [{"body": "later", "delay_level": 1}, {"body": "never", "delay_level": 18}])
    assert reader.read_all(topic) == [] or time.monotonic() - sent_at > 1
    (came,) = eventually(lambda: reader.read_all(topic), bool, 60, "delivered")
    assert (came["body"], came["queue_id"]) == ("later", 0)
    assert came["store_timestamp_ms"] - came["born_timestamp_ms"] >= 1_000
