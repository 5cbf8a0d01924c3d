"""The outbox: order in every lane, whatever fails, and which positions are safe to save."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.client.session.routes import Queue
from metaq.errors import CommandError, InvalidMessage, NotSent
from metaq.pipelines.binlog_sync.coordinates import Coordinates, Position
from metaq.pipelines.binlog_sync.envelope import encode_change, rows_head
from metaq.pipelines.binlog_sync.writing import outbox as module
from metaq.pipelines.binlog_sync.writing.checkpoint import Boundaries
from metaq.pipelines.binlog_sync.writing.outbox import Lane, Outbox, Stopped
from metaq.pipelines.binlog_sync.writing.state import SyncState

MESSAGE_BYTES = 200


class Sent:
    """A call of `send_soon` that the test completes."""

    def __init__(self, body: bytes, queue: Queue) -> None:
        self.body, self.queue = body, queue
        self._callback: Callable[[Any], Any] = lambda _: None
        self._error: Exception | None = None

    def exception(self, timeout: float | None = None) -> Exception | None:
        return self._error

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self._callback = callback

    def done(self, error: Exception | None = None) -> None:
        self._error = error
        self._callback(self)


class Recorder:
    """A producer that sends nothing."""

    def __init__(self) -> None:
        self.open: list[Sent] = []

    def send_soon(self, topic: str, body: bytes, *, tag: str, queue: Queue) -> Sent:
        self.open.append(Sent(body, queue))
        return self.open[-1]


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    return Recorder()


def make(producer: Recorder, stopping: threading.Event | None = None, buffer_bytes: int = 10**6) -> Outbox:
    stop = stopping or threading.Event()
    return Outbox(producer, message_bytes=MESSAGE_BYTES, buffer_bytes=buffer_bytes, is_stopping=stop.is_set)


def lane(number: int = 0) -> Lane:
    return Lane(Queue("t", "b", number), "d.t", rows_head("d", "t", 1))


def change(number: int) -> bytes:
    return encode_change(str(number), "insert", {"id": number})


def numbers(sent: Sent) -> list[int]:
    return [change["row"]["id"] for change in json.loads(sent.body)["changes"]]


def wait_for(found: Callable[[], object]) -> None:
    tries = threading.Event()
    for _ in range(120_000):
        if found():
            return
        tries.wait(0.0005)
    raise AssertionError("the condition was never met")


def is_waited_for(outbox: Outbox) -> bool:
    """Returns whether a thread waits for acknowledgements."""
    waiters: Any = outbox._changed
    return bool(waiters._waiters)


def test_changes_that_wait_form_the_next_message(producer: Recorder) -> None:
    outbox, first = make(producer), lane()
    for number in range(10):
        outbox.put(first, 5, [change(number)])
    (sent,) = producer.open
    assert numbers(sent) == [0]
    sent.done()
    assert numbers(producer.open[1])[0] == 1
    assert len(producer.open[1].body) < MESSAGE_BYTES + 200
    seen = [0]
    for index in range(1, 10):
        if index >= len(producer.open):
            break
        seen += numbers(producer.open[index])
        producer.open[index].done()
    assert seen == list(range(10))
    assert outbox.wait_all(0)
    assert outbox.rows == 10
    assert json.loads(sent.body)["committed"] == 5


@settings(max_examples=20, deadline=None)
@given(st.integers())
def test_nothing_overtakes_a_failed_message(seed: int) -> None:
    chance = random.Random(seed)
    pause, module.RETRY_PAUSE_S = module.RETRY_PAUSE_S, 0.0  # type: ignore[misc]
    try:
        producer = Recorder()
        outbox = make(producer)
        lanes = [lane(number) for number in range(3)]
        stored: dict[int, list[int]] = {number: [] for number in range(3)}
        put = 0
        while put < 30 or producer.open:
            if put < 30 and chance.random() < 0.5:
                outbox.put(lanes[put % 3], 0, [change(put)])
                put += 1
            elif producer.open:
                sent = producer.open.pop(chance.randrange(len(producer.open)))
                how = chance.choice(["stored", "failed", "stored, answer lost"])
                if how != "failed":
                    stored[sent.queue.id] += numbers(sent)
                if how == "stored":
                    sent.done()
                else:
                    count = len(producer.open)
                    sent.done(NotSent("a test"))
                    wait_for(lambda count=count: len(producer.open) > count)
            for number, found in stored.items():
                first_time = list(dict.fromkeys(found))
                assert first_time == [n for n in range(put) if n % 3 == number][: len(first_time)]
        assert outbox.wait_all(0)
    finally:
        module.RETRY_PAUSE_S = pause  # type: ignore[misc]


def test_a_refused_message_ends_the_run(producer: Recorder) -> None:
    outbox, first = make(producer), lane()
    outbox.put(first, 0, [change(1)])
    producer.open[0].done(InvalidMessage("too large"))
    with pytest.raises(CommandError, match=r"d\.t .* too large"):
        outbox.put(first, 0, [change(2)])
    with pytest.raises(CommandError, match=r"d\.t .* too large"):
        outbox.wait_all(1)


def test_a_full_buffer_waits_until_the_run_stops(producer: Recorder) -> None:
    stopping = threading.Event()
    outbox, first = make(producer, stopping, buffer_bytes=10), lane()
    outbox.put(first, 0, [change(1)])
    stopped = []

    def put() -> None:
        with pytest.raises(Stopped):
            outbox.put(first, 0, [change(2)])
        stopped.append(True)

    thread = threading.Thread(target=put)
    thread.start()
    wait_for(lambda: is_waited_for(outbox))
    assert not stopped
    stopping.set()
    thread.join(60)
    assert stopped
    assert not outbox.wait_all(0)


def test_a_barrier_waits_for_earlier_messages_and_goes_to_every_queue(producer: Recorder) -> None:
    outbox = make(producer)
    outbox.put(lane(), 0, [change(1)])
    queues = [Queue("t", "b", number) for number in range(3)]
    thread = threading.Thread(target=outbox.send_barrier, args=(queues, "ddl", lambda number: b"%d" % number))
    thread.start()
    wait_for(lambda: is_waited_for(outbox))
    assert len(producer.open) == 1, "the earlier message is not acknowledged yet"
    producer.open[0].done()
    wait_for(lambda: len(producer.open) == 4)
    assert [sent.body for sent in producer.open[1:]] == [b"0", b"1", b"2"]
    for sent in producer.open[1:]:
        assert thread.is_alive()
        sent.done()
    thread.join(60)
    assert not thread.is_alive()


def test_a_position_is_saved_once_everything_before_it_is_acknowledged(producer: Recorder) -> None:
    outbox, lanes = make(producer), [lane(0), lane(1)]
    state = SyncState("t", "s", 1, Coordinates("b.1", 4), "", [])
    boundaries = Boundaries(state)
    for number in (1, 2):
        outbox.put(lanes[number - 1], 0, [change(number)])
        boundaries.passed(outbox.put_count, Position(Coordinates("b.1", number * 100), f"0-1-{number}"))
    producer.open[1].done()
    assert not boundaries.advance(outbox.lowest_open()), "the first is still open"
    assert state.coordinates.position == 4
    producer.open[0].done()
    assert boundaries.advance(outbox.lowest_open())
    assert (state.coordinates.position, state.gtid) == (200, "0-1-2")


def test_no_position_is_saved_after_changes_that_a_failure_kept_from_being_sent(
    producer: Recorder,
) -> None:
    outbox, lanes = make(producer), [lane(0), lane(1)]
    state = SyncState("t", "s", 1, Coordinates("b.1", 4), "", [])
    boundaries = Boundaries(state)
    for number, used in ((1, 0), (2, 0), (3, 1), (4, 0)):
        outbox.put(lanes[used], 0, [change(number)])
        boundaries.passed(outbox.put_count, Position(Coordinates("b.1", number * 100), f"0-1-{number}"))
    first, refused = producer.open
    assert (numbers(first), numbers(refused)) == ([1], [3])
    refused.done(InvalidMessage("too large"))
    first.done()
    assert len(producer.open) == 2, "after a failure nothing more is sent"
    assert outbox.lowest_open() == 2
    assert boundaries.advance(outbox.lowest_open())
    assert state.coordinates.position == 100, "the second and the fourth were never sent"


def test_check_raises_a_failure_without_a_put(producer: Recorder) -> None:
    outbox = make(producer)
    outbox.check()
    outbox.put(lane(), 0, [change(1)])
    outbox.check()
    producer.open[0].done(InvalidMessage("too large"))
    with pytest.raises(CommandError, match="too large"):
        outbox.check()
