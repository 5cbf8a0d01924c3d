"""Sends, above all `send_soon`, with a broker whose answers a test writes down."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import metaq
from metaq._core import SendFuture
from metaq.errors import InvalidMessage, NotAllSent, NotDelivered, NotDurable, NotSent, UsageError
from metaq.protocol.errors import Refused
from tests.support.faces import FACES, opened
from tests.support.written_broker import STORED, Answer

LONG_S = 60
"""Only a flush sends, so messages share a request however long it takes to put them."""


def send_two(address: str, **options: Any) -> list[SendFuture]:
    with metaq.Client(address) as client, client.producer("g", linger=LONG_S, **options) as producer:
        flush(producer, [producer.send_soon("t", b"warm")])
        futures = [producer.send_soon("t", b"1"), producer.send_soon("t", b"2")]
        flush(producer, futures)
        return futures


def flush(producer: Any, futures: list[SendFuture]) -> tuple[Exception, ...]:
    """Flushes and returns the errors of messages that failed."""
    failures: tuple[Exception, ...] = ()
    try:
        producer.flush()
    except NotDelivered as lost:
        failures = lost.failures
    assert len(failures) == sum(future.exception() is not None for future in futures)
    return failures


LESS_SAFE = [
    (10, metaq.SendStatus.FLUSH_TIMEOUT),
    (11, metaq.SendStatus.REPLICA_MISSING),
    (12, metaq.SendStatus.REPLICA_TIMEOUT),
]


@pytest.mark.parametrize(("code", "status"), LESS_SAFE)
def test_a_less_safe_status_is_an_error_unless_it_is_accepted(
    broker: Any, code: int, status: metaq.SendStatus
) -> None:
    served = broker(lambda _: (code, STORED))
    for place, future in enumerate(send_two(served.address)):
        error = future.exception()
        assert isinstance(error, NotDurable)
        assert (error.result.queue_offset, error.result.offset_id) == (7 + place, "AB"[place])
        assert (error.result.id in str(error), error.code, error.result.status) == (True, code, status)
        assert error.result.id in repr(future)
        with pytest.raises(NotDurable, match=error.result.id):
            future.result()
    before = len(served.asked)
    results = [future.result() for future in send_two(served.address, accept=[str(status)])]
    assert [result.status for result in results] == [status] * 2
    assert [(result.queue_offset, result.offset_id) for result in results] == [(7, "A"), (8, "B")]
    assert len(served.asked) - before == 2, "to send it again would store it twice"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("code", "status"), LESS_SAFE)
def test_one_and_many_that_are_stored_less_safely_are_errors_unless_accepted(
    broker: Any, face: str, code: int, status: metaq.SendStatus
) -> None:
    served = broker(lambda _: (code, STORED))
    others = [other for _, other in LESS_SAFE if other is not status]
    two = [metaq.Message("t", b"1"), metaq.Message("t", b"2")]
    with opened(face) as make, make(served.address) as client:
        with client.producer("strict", accept=others) as producer:
            with pytest.raises(NotDurable) as failed:
                producer.send("t", b"x")
            assert (failed.value.code, failed.value.result.status) == (code, status)
            with pytest.raises(NotAllSent) as some:
                producer.send_many(two)
            for error in some.value.outcomes:
                assert isinstance(error, NotDurable)
                assert (error.code, error.result.status) == (code, status)
        assert len(served.asked) == 2, "to send it again would store it twice"
        with client.producer("content", accept=[status]) as producer:
            assert producer.send("t", b"x").status is status
            assert [result.status for result in producer.send_many(two)] == [status] * 2


def test_each_of_many_that_are_stored_less_safely_is_named(broker: Any) -> None:
    served = broker(lambda _: (10, STORED))
    with metaq.Client(served.address) as client, client.producer("g", linger=LONG_S) as producer:
        with pytest.raises(NotAllSent) as some:
            producer.send_many([metaq.Message("t", b"1"), metaq.Message("t", b"2")])
        flush(producer, [producer.send_soon("t", b"warm")])
        futures = [producer.send_soon("t", b"1"), producer.send_soon("t", b"2")]
        lost = flush(producer, futures)
        ids = [future.exception().result.id for future in futures]  # type: ignore[union-attr]
    for outcomes in (some.value.outcomes, lost):
        assert all(isinstance(error, NotDurable) for error in outcomes)
        found = [error.result for error in outcomes if isinstance(error, NotDurable)]
        assert [result.queue_offset for result in found] == [7, 8]
        assert found[0].id != found[1].id
    assert ids == [result.id for result in found]


def test_a_temporary_refusal_is_retried(broker: Any) -> None:
    served = broker(lambda number: (2, {}) if number % 2 else (0, STORED))
    assert [future.result().queue_offset for future in send_two(served.address)] == [7, 8]
    assert len(served.asked) > 2


def test_a_permanent_refusal_is_not_retried(broker: Any) -> None:
    served = broker(lambda _: (13, {}))
    for future in send_two(served.address):
        with pytest.raises(Refused, match="why"):
            future.result()
    assert len(served.asked) <= 3


def test_an_odd_answer_is_an_error(broker: Any) -> None:
    served = broker(lambda _: (0, {"msgId": "A"}))
    for future in send_two(served.address):
        with pytest.raises(Refused, match="queueId"):
            future.result()


def test_the_fast_path_checks_the_same_rules(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))
    with metaq.Client(served.address) as client, client.producer("g") as producer:
        producer.send_soon("t", b"1").result()
        for arguments, options, rule in (
            (("t", "text"), {}, "bytes, not str"),
            (("t", None), {}, "bytes, not NoneType"),
            ((None, b"x"), {}, "str, not NoneType"),
            (("t", bytes(5_000_000)), {}, "the limit is 4194304"),
            (("t", b"x"), {"tag": "a||b"}, "separates tags"),
            (("t", b"x"), {"tag": ""}, "empty"),
            (("t", b"x"), {"tag": 3}, "str, not int"),
            (("t", b"x"), {"key": "a\x01"}, "sharding key"),
            (("t", b"x"), {"key": 3}, "sharding key"),
            (("t", b"x"), {"keys": ["a", "b c"]}, "white space"),
            (("t", b"x"), {"keys": ["a\u2003b"]}, "white space"),
            (("t", b"x"), {"keys": [3]}, "str, not int"),
            (("t", b"x"), {"tag": "x" * 40_000}, "32767"),
        ):
            with pytest.raises(InvalidMessage, match=rule):
                producer.send_soon(*arguments, **options)
        with pytest.raises(UsageError, match="colour"):
            producer.send_soon("t", b"x", colour="red")
        assert producer.send_soon("t", bytearray(b"x"), keys="grün").result().queue.topic == "t"


def test_a_buffer_that_stays_full_is_told_at_the_call(broker: Any) -> None:
    silent = threading.Event()

    def answer(_: int) -> Answer:
        silent.wait(60)
        return 0, STORED

    served = broker(answer)
    with metaq.Client(served.address) as client, client.producer("g", buffer_bytes_max=1000) as producer:
        futures = [producer.send_soon("t", bytes(400)) for _ in range(2)]
        with pytest.raises(NotSent, match="was full for"):
            producer.send_soon("t", bytes(400), timeout=0.2)
        silent.set()
        for future in futures:
            future.result()
        assert producer.send_soon("t", bytes(400)).result().queue.id == 0


def test_messages_keep_their_room_until_their_callbacks_have_run(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))
    go_on, called = threading.Event(), []

    def slow(future: SendFuture) -> None:
        go_on.wait(60)
        called.append(future)

    with metaq.Client(served.address) as client:
        producer = client.producer("g", buffer_bytes_max=1000, linger=0.1)
        producer.start()
        for _ in range(2):
            future = producer.send_soon("t", bytes(400))
            future.add_done_callback(slow)
            future.result()
        with pytest.raises(NotSent, match="was full for"):
            producer.send_soon("t", bytes(400), timeout=0.2)
        flushing = threading.Thread(target=producer.flush)
        flushing.start()
        flushing.join(0.1)
        assert flushing.is_alive(), "a flush waits for callbacks"
        producer.flush(timeout=0.01)  # Returns after the timeout, too.
        go_on.set()
        flushing.join()
        assert len(called) == 2
        producer.send_soon("t", bytes(400)).add_done_callback(slow)
        producer.close()
        assert len(called) == 3, "and so does the close"


def test_a_callback_may_send_and_flush_however_full_the_buffer_is(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))
    outcomes: list[Any] = []

    def send_more(_: SendFuture) -> None:
        try:
            sent = producer.send_soon("t", bytes(400))
            producer.flush(60)
            outcomes.append(sent.result(60).queue_offset)
        except Exception as error:
            outcomes.append(error)

    with metaq.Client(served.address) as client:
        with client.producer("g", buffer_bytes_max=1000, linger=0.05, timeout=120) as producer:
            producer.send_soon("t", b"warm").result()
            for _ in range(2):
                producer.send_soon("t", bytes(400)).add_done_callback(send_more)
            producer.flush()
        assert outcomes == [7, 7]


def test_a_forked_process_asks_a_buffer_for_nothing_that_is_locked(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))
    with metaq.Client(served.address) as client:
        producer = client.producer("g", linger=60)
        producer.start()
        producer.send_soon("t", b"x")
        buffered = producer._producer._require_buffered()
        assert buffered.buffered_bytes > 0
        buffered.buffer.disable()
        assert buffered.buffered_bytes == 0
        with pytest.raises(NotDelivered):
            producer.close(timeout=0)
