"""Kills the broker again and again while messages wait for their time: each comes, and few come twice."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.plain_client import (
    SEND_MESSAGE_V2,
    SUCCESS,
    PlainClient,
    ServerClosed,
    create_topic,
    frame,
    read_queue,
    send,
    send_fields,
)
from tests.support.rounds import kill_loop, rounds, seeded
from tests.support.serving import Serving
from tests.support.waiting import eventually

KILLS = rounds(3, 100)
TOPIC = "timer_kills"
RECALL_MESSAGE = 370
DELAY_MS_MAX = 4_000
LAST_MOMENTS_MS = 3_000
"""Checkpoints are a second apart, and a busy machine is late with them."""
BATCH, BATCHES_CUT_OFF = 1024, 2
"""The broker saves its position after each batch, or after the next one if it is late."""
DRAIN_TIMEOUT_S = 120
WINDOW = 32


@dataclass
class Waits:
    """The messages that were sent and acknowledged, by number."""

    due_ms: dict[int, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    recalled: set[int] = field(default_factory=set)
    in_doubt: set[int] = field(default_factory=set)
    """Recalls without an answer: the message may come or not."""
    kills_ms: list[tuple[float, float]] = field(default_factory=list)
    """When it was killed and when it was back. Messages due in between came then."""


@kill_loop
def test_waiting_messages_survive_every_kill(tmp_path: Path) -> None:
    choice = seeded()
    data, home, waits = tmp_path / "data", tmp_path / "home", Waits()
    numbers = itertools.count()
    broker = Serving(home, data)
    try:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, 1).code == SUCCESS
        for _ in range(KILLS):
            _send_for(broker, choice.uniform(0.3, 1.2), numbers, waits, choice)
            broker.kill()
            killed_ms = time.time() * 1000
            if choice.random() < 0.3:
                broker = Serving(home, data, wait=False)
                time.sleep(choice.uniform(0.0, 0.4))
                broker.kill()
            broker = Serving(home, data)
            waits.kills_ms.append((killed_ms, time.time() * 1000))
        wanted = waits.acknowledged - waits.recalled - waits.in_doubt
        came = _wait_for(broker, wanted)
        assert broker.stop() == 0
        with Serving(home, data) as broker, broker.connect() as client:
            # Messages come in the order of their times: one that came twice would come before this one.
            last, due_ms = next(numbers), int(time.time() * 1000) + 50
            assert send(client, TOPIC, 0, b"%d" % last, f"TIMER_DELIVER_MS\x01{due_ms}\x02").code == SUCCESS
            assert _wait_for(broker, {last}) == [*came, last], "after an orderly stop nothing comes twice"
    finally:
        if broker.child.alive:
            broker.kill()
    _judge(waits, Counter(came))


def _judge(waits: Waits, came: Counter[int]) -> None:
    repeated = [number for number, times in came.items() if times > 1]
    print(
        f"{len(waits.acknowledged)} acknowledged, {len(waits.recalled)} recalled, {len(repeated)} came again"
    )
    assert not waits.recalled & set(came), "a recalled message came"
    for number in repeated:
        due_ms = waits.due_ms[number]
        assert any(
            killed_ms - LAST_MOMENTS_MS <= due_ms <= back_ms + LAST_MOMENTS_MS
            for killed_ms, back_ms in waits.kills_ms
        ), f"message {number} was due long before or after every kill, and came {came[number]} times"
    assert len(repeated) <= BATCHES_CUT_OFF * BATCH * len(waits.kills_ms), f"{len(repeated)} came again"
    assert len(waits.acknowledged) > 100 * KILLS and waits.recalled


def _send_for(
    broker: Serving, span_s: float, numbers: Iterator[int], waits: Waits, choice: random.Random
) -> None:
    deadline, before = time.monotonic() + span_s, len(waits.acknowledged)
    with broker.connect() as client:
        while time.monotonic() < deadline or len(waits.acknowledged) <= before + 100:
            _send_window(client, [next(numbers) for _ in range(WINDOW)], waits, choice)


def _send_window(client: PlainClient, window: list[int], waits: Waits, choice: random.Random) -> None:
    data, waiting = bytearray(), {}
    now_ms = int(time.time() * 1000)
    for number in window:
        waits.due_ms[number] = now_ms + choice.randrange(DELAY_MS_MAX)
        properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{waits.due_ms[number]}\x02"
        opaque = client.next_opaque()
        waiting[opaque] = number
        data += frame(SEND_MESSAGE_V2, send_fields(TOPIC, 0, properties), b"%d" % number, opaque=opaque)
    client.write(bytes(data))
    handles: dict[int, str] = {}
    while waiting:
        reply = client.read_reply()
        number = waiting.pop(reply.opaque)
        assert reply.code == SUCCESS, reply.remark
        waits.acknowledged.add(number)
        if "recallHandle" in reply.fields:
            handles[number] = reply.fields["recallHandle"]
    for number, handle in list(handles.items())[:3]:
        fields = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "p"}
        try:
            reply = client.call(RECALL_MESSAGE, fields)
        except (ServerClosed, OSError):
            waits.in_doubt.add(number)
            raise
        if reply.code == SUCCESS:
            assert reply.fields["msgId"] == f"K{number}"
            waits.recalled.add(number)
        else:
            assert reply.code == 604, reply.remark  # It was delivered first.


def _wait_for(broker: Serving, wanted: set[int]) -> list[int]:
    """Returns the numbers of all delivered messages, once all that are wanted are among them."""
    came: list[int] = []
    missing = set(wanted)

    def ask() -> list[int]:
        new = [int(stored.body) for stored in read_queue(client, TOPIC, 0, begin=len(came))]
        came.extend(new)
        missing.difference_update(new)
        return sorted(missing)[:5]

    with broker.connect() as client:
        eventually(ask, lambda left: not left, DRAIN_TIMEOUT_S, "delivered")
    return came
