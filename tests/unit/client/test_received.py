"""Received messages are decoded lazily, with the same result as an eager decoder."""

from __future__ import annotations

import asyncio
import copy
import pickle
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaq
from metaq._core import FrameError, Record, decode_messages, decode_records
from metaq.client.compression import COMPRESSED
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.pull import requests as pulling
from metaq.client.consumer.pull.buffers import Limits
from metaq.client.consumer.pull.prefetch import Prefetch
from metaq.client.consumer.pull.pull_loops import PullLoops
from metaq.client.consumer.pull.requests import find_unreadable
from metaq.client.consumer.subscription import Subscription
from metaq.client.message import inflate
from metaq.client.session.routes import Queue
from metaq.client.session.session import Session
from metaq.errors import UnreadableBody
from metaq.protocol.commands.messages import Pulled, PullMessage
from metaq.protocol.properties import SYSTEM_NAMES, encode_properties
from metaq.protocol.reply import Reply
from tests.support.records import record
from tests.support.waiting import run, until

QUEUE = Queue("orders", "broker-a", 3)
FIELDS = metaq.Message.__match_args__


def read_at_once(stored: Record, broker: str) -> dict[str, Any]:
    """Returns all attributes of a message, from the eagerly decoded record."""
    everything = stored.properties
    return {
        "topic": everything.get("RETRY_TOPIC", stored.topic),
        "body": inflate(stored.body, stored.system_flag),
        "tag": everything.get("TAGS"),
        "keys": tuple(everything.get("KEYS", "").split()),
        "properties": {name: value for name, value in everything.items() if name not in SYSTEM_NAMES},
        "id": everything.get("UNIQ_KEY") or stored.message_id,
        "offset_id": stored.message_id,
        "queue": Queue(stored.topic, broker, stored.queue_id),
        "queue_offset": stored.queue_offset,
        "physical_offset": stored.physical_offset,
        "born_at": stored.born_timestamp_ms,
        "stored_at": stored.store_timestamp_ms,
        "born_host": stored.born_host,
        "store_host": stored.store_host,
        "reconsume_times": stored.reconsume_times,
        "flag": stored.flag,
        "system_flag": stored.system_flag,
        "system_properties": {name: value for name, value in everything.items() if name in SYSTEM_NAMES},
    }


names = st.sampled_from([*sorted(SYSTEM_NAMES)[:8], "TAGS", "KEYS", "UNIQ_KEY", "RETRY_TOPIC"]) | st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=8
)
values = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=12)
stored_properties = st.dictionaries(names, values, max_size=6).map(
    lambda given: encode_properties(given).encode()
) | st.binary(max_size=40)
records = st.builds(
    record,
    st.binary(max_size=64),
    stored_properties,
    topic=st.sampled_from((b"orders", b"%RETRY%g", b"\xff\xfe", b"")),
    queue_id=st.integers(-(2**31), 2**31 - 1) | st.just(3),
    queue_offset=st.integers(-(2**63), 2**63 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    v6=st.booleans(),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
)


def test_bodies_past_the_inflation_limit_wait_for_the_next_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "INFLATED_TOGETHER_BYTES", 2500)
    small = zlib.compress(bytes(1000))
    stored = [
        record(
            b"plain" if number % 2 else small,
            queue_offset=number,
            system_flag=0 if number % 2 else COMPRESSED,
        )
        for number in range(10)
    ]
    stored[6] = record(b"broken", queue_offset=6, system_flag=COMPRESSED)

    async def answer(_: str, command: PullMessage, **__: object) -> Reply:
        header = {"suggestWhichBrokerId": "0", "nextBeginOffset": "10", "minOffset": "0", "maxOffset": "10"}
        return Reply(0, None, header, b"".join(stored[command.queue_offset :]))

    session = Session("127.0.0.1:1")
    session.routes._brokers = {QUEUE.broker: {0: "127.0.0.1:2"}}
    session.call = answer  # type: ignore[method-assign,assignment]
    requests = pulling.PullRequests(session, "g", carries_subscription=False)

    async def pull(queue_offset: int) -> tuple[list[int], list[int], int]:
        pull = await requests.pull(QUEUE, queue_offset, Subscription.of("orders"), 32)
        readable = [message.queue_offset for message in pull.messages]
        return readable, [message.queue_offset for message, _ in pull.unreadable], pull.next_offset

    assert asyncio.run(pull(0)) == ([0, 1, 2, 3, 4, 5], [], 6)
    assert asyncio.run(pull(6)) == ([7], [6], 8)
    assert asyncio.run(pull(8)) == ([8, 9], [], 10)


@given(st.lists(records, max_size=4))
def test_a_message_read_when_asked_is_the_one_read_at_once(pulled: list[bytes]) -> None:
    data = b"".join(pulled)
    messages, compressed = decode_messages(data, QUEUE)
    assert compressed == []
    for message, stored in zip(messages, decode_records(data), strict=True):
        expected = read_at_once(stored, "broker-a")
        assert {name: getattr(message, name) for name in FIELDS} == expected
        assert message.body_size == len(expected["body"])
        made = metaq.Message(**expected)
        assert message == made
        assert hash(message) == hash(made)
        assert pickle.loads(pickle.dumps(message)) == message
        assert copy.copy(message) == message


@given(st.binary(max_size=300) | st.lists(records, min_size=1, max_size=3).map(b"".join), st.data())
def test_no_bytes_of_a_broker_can_do_more_than_be_refused(data: bytes, draw: st.DataObject) -> None:
    """Truncated records and records with one changed byte, such as wrong lengths and hosts."""
    if data and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes((draw.draw(st.integers(0, 255)),)) + data[at + 1 :]
    if data and draw.draw(st.booleans()):
        data = data[: draw.draw(st.integers(0, len(data) - 1))]
    try:
        messages, _ = decode_messages(data, QUEUE, tags=draw.draw(st.none() | st.just({"A"})))
    except FrameError:
        with pytest.raises(FrameError):
            decode_records(data)
        return
    for message in messages:
        try:
            repr(message), message == message, [getattr(message, name) for name in FIELDS]
        except UnreadableBody:
            assert message.system_flag & COMPRESSED


def test_tags_are_compared_themselves() -> None:
    tagged = [
        record(queue_offset=n, properties=p) for n, p in enumerate((b"TAGS\x01A\x02", b"", b"TAGS\x01Aa"))
    ]
    offsets = [message.queue_offset for message in decode_messages(b"".join(tagged), QUEUE, tags={"A"})[0]]
    assert offsets == [0]
    assert len(decode_messages(b"".join(tagged), QUEUE, tags=frozenset())[0]) == 3


def test_the_first_topic_is_shown_only_where_asked() -> None:
    data = record(topic=b"%RETRY%g", properties=b"RETRY_TOPIC\x01orders\x02")
    (message,), _ = decode_messages(data, Queue("%RETRY%g", "b", 3))
    assert (message.topic, message.queue) == ("orders", Queue("%RETRY%g", "b", 3))
    (message,), _ = decode_messages(data, Queue("%RETRY%g", "b", 3), shows_first_topic=False)
    assert message.topic == "%RETRY%g"


def test_a_queue_that_is_the_pulls_is_the_same_object() -> None:
    (message,), _ = decode_messages(record(), QUEUE)
    assert message.queue is QUEUE
    assert message.body is message.body


def test_compressed_bodies_are_inflated_or_told_of() -> None:
    good = record(zlib.compress(b"hello" * 100), system_flag=COMPRESSED, queue_offset=1)
    bad = record(b"no zlib", system_flag=COMPRESSED, queue_offset=2)
    messages, compressed = decode_messages(good + record(queue_offset=3) + bad, QUEUE)
    assert [message.queue_offset for message in compressed] == [1, 2]
    ((unreadable, problem),) = find_unreadable(compressed)
    assert unreadable.queue_offset == 2
    assert "damaged" in str(problem)
    assert messages[0].body == b"hello" * 100
    assert messages[0].body_size == 500
    # Nothing is decompressed, also if it cannot be.
    assert messages[0].stored_body == (zlib.compress(b"hello" * 100), COMPRESSED)
    assert messages[2].stored_body == (b"no zlib", COMPRESSED)
    # A changed copy has its body as it was read, and the flag of the message that was received.
    changed = messages[0].__replace__(reconsume_times=1)
    assert (changed.system_flag, changed.stored_body) == (COMPRESSED, (b"hello" * 100, 0))
    with pytest.raises(UnreadableBody):
        _ = messages[2].body


def test_changes_make_another_message() -> None:
    (message,), _ = decode_messages(record(), QUEUE)
    again = message.__replace__(reconsume_times=5)
    assert (again.reconsume_times, message.reconsume_times) == (5, 0)
    assert again != message
    assert again.__replace__(reconsume_times=0) == message
    with pytest.raises(TypeError, match="no colour"):
        message.__replace__(colour="red")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (((), {}), "needs a topic"),
        ((("t",), {}), "needs a body"),
        ((("t", b"x"), {"topic": "u"}), "given twice"),
        ((("t", b"x"), {"colour": "red"}), "no colour"),
        ((("t", b"x", *(None,) * 17), {}), "at most 18"),
    ],
)
def test_a_message_that_cannot_be_made(given: tuple[tuple[Any, ...], Mapping[str, Any]], why: str) -> None:
    arguments, named = given
    with pytest.raises(TypeError, match=why):
        metaq.Message(*arguments, **named)


def test_a_made_message_has_defaults_and_a_short_text() -> None:
    message = metaq.Message("t", b"x")
    assert message.properties == MappingProxyType({})
    assert (message.tag, message.keys, message.queue, message.queue_offset) == (None, (), None, -1)
    assert repr(message) == (
        "Message(topic='t', tag=None, keys=(), properties=mappingproxy({}), id='', offset_id='', queue=None,"
        " queue_offset=-1, born_at=0, stored_at=0, reconsume_times=0)"
    )
    match message:
        case metaq.Message(topic, body):
            assert (topic, body) == ("t", b"x")
    with pytest.raises(TypeError):
        _ = message < message


def test_times_are_datetimes_beside_milliseconds() -> None:
    message = metaq.Message("t", b"x", born_at=1_700_000_000_123, stored_at=1_700_000_000_456)
    assert message.born_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert message.stored_time - message.born_time == timedelta(milliseconds=333)
    with pytest.raises(ValueError, match="is not a time"):
        _ = metaq.Message("t", b"x", born_at=2**62).born_time


def test_the_queues_of_a_consumer_together_inflate_within_its_limit() -> None:
    """A kilobyte may become a megabyte, and each queue may have such a message."""
    limit = 2_000_000
    options = ConsumerOptions("g", (Subscription.of("orders"),), limits=Limits(bytes_max=limit))
    bomb = zlib.compress(bytes(1_000_000))
    body = record(bomb, system_flag=COMPRESSED, queue_offset=0)
    fields = Pulled(suggest_which_broker_id=0, next_begin_offset=1, min_offset=0, max_offset=1).to_fields()

    async def scenario() -> None:
        session: Any = Session("127.0.0.1:1")
        asked: set[int] = set()

        async def call(address: str, command: PullMessage, **_: object) -> Reply:
            asked.add(command.queue_id)
            if command.queue_offset:
                await asyncio.Event().wait()
            return Reply(0, None, fields, body)

        session.call = call
        prefetch = Prefetch(options)
        prefetch.start()
        committed: Any = None
        loops = PullLoops(session, options, {"orders": options.subscriptions[0]}, prefetch, committed)
        for number in range(16):
            loops.begin(Queue("orders", "127.0.0.1:2", number), 0, 0.0)
        await until(lambda: len(asked) == 16)
        taken = 0
        while taken < 16:
            assert prefetch.buffered_bytes <= limit + 1_000_000
            found = prefetch.take_now(1)
            if found is None:
                await asyncio.sleep(0.01)
                continue
            buffer, messages = found
            prefetch.settle(buffer, messages)
            taken += len(messages)
        await loops.end()

    run(scenario)
