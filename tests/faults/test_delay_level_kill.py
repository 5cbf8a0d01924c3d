"""Kills the broker while messages of delay levels fall due: all come, and few twice (docs/delay.md)."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    Stored,
    create_topic,
    frame,
    read_queue,
    send_fields,
)
from tests.support.rounds import kill_loop, rounds, seeded
from tests.support.serving import SMALL_FILES, Serving
from tests.support.waiting import eventually

KILLS = rounds(2, 60)
TOPIC = "delay_level_kills"
SETTINGS = {**SMALL_FILES, "delay_levels": "1s 2s"}
LEVELS = 2
WINDOW, WINDOW_INTERVAL_S = 10, 0.04
DELIVERED_S = 2.0
"""Deliveries go on for this long before a kill: far longer than the second that may be repeated."""
REPEATED_MS = 1_000
SLOW_TURNS = 3
"""A busy machine writes the progress late. A write has three steps: it flushes the deliveries, waits for the
event loop, and flushes the journal. Each takes at most as long as the slowest window of sends."""
DRAIN_TIMEOUT_S = 120


@dataclass(frozen=True)
class Kill:
    killed_ms: float
    slowest_window_ms: float

    @property
    def repeated_from_ms(self) -> float:
        return self.killed_ms - REPEATED_MS - SLOW_TURNS * self.slowest_window_ms


@dataclass
class Sent:
    acknowledged: set[int] = field(default_factory=set)
    kills: list[Kill] = field(default_factory=list)


@kill_loop
def test_a_kill_repeats_at_most_a_second_of_each_delay_level(tmp_path: Path) -> None:
    choice = seeded()
    data, home, sent = tmp_path / "data", tmp_path / "home", Sent()
    numbers = itertools.count()
    broker = Serving(home, data, settings=SETTINGS)
    try:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 1).code == SUCCESS
        for _ in range(KILLS):
            slowest_s = _send_while_due(broker, DELIVERED_S + choice.uniform(0.0, 0.6), numbers, sent)
            broker.kill()
            killed_ms = time.time() * 1000
            broker = Serving(home, data, settings=SETTINGS)
            sent.kills.append(Kill(killed_ms, slowest_s * 1000))
        came = _wait_for(broker, sent.acknowledged)
        assert broker.stop() == 0
    finally:
        if broker.child.alive:
            broker.kill()
    _judge(sent, came)


def _send_while_due(broker: Serving, span_s: float, numbers: Iterator[int], sent: Sent) -> float:
    """Sends until messages have been delivered for this long; returns the time of the slowest window."""
    slowest_s, ends_s = 0.0, float("inf")
    with broker.connect() as client:
        begin = len(read_queue(client, TOPIC, 0))
        while (begun_s := time.monotonic()) < ends_s:
            data, waiting = bytearray(), {}
            for number in itertools.islice(numbers, WINDOW):
                opaque = client.next_opaque()
                waiting[opaque] = number
                fields = send_fields(TOPIC, 0, f"DELAY\x01{1 + number % LEVELS}\x02")
                data += frame(SEND_MESSAGE_V2, fields, b"%d" % number, opaque=opaque)
            client.write(bytes(data))
            while waiting:
                reply = client.read_reply()
                assert reply.code == SUCCESS, reply.remark
                sent.acknowledged.add(waiting.pop(reply.opaque))
            if ends_s == float("inf") and read_queue(client, TOPIC, 0, begin):
                ends_s = time.monotonic() + span_s
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            time.sleep(WINDOW_INTERVAL_S)
    return slowest_s


def _wait_for(broker: Serving, wanted: set[int]) -> list[Stored]:
    """Returns all deliveries, once every wanted message is among them."""
    came: list[Stored] = []

    def missing() -> list[int]:
        came.extend(read_queue(client, TOPIC, 0, begin=len(came)))
        return sorted(wanted - {int(stored.body) for stored in came})[:5]

    with broker.connect() as client:
        eventually(missing, lambda left: not left, DRAIN_TIMEOUT_S, "delivered", interval_s=0.1)
    return came


def _judge(sent: Sent, came: list[Stored]) -> None:
    deliveries: defaultdict[int, list[int]] = defaultdict(list)
    for stored in came:
        deliveries[int(stored.body)].append(stored.stored_ms)
    repeated: Counter[Kill] = Counter()
    for number, times_ms in deliveries.items():
        for before_ms, again_ms in pairwise(times_ms):
            between = [kill for kill in sent.kills if before_ms <= kill.killed_ms <= again_ms]
            assert between, f"message {number} came twice without a kill in between"
            kill = between[0]
            assert before_ms >= kill.repeated_from_ms, (
                f"message {number} came {kill.killed_ms - before_ms:.0f} ms before a kill and again; "
                f"the slowest window of sends took {kill.slowest_window_ms:.0f} ms"
            )
            repeated[kill] += 1
    for kill in sent.kills:
        before = [stored for stored in came if stored.stored_ms <= kill.killed_ms]
        due = sum(stored.stored_ms >= kill.killed_ms - REPEATED_MS for stored in before)
        print(
            f"{repeated[kill]} came again, {due} came in the second before the kill, "
            f"slowest window {kill.slowest_window_ms:.0f} ms"
        )
        assert due, "no message fell due before the kill"
    assert deliveries.keys() == sent.acknowledged
