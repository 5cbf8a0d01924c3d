"""A broker and its name servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metaq._core import Clock, FrameDecoder, encode_frame
from metaq.broker import Broker
from metaq.broker.background import registration
from metaq.protocol.bodies import TopicRouteData
from metaq.protocol.routes import GetRouteInfoByTopic
from metaq.protocol.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from tests.support.broker_cluster import Client, broker_options, connected, started_broker, started_nameserver
from tests.support.processes import free_port
from tests.support.waiting import run, until


async def route(client: Client, topic: str) -> TopicRouteData | None:
    reply = await client.connection.call(GetRouteInfoByTopic(topic=topic))
    return TopicRouteData.decode(reply.body) if reply.code == 0 else None


async def route_appears(client: Client, topic: str) -> TopicRouteData:
    found = await until(lambda: route(client, topic))
    assert found is not None
    return found


def test_every_name_server_knows_the_broker_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as one, started_nameserver() as two:
            options = broker_options(tmp_path, one.address, two.address)
            async with connected(one.address) as ask_one, connected(two.address) as ask_two:
                async with started_broker(options) as broker:
                    for ask in (ask_one, ask_two):
                        found = await route(ask, "TBW102")
                        assert found is not None, "known when start returns"
                        assert found.broker_datas[0].broker_addrs == {0: broker.address}
                        assert await route(ask, "broker-a") is not None
                    async with connected(broker.address) as client:
                        command = UpdateAndCreateTopic(topic="orders", read_queue_nums=3, write_queue_nums=2)
                        (await client.connection.call(command)).check()
                        for ask in (ask_one, ask_two):
                            found = await route(ask, "orders")
                            assert found is not None, "known when the creation is answered"
                            queues = found.queue_datas[0]
                            assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 2, 6)
                for ask in (ask_one, ask_two):
                    assert await route(ask, "orders") is None, "unregistered at the stop"

    run(scenario)


def test_a_name_server_that_is_down_delays_nothing_and_is_found_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        async with started_nameserver() as up:
            options = broker_options(tmp_path, f"127.0.0.1:{port}", up.address)
            async with started_broker(options) as broker, connected(up.address) as ask:
                assert await route(ask, "TBW102") is not None
                assert broker.master.registration.registered == {up.address}
                silent = await asyncio.start_server(_swallow, "127.0.0.1", port)
                async with silent, connected(broker.address) as client:
                    command = UpdateAndCreateTopic(topic="orders")
                    (await client.connection.call(command)).check()
                    await route_appears(ask, "orders")

    run(scenario)


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass
    writer.close()


def test_a_hanging_name_server_hardly_delays_a_new_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        answers = 1

        async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal answers
            decoder = FrameDecoder()
            while data := await reader.read(65536):
                for frame in decoder.feed(data):
                    if answers > 0:
                        answers -= 1
                        writer.write(encode_frame(0, opaque=frame.opaque, flag=1))
            writer.close()

        hanging = await asyncio.start_server(answer_once, "127.0.0.1", 0)
        port = hanging.sockets[0].getsockname()[1]
        async with (
            hanging,
            # Nobody waits for it, or longer than the test runs.
            started_broker(
                broker_options(
                    tmp_path, f"127.0.0.1:{port}", register_timeout_s=3600.0, announce_timeout_s=0.3
                )
            ) as broker,
            connected(broker.address) as client,
        ):
            assert broker.master.registration.registered
            for number in range(3):
                if number:
                    # One that was late once delays nobody until it answers again.
                    broker.master.registration.announce_timeout_s = 3600.0
                (await client.connection.call(UpdateAndCreateTopic(topic=f"t{number}"), timeout=60)).check()

    run(scenario)


def test_a_name_server_that_restarts_learns_everything_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_nameserver() as first:
            broker = Broker(broker_options(tmp_path, first.address), Clock())
            await broker.start()
        port = int(first.address.rpartition(":")[2])
        async with started_nameserver(port) as again, connected(again.address) as ask:
            # Nothing changes on the broker: it notices by itself that the connection is gone.
            await route_appears(ask, "TBW102")
            await broker.stop()
            assert await route(ask, "TBW102") is None

    run(scenario)


def test_many_new_topics_make_few_registrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The count must not depend on how long three hundred topics take.
    monkeypatch.setattr(registration, "GATHER_S", 0.5)

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address) as client,
            connected(nameserver.address) as ask,
        ):
            bodies = 0
            encode = broker.master.registration._body

            def counted() -> bytes:
                nonlocal bodies
                bodies += 1
                return encode()

            broker.master.registration._body = counted  # type: ignore[method-assign]
            calls = [
                client.connection.call(UpdateAndCreateTopic(topic=f"t{number}"), timeout=60)
                for number in range(300)
            ]
            for reply in await asyncio.gather(*calls):
                reply.check()
            await route_appears(ask, "t299")
            assert await route(ask, "t0") is not None
            assert bodies <= 30

    run(scenario)


def test_a_deleted_topic_is_gone_from_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker, connected(broker.address) as client:
            (await client.connection.call(UpdateAndCreateTopic(topic="orders"))).check()
            assert "orders" in broker.master.state.topics
            (await client.connection.call(DeleteTopicInBroker(topic="orders"))).check()
            assert "orders" not in broker.master.state.topics
            refused = await client.connection.call(DeleteTopicInBroker(topic="TBW102"))
            assert refused.code == 29
        async with started_broker(broker_options(tmp_path)) as broker:
            assert "orders" not in broker.master.state.topics

    run(scenario)


def test_the_old_port_answers_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(broker_options(tmp_path)) as broker:
            assert broker.old_address is not None and broker.old_address != broker.address
            async with connected(broker.old_address) as client:
                await client.heartbeat("g", "orders")
                await until(lambda: client.notified("g") == 1)

    run(scenario)
