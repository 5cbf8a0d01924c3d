"""Long bodies: none is read on the event loop, and none that Java's dialect makes slow to read is long."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from metaq.protocol import java_json
from metaq.protocol.bodies import ConsumerData, GetConsumerStatusBody, HeartbeatData, SubscriptionData
from metaq.protocol.command import LOOP_BYTES_MAX, Command, commands
from metaq.protocol.commands.clients import (
    GetConsumerListByGroup,
    GetConsumerStatus,
    HeartBeat,
)
from metaq.protocol.commands.cluster import QueryDataVersion
from metaq.protocol.dispatch import Response
from metaq.settings import MIB
from tests.support.broker_cluster import Client, broker_options, connected, started_broker, started_nameserver
from tests.support.fake_request import FakeRequest
from tests.support.patient import Connection
from tests.support.waiting import run

INVALID_PARAMETER = 29
LOOP = threading.get_ident()


def java_body(size_bytes: int) -> bytes:
    """A body that only the tolerant reader can read."""
    return b'{"clientID":"a","z":{' + b"1:1," * ((size_bytes - 28) // 4) + b"1:1}}"


class Readings:
    """Which thread has read how many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded: list[tuple[int, int]] = []
        self.tolerated: list[tuple[int, int]] = []
        decode, standard = java_json.decode, java_json.standard

        def counted_decode(data: bytes, kind: Any, **limits: int) -> Any:
            self.decoded.append((threading.get_ident(), len(data)))
            return decode(data, kind, **limits)

        def counted_standard(data: bytes) -> bytes:
            self.tolerated.append((threading.get_ident(), len(data)))
            return standard(data)

        monkeypatch.setattr(java_json, "decode", counted_decode)
        monkeypatch.setattr(java_json, "standard", counted_standard)

    def on_loop(self) -> int:
        """The longest body that was read on the event loop."""
        return max((size for thread, size in self.decoded + self.tolerated if thread == LOOP), default=0)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    return Readings(monkeypatch)


def long_commands(to: str) -> list[type[Command]]:
    return [kind for kind in commands() if kind.to == to and not kind.hot and kind.code > 0]


def fields_of(kind: type[Command]) -> Command:
    """A command with something in each required field."""
    texts = dict.fromkeys(kind.__struct_encode_fields__, "1")
    for name in ("commit", "force", "compressed"):
        texts.pop(name, None)
    if "commit" in kind.__struct_fields__:
        texts["commit"] = "false"
    texts = {name: "127.0.0.1:1" if name.endswith("Addr") else value for name, value in texts.items()}
    for name in kind.__struct_fields__:
        if name in ("is_force", "jstack_enable", "unit_mode", "readable", "order", "compressed"):
            texts.pop(kind.__struct_encode_fields__[kind.__struct_fields__.index(name)], None)
    return kind.parse(texts)


@pytest.mark.parametrize("to", ["broker", "nameserver"])
def test_no_request_is_read_on_the_event_loop_past_32_kib(
    tmp_path: Path, readings: Readings, to: str
) -> None:
    async def scenario() -> None:
        kinds = long_commands(to)
        assert len(kinds) > 15

        async def ask(address: str) -> None:
            connection = await Connection.open(address)
            try:
                for kind in kinds:
                    for size in {LOOP_BYTES_MAX - 64, LOOP_BYTES_MAX + 64, min(kind.body_bytes_max, MIB)}:
                        body = java_body(size)
                        await connection.call(fields_of(kind), body, timeout=60)
            finally:
                await connection.close()

        if to == "broker":
            options = broker_options(tmp_path, client_answer_timeout_s=0.1, client_status_timeout_s=0.1)
            async with started_broker(options) as broker:
                await ask(broker.address)
        else:
            async with started_nameserver() as nameserver:
                await ask(nameserver.address)

    run(scenario)
    assert readings.decoded
    assert 0 < readings.on_loop() <= LOOP_BYTES_MAX
    assert max(size for _, size in readings.tolerated) <= java_json.TOLERANT_BYTES_MAX


def test_long_heartbeats_in_javas_dialect_cost_nothing(tmp_path: Path, readings: Readings) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as healthy:
            async with connected(broker.address, "stranger") as stranger:
                body = java_body(MIB)
                asked = [stranger.connection.call(HeartBeat(), body, timeout=60) for _ in range(10)]
                replies = await asyncio.gather(*asked)
                assert {reply.code for reply in replies} <= {INVALID_PARAMETER, 2}
                assert any("262144" in (reply.remark or "") for reply in replies)
                # One that is short enough is read, on a thread.
                assert (await stranger.connection.call(HeartBeat(), java_body(200_000))).code == 0
            await healthy.heartbeat("g", "orders")
            assert (await healthy.connection.call(GetConsumerListByGroup(consumer_group="g"))).code == 0

    run(scenario)
    assert [size for _, size in readings.tolerated] == [len(java_body(200_000))]
    assert readings.on_loop() <= LOOP_BYTES_MAX


def test_a_long_honest_heartbeat_is_taken(tmp_path: Path, readings: Readings) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            subscriptions = [SubscriptionData(topic=f"topic-{n}", sub_string="a||b") for n in range(500)]
            consumer = ConsumerData(group_name="g", subscription_data_set=subscriptions)
            body = HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()
            assert len(body) > LOOP_BYTES_MAX
            assert (await client.connection.call(HeartBeat(), body)).code == 0
            group = broker.node.clients.consumer_group("g")
            assert group is not None and len(group.subscriptions) == 500

    run(scenario)
    assert readings.on_loop() <= LOOP_BYTES_MAX


def test_a_heartbeat_of_a_client_that_has_left_is_not_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            subscriptions = [SubscriptionData(topic=f"topic-{n}") for n in range(900)]
            consumer = ConsumerData(group_name="g", subscription_data_set=subscriptions)
            body = HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()
            hold = threading.Event()
            held = asyncio.ensure_future(broker.node.pools.reading.run(FakeRequest(), hold.wait))
            connection = await Connection.open(broker.address)
            beat = asyncio.ensure_future(connection.call(HeartBeat(), body))
            while not broker.node.clients._expected:
                await asyncio.sleep(0.01)
            await connection.close()
            while broker.node.clients._expected:
                await asyncio.sleep(0.01)
            hold.set()
            await asyncio.gather(held, beat, return_exceptions=True)
            await broker.node.pools.reading.run(FakeRequest(), lambda: None)
            assert broker.node.clients.consumer_group("g") is None

    run(scenario)


@pytest.mark.parametrize(
    ("queues", "is_taken"), [(10, True), (8_000, True), (60_000, False), (230_000, False)]
)
def test_the_answer_of_a_client_has_a_limit(
    tmp_path: Path, readings: Readings, queues: int, is_taken: bool
) -> None:
    rows = b",".join(b'{"brokerName":"b","queueId":%d,"topic":"orders"}:%d' % (n, n) for n in range(queues))
    body = b'{"messageQueueTable":{' + rows + b"}}"

    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as asker:
            connection = await Connection.open(
                broker.address, on_request=lambda frame: Response(body=body if frame.code == 221 else b"")
            )
            try:
                await Client(connection, "chatty", []).heartbeat("g", "orders")
                reply = await asker.connection.call(GetConsumerStatus(topic="orders", group="g"), timeout=60)
                table = GetConsumerStatusBody.decode(reply.check().body).consumer_table
                assert len(table.get("chatty", {})) == (queues if is_taken else 0)
            finally:
                await connection.close()

    run(scenario)
    # The asker reads its own answer on this thread, but not the client's.
    read_by_broker = [(thread, size) for thread, size in readings.decoded if size == len(body)]
    assert len(read_by_broker) == is_taken
    assert all(thread != LOOP for thread, _ in read_by_broker)


def test_a_name_server_refuses_a_long_version_unread(readings: Readings) -> None:
    async def scenario() -> None:
        async with started_nameserver() as nameserver:
            connection = await Connection.open(nameserver.address)
            try:
                command = QueryDataVersion("b", "127.0.0.1:1", "c", 0)
                for _ in range(24):
                    reply = await connection.call(command, java_body(508 * 1024))
                    assert (reply.code, "the limit is 32768" in (reply.remark or "")) == (29, True)
            finally:
                await connection.close()

    run(scenario)
    assert readings.decoded == []
