"""The contract of producers, in both faces of the client, on our broker and on Apache's."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest

import metaq
from metaq.errors import (
    ClientClosed,
    InvalidMessage,
    NoReply,
    NotAllSent,
    NotDelivered,
    NotSent,
    UsageError,
)
from metaq.protocol.errors import Refused
from tests.integration.client.conftest import Served
from tests.support.faces import FACES, opened
from tests.support.metaq import Metaq
from tests.support.processes import free_port
from tests.support.reading import stored, stored_all
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["metaq", "apache"])
def nameserver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "metaq":
        own = Metaq.serve(tmp_path_factory.mktemp("metaq"), "--flush", "async")
        yield own.nameserver
        assert own.stop() == 0
        return
    served: Served = request.getfixturevalue("apache_served")
    yield served.nameserver


@pytest.fixture(params=FACES)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    with opened(request.param) as make:
        yield make


@pytest.fixture
def client(make: Callable[..., Any], nameserver: str) -> Iterator[Any]:
    with make(nameserver) as client:
        yield client


@pytest.fixture
def producer(client: Any) -> Iterator[Any]:
    with client.producer(f"group-{next(_numbers)}", linger=0.01) as producer:
        yield producer


@pytest.fixture
def topic() -> str:
    return f"contract-{next(_numbers)}"


def bodies(messages: list[metaq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_message_is_stored_as_it_was_given(producer: Any, topic: str, nameserver: str) -> None:
    result = producer.send(topic, b"hello", tag="greeting", keys=["a", "b"], properties={"colour": "grün"})
    (message,) = stored_all(nameserver, topic, 1)
    assert message.body == b"hello"
    assert (message.tag, message.keys, dict(message.properties)) == (
        "greeting",
        ("a", "b"),
        {"colour": "grün"},
    )
    assert (message.id, message.queue, message.queue_offset) == (result.id, result.queue, result.queue_offset)
    assert (result.status, message.offset_id) == (metaq.SendStatus.STORED, result.offset_id)
    assert abs(message.born_at / 1000 - time.time()) < 60


def test_messages_go_to_every_queue_in_turn(producer: Any, topic: str) -> None:
    queues = [producer.send(topic, b"x").queue for _ in range(8)]
    assert len(set(queues)) == 4


def test_a_key_has_one_queue(producer: Any, topic: str, nameserver: str) -> None:
    results = [producer.send(topic, b"%d" % number, key=f"k{number % 5}") for number in range(20)]
    for key in range(5):
        assert len({result.queue for result in results[key::5]}) == 1
    assert len({result.queue for result in results}) > 1
    messages = stored_all(nameserver, topic, 20)
    for queue in {result.queue for result in results}:
        numbers = [int(message.body) for message in messages if message.queue == queue]
        assert numbers == sorted(numbers)


def test_a_queue_can_be_chosen(producer: Any, topic: str) -> None:
    chosen = producer.send(topic, b"1").queue
    assert producer.send(topic, b"2", queue=chosen).queue == chosen
    assert producer.send_soon(topic, b"3", queue=chosen).result().queue == chosen


def test_large_bodies_are_compressed_on_the_way(producer: Any, topic: str, nameserver: str) -> None:
    body = b"again and again " * 10_000
    producer.send(topic, body)
    (message,) = stored_all(nameserver, topic, 1)
    assert message.body == body
    assert message.system_flag & 1


def test_many_are_sent_together_and_split_where_they_are_too_large(
    client: Any, topic: str, nameserver: str
) -> None:
    messages = [metaq.Message(topic, b"%05d" % number + bytes(300), tag="t") for number in range(50)]
    with client.producer("many", body_bytes_max=4096) as producer:
        results = producer.send_many(messages)
        assert [result.queue_offset for result in results if result.queue == results[0].queue]
        by_key = producer.send_many(messages, key=lambda message: message.body[:5].decode())
    assert len({result.queue for result in by_key}) > 1
    found = {message.id: message for message in stored_all(nameserver, topic, 100)}
    assert [found[result.id].body for result in results] == bodies(messages)
    assert [found[result.id].body for result in by_key] == bodies(messages)
    assert all(found[result.id].queue_offset == result.queue_offset for result in results + by_key)


def test_soon_keeps_the_order_of_a_key(producer: Any, topic: str, nameserver: str) -> None:
    futures = [producer.send_soon(topic, b"%d" % number, key=f"k{number % 3}") for number in range(300)]
    producer.flush()
    results = [future.result() for future in futures]
    messages = stored_all(nameserver, topic, 300)
    assert sorted(bodies(messages)) == sorted(b"%d" % number for number in range(300))
    places = {message.id: (message.queue, message.queue_offset) for message in messages}
    assert all(places[result.id] == (result.queue, result.queue_offset) for result in results)
    for key in range(3):
        offsets = [result.queue_offset for result in results[key::3]]
        assert offsets == sorted(offsets)


def test_soon_has_told_every_future_when_a_flush_returns(nameserver: str, topic: str) -> None:
    async def main() -> None:
        async with metaq.aio.Client(nameserver) as client, client.producer("g") as producer:
            futures = [await producer.send_soon(topic, b"x", tag="t") for _ in range(10_000)]
            cancelled = futures[5000].cancel()
            await producer.flush()
            assert all(future.done() for future in futures)
            assert len({future.result().id for future in futures if not future.cancelled()}) >= 9_999
            assert cancelled == futures[5000].cancelled()

    asyncio.run(main())


def test_soon_waits_where_its_buffer_is_full(client: Any, topic: str, nameserver: str) -> None:
    with client.producer("small", buffer_bytes_max=2_000, linger=0.0) as producer:
        for number in range(100):
            producer.send_soon(topic, b"%d" % number + bytes(400))
    assert len(stored_all(nameserver, topic, 100)) == 100


def test_soon_keeps_the_order_of_what_cannot_share_a_request(
    client: Any, topic: str, nameserver: str
) -> None:
    large = b"again and again " * 1000
    with client.producer("mixed", linger=0.01, batch_bytes_max=2000) as producer:
        wanted = [b"%d" % number if number % 3 else large + b"%d" % number for number in range(30)]
        futures = [producer.send_soon(topic, body, key="k") for body in wanted]
        delayed = producer.send_soon(topic, b"later", key="k", delay=3600)
        producer.flush()
        assert producer.recall(topic, delayed.result().recall_handle) == delayed.result().id
    messages = stored_all(nameserver, topic, 30)
    assert bodies(messages) == wanted
    assert [message.system_flag & 1 for message in messages] == [number % 3 == 0 for number in range(30)]
    assert [future.result().id for future in futures] == [message.id for message in messages]


def test_soon_carries_everything_that_a_message_has(producer: Any, topic: str, nameserver: str) -> None:
    for _ in range(2):  # The first one does not take the fast path.
        options = {"tag": "greeting", "keys": ["a", "b"], "key": "k"}
        result = producer.send_soon(topic, b"hello", **options).result()
    unusual = {"properties": {"colour": "grün"}, "keys": iter("c")}
    with_properties = producer.send_soon(topic, b"hello", **unusual).result()
    messages = stored_all(nameserver, topic, 3)
    first, second = (message for message in messages if message.tag == "greeting")
    for message in (first, second):
        assert (message.body, message.tag, message.keys) == (b"hello", "greeting", ("a", "b"))
        assert message.system_properties["__SHARDINGKEY"] == "k"
        assert not message.properties
        assert abs(message.born_at / 1000 - time.time()) < 60
    assert (second.id, second.queue, second.queue_offset, second.offset_id) == (
        result.id,
        result.queue,
        result.queue_offset,
        result.offset_id,
    )
    assert result.status is metaq.SendStatus.STORED
    (other,) = (message for message in messages if message.id == with_properties.id)
    assert (dict(other.properties), other.keys) == ({"colour": "grün"}, ("c",))


def test_soon_calls_back(producer: Any, topic: str) -> None:
    seen: SimpleQueue[Any] = SimpleQueue()

    def done(future: Any) -> None:
        seen.put((future.result().queue.topic, threading.current_thread().name))

    future = producer.send_soon(topic, b"1")
    future.add_done_callback(done)
    assert seen.get(timeout=60)[0] == topic
    assert future.done()
    assert future.exception() is None
    future.add_done_callback(lambda _: 1 / 0)  # It is logged and disturbs nothing.
    future.add_done_callback(done)
    assert seen.get(timeout=60)[0] == topic


def test_oneway_arrives(producer: Any, topic: str, nameserver: str) -> None:
    producer.send(topic, b"first")
    producer.send_oneway(topic, b"second")
    wait_until(lambda: set(bodies(stored(nameserver, topic))) == {b"first", b"second"})


def test_delayed_messages_come_later_unless_they_are_recalled(
    producer: Any, topic: str, nameserver: str
) -> None:
    producer.send(topic, b"now")
    # Long enough for a busy machine to recall it in time.
    recalled = producer.send(topic, b"never", delay=5)
    assert producer.recall(topic, recalled.recall_handle) == recalled.id
    begun = datetime.now(UTC)
    producer.send(topic, b"at", deliver_at=begun + timedelta(seconds=2))
    producer.send(topic, b"after", delay=timedelta(seconds=2))
    producer.send(topic, b"level", delay_level=1)
    # It is due after the recalled one, which would have been delivered by then.
    producer.send(topic, b"last", delay=6)
    wait_until(lambda: b"last" in bodies(stored(nameserver, topic)))
    messages = {message.body: message for message in stored(nameserver, topic)}
    assert messages.keys() == {b"now", b"at", b"after", b"level", b"last"}
    for body in (b"at", b"after"):
        # Apache rounds delivery times down to seconds.
        assert messages[body].stored_at >= begun.timestamp() * 1000 + 1_000
    assert messages[b"level"].stored_at >= begun.timestamp() * 1000 + 900, "level 1 is one second"


def test_a_transaction_counts_when_its_block_ends(producer: Any, topic: str, nameserver: str) -> None:
    @producer.check
    def unknown(message: metaq.Message) -> bool | None:
        return None

    with producer.transaction(topic, b"paid", tag="t") as transaction:
        assert transaction.id
        assert bodies(stored(nameserver, topic)) == []
    with pytest.raises(RuntimeError, match="no money"), producer.transaction(topic, b"refused"):
        raise RuntimeError("no money")
    with producer.transaction(topic, b"given up") as transaction:
        transaction.rollback()
        with pytest.raises(UsageError, match="decided"):
            transaction.commit()
    wait_until(lambda: bodies(stored(nameserver, topic)) == [b"paid"])


def test_a_transaction_needs_a_checker(producer: Any, topic: str) -> None:
    with pytest.raises(UsageError, match="checker"):
        producer.transaction(topic, b"x")


def test_a_request_is_answered(make: Callable[..., Any], nameserver: str, producer: Any, topic: str) -> None:
    producer.send(topic, b"makes the topic")

    def answer() -> None:
        with metaq.Client(nameserver) as other, other.producer("replier") as replier:
            wait_until(lambda: b"question" in bodies(stored(nameserver, topic)))
            (asked,) = (message for message in stored(nameserver, topic) if message.body == b"question")
            replier.reply(asked, b"answer")

    replying = threading.Thread(target=answer)
    replying.start()
    try:
        assert producer.request(topic, b"question", timeout=60).body == b"answer"
    finally:
        replying.join()
    with pytest.raises(NoReply):
        producer.request(topic, b"anybody?", timeout=2)


@pytest.mark.parametrize(
    ("arguments", "options", "rule"),
    [
        (("", b"x"), {}, "blank"),
        (("a b", b"x"), {}, "characters"),
        (("t" * 128, b"x"), {}, "the limit is 127"),
        (("t", "text"), {}, "bytes, not str"),
        (("t", bytes(5_000_000)), {}, "the limit is 4194304"),
        (("t", b"x"), {"properties": {"KEYS": "k"}}, "is reserved"),
        (("t", b"x"), {"properties": {"a": "\x01"}}, "separate"),
        (("t", b"x"), {"properties": {f"p{n}": "v" * 1000 for n in range(40)}}, "32767"),
        (("t", b"x"), {"keys": ["a b"]}, "white space"),
        (("t", b"x"), {"tag": "a||b"}, "separates tags"),
        (("t", b"x"), {"delay": -1}, "delay"),
        (("t", b"x"), {"delay": 1, "deliver_at": datetime.now()}, "exclude each other"),
        (("t", b"x"), {"delay": 1, "delay_level": 1}, "exclude each other"),
        (("t", b"x"), {"delay_level": 0}, "at least 1"),
        (("t", b"x"), {"priority": "high"}, "priority"),
        (("t", b"x"), {"timeout": 0}, "seconds"),
        (("t", b"x"), {"queue": 3}, "not a queue"),
    ],
)
def test_a_broken_rule_is_an_error_at_the_call(
    producer: Any, arguments: tuple[Any, ...], options: dict[str, Any], rule: str
) -> None:
    for send in (producer.send, producer.send_soon, producer.send_oneway):
        with pytest.raises(UsageError, match=rule):
            send(*arguments, **options)


def test_a_recall_needs_a_handle(producer: Any, topic: str) -> None:
    with pytest.raises(InvalidMessage, match="not a recall handle"):
        producer.recall(topic, "nonsense")
    with pytest.raises(InvalidMessage, match="None is not a recall handle"):
        producer.recall(topic, None)


def test_after_the_end_nothing_works(make: Callable[..., Any], nameserver: str) -> None:
    with make(nameserver) as client:
        early = client.producer("g")
        with pytest.raises(ClientClosed, match="not started"):
            early.send("t", b"x")
        with client.producer("g") as producer:
            pass
        with pytest.raises(ClientClosed, match="closed"):
            producer.send("t", b"x")
        producer.close()
    with pytest.raises(ClientClosed, match="closed"):
        client.start()
    with pytest.raises(ClientClosed, match="closed"):
        early.send("t", b"x")
    client.close()


def test_a_refusal_carries_its_code(producer: Any) -> None:
    with pytest.raises(Refused) as refused:
        producer.send("SCHEDULE_TOPIC_XXXX", b"x")
    assert refused.value.code
    assert not refused.value.retriable
    with pytest.raises(NotAllSent) as some:
        producer.send_many([metaq.Message("SCHEDULE_TOPIC_XXXX", b"x")] * 2)
    assert len(some.value.outcomes) == 2


def test_messages_that_cannot_be_delivered_are_reported(make: Callable[..., Any], nameserver: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with make(nobody) as client:
        producer = client.producer("g", timeout=1)
        producer.start()
        with pytest.raises(NotSent, match="no name server answers") as failed:
            producer.send("t", b"x")
        assert failed.value.retriable
        future = producer.send_soon("t", b"1", timeout=3)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.01)
        with pytest.raises(NotDelivered) as lost:
            producer.flush()
        assert lost.value.count == 1
        with pytest.raises(NotSent):
            future.result()
        producer.flush()
        producer.send_soon("t", b"2")
        with pytest.raises(NotDelivered, match="1 message was"):
            producer.close(timeout=0.1)
