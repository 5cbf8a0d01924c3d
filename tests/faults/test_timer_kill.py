"""`kill -9` again and again while messages wait for their moments, and what must have come of them."""

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
    send_fields,
)
from tests.support.serving import Serving

KILLS = 5
TOPIC = "timer_kills"
RECALL_MESSAGE = 370
DELAY_MS_MAX = 4_000
LAST_MOMENTS_MS = 3_000
"""Checkpoints are a second apart, and a busy machine is late with them."""
BATCH, BATCHES_CUT_OFF = 1024, 2
"""After each batch the broker notes how far it is, unless one was late: then after the next."""
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
    """When it was killed, and when it was back: what was due in between came then."""


def test_what_waits_outlives_every_kill(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    choice = random.Random(seed)
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
            time.sleep(0.2)
            assert _numbers(client) == came, "after an orderly stop nothing comes twice"
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
            assert reply.code == 604, reply.remark  # Its moment came first.


def _wait_for(broker: Serving, wanted: set[int]) -> list[int]:
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    with broker.connect() as client:
        while True:
            came = _numbers(client)
            missing = wanted - set(came)
            if not missing:
                return came
            assert time.monotonic() < deadline, f"{len(missing)} never came, such as {sorted(missing)[:5]}"
            time.sleep(0.2)


def _numbers(client: PlainClient) -> list[int]:
    return [int(stored.body) for stored in read_queue(client, TOPIC, 0)]
