"""A message of Java's read by Python and one of Python's read by Java, for everything a message can do.

Both sides are clients of the same brokers, ours or Apache's. What is sent once and read once stands in the
tables of the first two tests; what takes more than one step has a test of its own, with both directions.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import metaq
from metaq.client.producer.sync_producer import Producer
from tests.interop.clients import (
    HEARTBEAT_INTERVAL_MS,
    Client,
    Clients,
    Message,
    PushConsumer,
    binary,
    bodies,
    by_queue,
    unique,
    wait_for_bodies,
)
from tests.interop.driver import ClientError
from tests.interop.kinds import java_id
from tests.interop.test_java_retry import dead_letters, wait_for_try
from tests.interop.test_java_timer import EARLY_MS
from tests.support.servers import uses_apache
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json")], ids=java_id, indirect=True, scope="session"
)

TIMEOUT_S = 90.0
TEXT = "grün, 漢字, 🙂"
LARGE = random.Random(5).randbytes(3 * 1024 * 1024)
KEYS = ["a", "order-17", "Straße", "漢字🙂", "polygenelubricants", "z" * 100]
"""The hash of the fifth text is the smallest integer, which has no absolute value."""


class Reader:
    """A handler of our client that keeps its messages, and fails as often as a message says."""

    def __init__(self, client: metaq.Client, topic: str, group: str | None = None, **options: Any) -> None:
        self.got: list[metaq.Message] = []
        self._lock = threading.Lock()
        self.group = group or unique("G")
        self.consumer = client.consumer(topic, group=self.group, start="earliest", **options)(self._take)

    def _take(self, message: metaq.Message) -> None:
        with self._lock:
            self.got.append(message)
        if message.reconsume_times < int(message.properties.get("fails", "0")):
            raise metaq.Retry(after=1)

    def wait_for(self, *wanted: str) -> dict[str, metaq.Message]:
        """Waits for these bodies and returns their messages by body."""

        def found() -> dict[str, metaq.Message]:
            with self._lock:
                return {body_of(message): message for message in self.got}

        return eventually(
            found, lambda found: set(wanted) <= found.keys(), TIMEOUT_S, f"{sorted(wanted)} for Python"
        )


def body_of(message: metaq.Message) -> str:
    """Returns the body as the Java program reports it: a long one by its digest."""
    if len(message.body) > 1024:
        return hashlib.sha256(message.body).hexdigest()
    return message.body.decode()


@pytest.fixture
def python(java: Clients) -> Iterator[metaq.Client]:
    with metaq.Client(java.cluster.namesrv) as client:
        yield client


@pytest.fixture
def producer(python: metaq.Client) -> Iterator[Producer]:
    with python.producer(unique("P")) as producer:
        yield producer


def has(**wanted: object) -> Callable[[metaq.Message], None]:
    def check(message: metaq.Message) -> None:
        assert {name: getattr(message, name) for name in wanted} == wanted

    return check


def stored_after(delay_ms: int) -> Callable[[metaq.Message], None]:
    def check(message: metaq.Message) -> None:
        assert message.stored_at + EARLY_MS >= message.born_at + delay_ms

    return check


def in_queue(number: int) -> Callable[[metaq.Message], None]:
    def check(message: metaq.Message) -> None:
        assert message.queue is not None
        assert message.queue.id == number

    return check


SENT_BY_JAVA: list[tuple[str, Message, Callable[[metaq.Message], None]]] = [
    ("sync", {"body": "plain"}, has(tag=None, keys=(), properties={}, reconsume_times=0)),
    (
        "sync",
        {"body": "dressed", "tags": "t", "keys": "k1 k2", "properties": {"n": "1", "farbe": TEXT}, "flag": 7},
        has(tag="t", keys=("k1", "k2"), properties={"n": "1", "farbe": TEXT}, flag=7),
    ),
    ("sync", {"body": TEXT, "tags": "größe", "keys": "schlüssel"}, has(tag="größe", keys=("schlüssel",))),
    ("sync", binary(LARGE), has(body=LARGE)),
    ("sync", {"body": "zipped " * 100_000}, has(body=b"zipped " * 100_000)),
    ("async", {"body": "async"}, has(tag=None)),
    ("oneway", {"body": "oneway"}, has(tag=None)),
    ("sync", {"body": "level", "delay_level": 1}, stored_after(1_000)),
    ("timed", {"body": "timed", "timing": "setDelayTimeMs", "time": 1_200}, stored_after(1_200)),
    ("sync", {"body": "urgent", "priority": 2}, in_queue(2)),
    (
        "batch",
        {"body": "batched", "tags": "t", "properties": {"n": TEXT}},
        has(tag="t", properties={"n": TEXT}),
    ),
]


def test_what_java_sends_is_read_by_python(java: Clients, python: metaq.Client) -> None:
    topic = java.topic(queues=4)
    reader = Reader(python, topic)
    sender = java.producer(compress_over_bytes=4096)
    sent: dict[str, str] = {}
    names = []
    for how, message, _ in SENT_BY_JAVA:
        body = message.get("body", "")
        names.append(body if 0 < len(body) <= 1024 else hashlib.sha256(body.encode() or LARGE).hexdigest())
        if how == "timed":
            (result,) = sender.call("send_timed", topic=topic, messages=[message])
        elif how == "batch":
            result = sender.send(topic, [message, {"body": "batched too"}], how="batch")
        else:
            (result,) = sender.send(topic, [message], how=how)
        if result is not None:
            sent[names[-1]] = result["id"].split(",")[0]
    got = reader.wait_for(*names, "batched too")
    for name, (_, _, check) in zip(names, SENT_BY_JAVA, strict=True):
        check(got[name])
        assert sent.get(name, got[name].id) == got[name].id
    assert len(reader.got) == len(names) + 1
    # Java itself refuses an empty body before it sends anything.
    with pytest.raises(ClientError, match="body length is zero"):
        sender.send(topic, [{"body": ""}])


SENT_BY_PYTHON: list[tuple[str, bytes, dict[str, Any], dict[str, Any]]] = [
    ("send", b"plain", {}, {"tags": None, "keys": None, "reconsume_times": 0}),
    (
        "send",
        b"dressed",
        {"tag": "t", "keys": ["k1", "k2"], "properties": {"n": "1", "farbe": TEXT}},
        {"tags": "t", "keys": "k1 k2", "properties": {"n": "1", "farbe": TEXT}},
    ),
    ("send", TEXT.encode(), {"tag": "größe", "keys": ["schlüssel"]}, {"tags": "größe", "keys": "schlüssel"}),
    # Apache's broker fails on it with a NullPointerException.
    *(() if uses_apache() else (("send", b"", {}, {"body_bytes": 0}),)),
    ("send", LARGE, {}, {"body_bytes": len(LARGE)}),
    ("send", b"zipped " * 100_000, {}, {"body_bytes": 700_000}),
    ("send_soon", b"soon", {"tag": "t"}, {"tags": "t"}),
    ("send_oneway", b"oneway", {}, {"tags": None}),
    ("send", b"delayed", {"delay": timedelta(milliseconds=1_200)}, {"late_ms": 1_200}),
    ("send", b"level", {"delay": 1}, {"late_ms": 1_000}),
    ("send", b"urgent", {"priority": 2}, {"queue_id": 2}),
]


def test_what_python_sends_is_read_by_java(java: Clients, producer: Producer) -> None:
    topic = java.topic(queues=4)
    consumer = java.push_consumer(topic)
    wanted: dict[str, dict[str, Any]] = {}
    for method, body, options, expected in SENT_BY_PYTHON:
        result = getattr(producer, method)(topic, body, **options)
        if method == "send_soon":
            result = result.result(TIMEOUT_S)
        digest = hashlib.sha256(body).hexdigest()
        wanted[digest] = expected if result is None else {**expected, "id": result.id}
    moment = datetime.now(UTC) + timedelta(seconds=1.5)
    producer.send(topic, b"moment", deliver_at=moment)
    wanted[hashlib.sha256(b"moment").hexdigest()] = {"late_ms": 1_000}
    batch = [metaq.Message(topic, b"batch-%d" % n, tag="t", properties={"n": TEXT}) for n in range(3)]
    for message, result in zip(batch, producer.send_many(batch), strict=True):
        wanted[hashlib.sha256(message.body).hexdigest()] = {
            "tags": "t",
            "properties": {"n": TEXT},
            "id": result.id,
        }

    def found() -> dict[str, Message]:
        return {message["body_sha256"]: message for message in consumer.messages}

    java.driver.wait_for(lambda _: wanted.keys() <= found().keys(), TIMEOUT_S, "every message for Java")
    for digest, expected in wanted.items():
        told = found()[digest]
        late_ms = expected.pop("late_ms", 0)
        assert told["store_timestamp_ms"] + EARLY_MS >= told["born_timestamp_ms"] + late_ms
        properties = expected.pop("properties", {})
        assert {name: told["properties"][name] for name in properties} == properties
        assert {name: told[name] for name in expected} == expected
    assert len(consumer.messages) == len(wanted)


def test_the_same_key_chooses_the_same_queue(java: Clients, producer: Producer) -> None:
    topic = java.topic(queues=5)
    theirs = java.producer().send(topic, [{"body": key, "order_key": key} for key in KEYS], how="hashed")
    for key, their in zip(KEYS, theirs, strict=True):
        ours = producer.send(topic, b"x", key=key).queue
        assert (ours.broker, ours.id) == (their["broker"], their["queue_id"]), key
        soon = producer.send_soon(topic, b"x", key=key).result(TIMEOUT_S).queue
        assert soon == ours


def test_order_is_kept_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics = [java.topic(queues=2) for _ in range(2)]
    names = [f"{number}" for number in range(40)]
    java.producer().send(
        topics[0], [{"body": name, "order_key": f"k{int(name) % 4}"} for name in names], how="hashed"
    )
    for name in names:
        producer.send(topics[1], name.encode(), key=f"k{int(name) % 4}")
    ours = Reader(python, topics[0], ordered=True)
    theirs = java.push_consumer(topics[1], orderly=True)
    ours.wait_for(*names)
    wait_for_bodies([theirs], names)
    seen = [
        {"broker": m.queue.broker, "queue_id": m.queue.id, "body": body_of(m)} for m in ours.got if m.queue
    ]
    for read in (seen, theirs.messages):
        queues = by_queue(read)
        assert len(queues) == 2
        for messages in queues.values():
            numbers = [int(message["body"]) for message in messages]
            assert numbers == sorted(numbers)


def test_tags_with_one_hash_are_told_apart(java: Clients, python: metaq.Client, producer: Producer) -> None:
    """Brokers compare hashes, which are equal here; the client has to see that the tags differ."""
    topics = [java.topic(queues=1) for _ in range(2)]
    java.producer().send(topics[0], [{"body": tag, "tags": tag} for tag in ("BB", "Aa", "c")])
    for tag in ("BB", "Aa", "c"):
        producer.send(topics[1], tag.encode(), tag=tag)
    ours = Reader(python, topics[0], tags=["Aa", "c"])
    theirs = java.push_consumer(topics[1], expression="Aa || c")
    ours.wait_for("Aa", "c")
    wait_for_bodies([theirs], ["Aa", "c"])
    assert sorted(map(body_of, ours.got)) == sorted(bodies(theirs.messages)) == ["Aa", "c"]


def test_sql_chooses_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics = [java.topic(queues=1) for _ in range(2)]
    properties = [{"n": f"{n}", "color": color} for n in range(6) for color in ("red", "it's green")]
    java.producer().send(
        topics[0],
        [{"body": f"{each['n']}-{each['color']}", "properties": each} for each in properties],
    )
    for each in properties:
        producer.send(topics[1], f"{each['n']}-{each['color']}".encode(), properties=each)
    expression = "n BETWEEN 2 AND 3 AND color IN ('it''s green') OR n > 4"
    wanted = ["2-it's green", "3-it's green", "5-it's green", "5-red"]
    ours = Reader(python, topics[0], sql=expression)
    theirs = java.push_consumer(topics[1], sql=expression)
    ours.wait_for(*wanted)
    wait_for_bodies([theirs], wanted)
    assert sorted(map(body_of, ours.got)) == sorted(bodies(theirs.messages)) == wanted


def test_transactions_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics = [java.topic(queues=2) for _ in range(2)]
    ours, theirs = Reader(python, topics[0]), java.push_consumer(topics[1])
    java.transaction_producer().send(
        topics[0],
        [
            {"body": local, "tags": "t", "keys": "k", "properties": {"local": local, "farbe": TEXT}}
            for local in ("rollback", "commit")
        ],
    )
    producer.check(lambda message: None)
    with pytest.raises(ZeroDivisionError), producer.transaction(topics[1], b"rollback"):
        raise ZeroDivisionError
    with producer.transaction(topics[1], b"commit", tag="t", keys=["k"], properties={"farbe": TEXT}) as sent:
        # A message that is sent later to each queue arrives; the open transaction does not.
        for number in range(2):
            queue = metaq.Queue(topics[1], "broker-a", number)
            producer.send(topics[1], f"plain {number}".encode(), queue=queue)
        assert len(wait_for_bodies([theirs], ["plain 0", "plain 1"])) == 2
    (message,) = ours.wait_for("commit").values()
    assert (message.tag, message.keys, message.properties["farbe"]) == ("t", ("k",), TEXT)
    *_, told = wait_for_bodies([theirs], ["commit"])
    assert (told["tags"], told["keys"], told["properties"]["farbe"]) == ("t", "k", TEXT)
    assert told["id"] == sent.id
    assert (len(ours.got), len(theirs.messages)) == (1, 3)


def test_requests_and_replies_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics = [java.topic(queues=1) for _ in range(2)]
    arguments = {
        "namesrv": java.cluster.namesrv,
        "group": unique("R"),
        "topic": topics[0],
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
    }
    theirs = Client(java.driver, "replier", arguments)
    reply = producer.request(topics[0], f"question {TEXT}".encode(), timeout=TIMEOUT_S)
    assert reply.body.decode() == f"re:question {TEXT}"
    theirs.stop_soon()

    @python.consumer(topics[1], group=unique("G"), start="earliest")
    def answer(message: metaq.Message) -> None:
        if message.body == b"by the producer":
            producer.reply(message, b"re:" + message.body)
        else:
            message.reply(b"re:" + message.body)

    asking = java.producer()
    for body in (f"question {TEXT}", "by the producer"):
        asked = asking.call("request", topic=topics[1], body=body, timeout_ms=20_000)
        assert asked["body"] == f"re:{body}"
    answer.close()


def test_java_asks_a_loop_and_a_coroutine_function(java: Clients) -> None:
    topics = [java.topic(queues=1) for _ in range(2)]
    is_ready = threading.Event()

    async def main() -> None:
        async with metaq.aio.Client(java.cluster.namesrv) as client:

            @client.consumer(topics[0], group=unique("G"), start="earliest")
            async def answer(message: metaq.Message) -> None:
                await message.reply(b"handler:" + message.body)

            is_ready.set()
            loop = client.subscribe(topics[1], group=unique("G"), start="earliest")
            async for message in loop:
                async with message.process():
                    await message.reply(b"loop:" + message.body)
                if message.body == b"last":
                    break

    answering = threading.Thread(target=asyncio.run, args=(main(),))
    answering.start()
    assert is_ready.wait(TIMEOUT_S)
    asking = java.producer()
    for topic, body, expected in (
        (topics[0], TEXT, f"handler:{TEXT}"),
        (topics[1], TEXT, f"loop:{TEXT}"),
        (topics[1], "last", "loop:last"),
    ):
        asked = asking.call("request", topic=topic, body=body, timeout_ms=60_000)
        assert asked["body"] == expected
    answering.join(TIMEOUT_S)
    assert not answering.is_alive()


def test_retries_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics, groups = [java.topic(queues=1) for _ in range(2)], [java.retrying_group() for _ in range(2)]
    java.producer().send(topics[0], [{"body": "again", "keys": "k", "properties": {"fails": "2"}}])
    sent = producer.send(topics[1], b"again", keys=["k"], properties={"fails": "2"})
    ours = Reader(python, topics[0], groups[0])
    theirs = java.push_consumer(topics[1], group=groups[1], retry_level=1)
    last = wait_for_try(theirs, "again", 2)
    assert (last["topic"], last["keys"], last["id"]) == (topics[1], "k", sent.id)
    eventually(lambda: len(ours.got), lambda count: count >= 3, TIMEOUT_S, "two more tries for Python")
    assert [m.reconsume_times for m in ours.got] == [0, 1, 2]
    assert {(m.topic, m.keys, m.id) for m in ours.got} == {(topics[0], ("k",), ours.got[0].id)}
    # Members of one group in turn: a message that Python failed at comes to Java, with the count.
    both = java.retrying_group()
    topic = java.topic(queues=1)
    first = Reader(python, topic, both)
    producer.send(topic, b"handed on", properties={"fails": "1"})
    first.wait_for("handed on")
    first.consumer.close()
    second = java.push_consumer(topic, group=both)
    assert wait_for_try(second, "handed on", 1)["topic"] == topic


def test_dead_letters_both_ways(java: Clients, python: metaq.Client, producer: Producer) -> None:
    topics, groups = [java.topic(queues=1) for _ in range(2)], [java.retrying_group() for _ in range(2)]

    @python.consumer(topics[0], group=groups[0], start="earliest")
    def reject(message: metaq.Message) -> None:
        raise metaq.Reject("not today")

    java.producer().send(topics[0], [{"body": "dead", "keys": "k", "properties": {"farbe": TEXT}}])
    (letter,) = dead_letters(java, groups[0], 1)
    assert (letter["body"], letter["keys"], letter["properties"]["farbe"]) == ("dead", "k", TEXT)
    reject.close()

    # In Java a negative level means: never again.
    theirs = java.push_consumer(topics[1], group=groups[1], retry_level=-1)
    sent = producer.send(topics[1], b"dead", keys=["k"], properties={"fails": "99", "farbe": TEXT})
    wait_for_bodies([theirs], ["dead"])
    assert len(dead_letters(java, groups[1], 1)) == 1
    with python.puller(start="earliest") as puller:
        puller.assign(f"%DLQ%{groups[1]}")
        (found,) = puller.poll(TIMEOUT_S)
    assert (found.body, found.keys, found.properties["farbe"], found.id) == (b"dead", ("k",), TEXT, sent.id)


def test_broadcast_reaches_everybody_both_ways(
    java: Clients, python: metaq.Client, producer: Producer, tmp_path: Any
) -> None:
    topics, groups = [java.topic(queues=2) for _ in range(2)], [unique("G") for _ in range(2)]
    theirs: list[PushConsumer] = [
        java.push_consumer(topics[1], group=groups[1], model="BROADCASTING") for _ in range(2)
    ]
    with metaq.Client(java.cluster.namesrv) as other:
        ours = [
            Reader(client, topics[0], groups[0], mode="broadcast", offsets_file=tmp_path / f"{number}.json")
            for number, client in enumerate((python, other))
        ]
        names = [f"{number}" for number in range(10)]
        java.producer().send(topics[0], [{"body": name} for name in names])
        for name in names:
            producer.send(topics[1], name.encode())
        for reader in ours:
            reader.wait_for(*names)
            assert Counter(map(body_of, reader.got)) == Counter(names)
        for consumer in theirs:
            assert Counter(bodies(wait_for_bodies([consumer], names))) == Counter(names)


def test_a_namespace_of_java_is_a_name_for_python(
    java: Clients, python: metaq.Client, producer: Producer
) -> None:
    """Our client has no namespaces: it uses the name that the topic has on the broker."""
    namespace, topic = unique("N"), unique("T")
    full = f"{namespace}%{topic}"
    for broker in java.cluster.brokers.values():
        java.admin.call("create_topic", topic=full, queues=1, address=broker.address)
    java.wait_for_route(full)
    ours = Reader(python, full)
    theirs = java.push_consumer(topic, namespace=namespace)
    java.producer(namespace=namespace).send(topic, [{"body": "from java"}])
    producer.send(full, b"from python")
    ours.wait_for("from java", "from python")
    found = wait_for_bodies([theirs], ["from java", "from python"])
    assert {message["topic"] for message in found} == {topic}
