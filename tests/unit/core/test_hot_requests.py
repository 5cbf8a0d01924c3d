"""The requests that the data plane answers by itself, over real sockets and a real store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaq import _core
from metaq.settings import (
    BrokerSettings,
    GroupPolicy,
    ServerSettings,
    StoreSettings,
    SubscriptionPolicy,
    TopicPolicy,
)
from tests.support.broker_cluster import small_store
from tests.support.wire import Wire, batch, properties, pull_fields, send_fields

MIB = 1024 * 1024


@dataclasses.dataclass
class Plane:
    """A store, and the listener and the plane over it."""

    store: _core.Store
    listener: _core.Listener
    plane: _core.BrokerPlane

    def connect(self, *, binary: bool = False) -> Wire:
        return Wire(self.listener.port, binary=binary)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Callable[..., Plane]]:
    planes: list[Plane] = []

    def make(flush: str = "sync", **broker: object) -> Plane:
        settings = small_store(tmp_path / "store", flush)  # type: ignore[arg-type]
        store = _core.Store(settings, _core.Clock())
        listener = _core.Listener(ServerSettings(host="127.0.0.1", port=0), serves_broker=True)
        plane = _core.BrokerPlane(
            listener,
            store,
            BrokerSettings("cluster", "broker-a", "127.0.0.1:0", **broker),  # type: ignore[arg-type]
        )
        plane.put_topics(
            [TopicPolicy("orders", 4, 4, 6), TopicPolicy("half", 1, 1, 6, client_writable=False)]
        )
        plane.put_groups([GroupPolicy("readers")])
        plane.start()
        listener.start()
        planes.append(Plane(store, listener, plane))
        return planes[-1]

    yield make
    for each in planes:
        each.plane.stop()
        each.listener.stop()
        each.store.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("binary", [False, True])
def test_a_sent_message_is_pulled(plane: Callable[..., Plane], flush: str, binary: bool) -> None:
    running = plane(flush)
    with running.connect(binary=binary) as wire:
        given = properties(TAGS="red", KEYS="k1 k2", UNIQ_KEY="U1", café="naïve")
        sent = wire.send("orders", b"hello", queue=2, properties=given)
        assert sent.code == 0, sent.remark
        assert (sent.fields["queueId"], sent.fields["queueOffset"]) == ("2", "0")
        assert (sent.fields["transactionId"], sent.fields["MSG_REGION"]) == ("U1", "DefaultRegion")
        got = wire.pull("orders", 0, queue=2)
        assert got.code == 0
        assert (got.fields["nextBeginOffset"], got.fields["maxOffset"]) == ("1", "1")
        (record,) = _core.decode_records(got.body)
        assert (record.topic, record.queue_id, record.queue_offset, record.body) == ("orders", 2, 0, b"hello")
        assert record.properties == {
            "TAGS": "red",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "U1",
            "café": "naïve",
            "CLUSTER": "cluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert record.message_id == sent.fields["msgId"]
        assert record.store_host == f"127.0.0.1:{running.listener.port}"
        assert running.store.record_at(record.physical_offset) == got.body


def test_pipelined_sends_are_answered_each_and_numbered_without_a_gap(plane: Callable[..., Plane]) -> None:
    with plane("sync").connect() as wire:
        asked = [wire.write(310, send_fields("orders"), b"%d" % number) for number in range(500)]
        answers = [wire.read() for _ in asked]
        assert {answer.opaque for answer in answers} == set(asked)
        assert {answer.code for answer in answers} == {0}
        assert sorted(int(answer.fields["queueOffset"]) for answer in answers) == list(range(500))
        bodies: list[bytes] = []
        while len(bodies) < 500:
            bodies += [record.body for record in _core.decode_records(wire.pull("orders", len(bodies)).body)]
        assert bodies == [b"%d" % number for number in range(500)]


def test_a_batch_is_stored_as_single_messages(plane: Callable[..., Plane]) -> None:
    with plane().connect() as wire:
        wire.send("orders", b"before")
        body = batch(b"one", b"two", b"three", properties=b"TAGS\x01t")
        sent = wire.call(320, send_fields("orders") | {"m": "true"}, body)
        assert sent.code == 0, sent.remark
        assert sent.fields["queueOffset"] == "1"
        records = _core.decode_records(wire.pull("orders", 1).body)
        assert [record.body for record in records] == [b"one", b"two", b"three"]
        assert [record.message_id for record in records] == sent.fields["msgId"].split(",")
        assert {record.properties["TAGS"] for record in records} == {"t"}


def test_a_held_pull_is_answered_when_its_queue_gets_a_message(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as consumer, running.connect() as producer:
        waiting = consumer.write(11, pull_fields("orders", 1, 0, suspend_ms=20_000))
        other = consumer.write(11, pull_fields("orders", 3, 0, suspend_ms=300))
        expired = consumer.read()
        assert (expired.opaque, expired.code) == (other, 19)
        producer.send("orders", b"wake", queue=0)
        producer.send("orders", b"up", queue=1)
        woken = consumer.read()
        assert (woken.opaque, woken.code) == (waiting, 0)
        assert [record.body for record in _core.decode_records(woken.body)] == [b"up"]


def test_a_held_pull_waits_for_the_tags_it_wants(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as consumer, running.connect() as producer:
        wanted = pull_fields("orders", 0, 0, suspend_ms=20_000) | {"subscription": "red || blue"}
        consumer.write(11, wanted)
        # A connection answers in order: once this comes back, the first pull is held.
        assert consumer.call(30, {"topic": "orders", "queueId": 0}).fields["offset"] == "0"
        producer.send("orders", b"no", properties=properties(TAGS="green"))
        producer.send("orders", b"yes", properties=properties(TAGS="blue"))
        woken = consumer.read()
        assert [record.body for record in _core.decode_records(woken.body)] == [b"yes"]
        assert woken.fields["nextBeginOffset"] == "2"


def test_pull_says_where_an_offset_outside_the_queue_should_go(plane: Callable[..., Plane]) -> None:
    with plane().connect() as wire:
        assert wire.pull("orders", 0).code == 19
        assert wire.pull("orders", 5).code == 21
        wire.send("orders", b"x")
        assert wire.pull("orders", 1).code == 19
        past = wire.pull("orders", 9)
        assert (past.code, past.fields["nextBeginOffset"]) == (21, "1")


def test_offsets_are_committed_and_read_back(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as wire:
        where: dict[str, object] = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
        assert wire.call(14, where | {"setZeroIfNotFound": "false"}).code == 22
        # Java's clients would ask for the end next, and a message that arrives first would be skipped.
        assert wire.call(14, where).fields["offset"] == "0"
        assert wire.call(14, where | {"topic": "none"}).code == 22
        wire.send("orders", b"x")
        assert wire.call(14, where).fields["offset"] == "0"
        assert wire.call(14, where | {"setZeroIfNotFound": "false"}).code == 22
        assert wire.call(15, where | {"commitOffset": 1}).code == 0
        assert wire.call(14, where).fields["offset"] == "1"
        assert running.plane.offsets() == {"orders@readers": {0: 1}}
        assert wire.call(15, where | {"commitOffset": 1, "topic": "none"}).code == 17
        assert wire.call(15, where | {"commitOffset": 1, "consumerGroup": "none"}).code == 26
        assert wire.call(15, where | {"commitOffset": -4}).code == 29
        assert wire.call(15, where | {"commitOffset": 2}).code == 29
        assert wire.call(15, where | {"commitOffset": 0, "queueId": 99}).code == 29
        wire.send("orders", b"y")
        for committed_offset, kept in ((2, "2"), (3, "2")):
            wire.call(11, pull_fields("orders", 0, 1) | {"sysFlag": 4 | 1, "commitOffset": committed_offset})
            assert wire.call(14, where).fields["offset"] == kept


def test_the_ends_of_a_queue_and_search_by_time(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as wire:
        for body in (b"a", b"b"):
            wire.send("orders", body)
        where: dict[str, object] = {"topic": "orders", "queueId": 0}
        assert wire.call(30, where).fields["offset"] == "2"
        assert wire.call(31, where).fields["offset"] == "0"
        assert wire.call(29, where | {"timestamp": 0}).fields["offset"] == "0"
        assert wire.call(29, where | {"timestamp": 9_999_999_999_999}).fields["offset"] == "2"
        stored_ms = running.store.store_time_ms("orders", 0, 0)
        assert wire.call(29, where | {"timestamp": stored_ms}).fields["offset"] == "0"


def test_a_refusal_of_the_broker_names_the_limit(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as wire:
        large = wire.send("orders", b"x" * (4 * MIB + 1))
        assert large.code == 13 and str(4 * MIB) in (large.remark or "")
        wordy = wire.send("orders", b"x", properties=properties(long="y" * 32_768))
        assert wordy.code == 13 and "32767" in (wordy.remark or "")
        outside = wire.send("orders", b"x", queue=4)
        assert outside.code == 29 and "4 queues" in (outside.remark or "")
        assert wire.send("half", b"x").code == 16
        timed = wire.send("orders", b"x", properties=properties(TIMER_DELAY_SEC="soon"))
        assert timed.code == 13 and "TIMER_DELAY_SEC" in (timed.remark or "")
        delayed_batch = batch(b"one", properties=b"DELAY\x013")
        assert wire.call(320, send_fields("orders") | {"m": "true"}, delayed_batch).code == 13
        assert wire.call(320, send_fields("orders") | {"m": "true"}, b"\x00\x00\x00\x05x").code == 13
        assert wire.pull("orders", 0, queue=9).code == 29
        assert wire.pull("none", 0).code == 17
        running.plane.set_permission(4)
        assert wire.send("orders", b"x").code == 16
        running.plane.set_permission(2)
        assert wire.pull("orders", 0).code == 16
        assert running.store.max_offset("orders", 0) == 0


def test_a_standing_subscription_must_be_known_and_filters_once_it_is_new_enough(
    plane: Callable[..., Plane],
) -> None:
    running = plane()
    with running.connect() as wire:
        for tag in ("red", "green", "red"):
            wire.send("orders", tag.encode(), properties=properties(TAGS=tag))
        assert wire.pull("orders", 0, sysFlag=0).code == 24
        wanted = SubscriptionPolicy("orders", 5, tag_codes=(_core.tag_code("red"),))
        running.plane.put_groups([GroupPolicy("readers", subscriptions=(wanted,))])
        newer = wire.pull("orders", 0, sysFlag=0, subVersion=6)
        assert [record.body for record in _core.decode_records(newer.body)] == [b"red", b"green", b"red"]
        got = wire.pull("orders", 0, sysFlag=0, subVersion=5)
        assert [record.body for record in _core.decode_records(got.body)] == [b"red", b"red"]
        nothing = wire.pull("orders", 1, sysFlag=0, subVersion=5, maxMsgNums=1)
        assert [record.queue_offset for record in _core.decode_records(nothing.body)] == [2]


def test_an_unknown_topic_or_group_comes_up_once_and_is_retried(plane: Callable[..., Plane]) -> None:
    running = plane()
    with running.connect() as wire:
        opaque = wire.write(310, send_fields("fresh"), b"first")
        (request,) = drain(running.listener)
        assert request.fields["b"] == "fresh"
        running.plane.put_topics([TopicPolicy("fresh", 1, 1, 6)])
        request.retry()
        answer = wire.read()
        assert (answer.opaque, answer.code, answer.fields["queueOffset"]) == (opaque, 0, "0")
        wire.write(310, send_fields("never"), b"")
        drain(running.listener)[0].retry()
        assert wire.read().code == 17
        wire.write(11, pull_fields("fresh", 0, 0) | {"consumerGroup": "new"})
        (request,) = drain(running.listener)
        running.plane.put_groups([GroupPolicy("new")])
        request.retry()
        assert [record.body for record in _core.decode_records(wire.read().body)] == [b"first"]


def test_a_message_without_a_unique_key_gets_one(plane: Callable[..., Plane]) -> None:
    with plane().connect() as wire:
        for _ in range(2):
            wire.send("orders", b"x", properties="A\x01b")
        records = _core.decode_records(wire.pull("orders", 0).body)
        keys = {record.properties["UNIQ_KEY"] for record in records}
        assert len(keys) == 2
        assert records[0].properties["A"] == "b"


def test_the_old_port_serves_the_same(plane: Callable[..., Plane], tmp_path: Path) -> None:
    store = _core.Store(StoreSettings(directory=str(tmp_path / "other")), _core.Clock())
    settings = ServerSettings(host="127.0.0.1", port=0, also_old_port=True)
    listener = _core.Listener(settings, serves_broker=True)
    serving = _core.BrokerPlane(listener, store, BrokerSettings("c", "b", "127.0.0.1:0"))
    serving.put_topics([TopicPolicy("orders", 1, 1, 6)])
    serving.start()
    listener.start()
    try:
        assert listener.old_port == listener.port - 2
        with Wire(listener.old_port) as wire:
            assert wire.send("orders", b"old").code == 0
    finally:
        serving.stop()
        listener.stop()
        store.close()


def test_figures_add_up_over_connections_and_a_wrong_name_is_an_error(plane: Callable[..., Plane]) -> None:
    running = plane()
    for _ in range(3):
        with running.connect() as wire:
            wire.send("orders", b"12345")
            wire.pull("orders", 0)
    figures = running.listener.figures()
    assert (figures.messages_in, figures.bytes_in) == (3, 15)
    assert figures.messages_out == 1 + 2 + 3
    with pytest.raises(AttributeError):
        _ = figures.message_in  # type: ignore[attr-defined]


def drain(listener: _core.Listener) -> list[_core.Request]:
    import select

    ready, _, _ = select.select([listener.fileno()], [], [], 60)
    assert ready
    return [event for event in listener.drain() if isinstance(event, _core.Request)]
