"""A broker and its name servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Collection
from pathlib import Path
from typing import Any

import pytest

from metaq._core import Clock, FrameDecoder, encode_frame
from metaq.broker import Broker
from metaq.broker.background import name_server_link, registration, registration_body
from metaq.nameserver import NameServer
from metaq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicRouteData
from metaq.protocol.command import Command
from metaq.protocol.commands.cluster import RegisterBroker
from metaq.protocol.commands.routes import GetRouteInfoByTopic, RegisterTopicInNameServer
from metaq.protocol.commands.topics import DeleteTopicInBroker, UpdateAndCreateTopic
from metaq.protocol.dispatch import Request
from metaq.protocol.errors import Unreachable
from tests.support.broker_cluster import Client, broker_options, connected, started_broker, started_nameserver
from tests.support.processes import free_port
from tests.support.waiting import run, until

REGISTER_BROKER = RegisterBroker.code
REGISTER_TOPIC = RegisterTopicInNameServer.code


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


def test_a_broker_whose_connection_is_cut_registers_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the test runs: it must not have to look by itself.
    monkeypatch.setattr(registration, "WATCH_S", 3600.0)
    monkeypatch.setattr(name_server_link, "CALM_S", 0.0)

    async def scenario() -> None:
        # A header that is too long ends a connection, as a name server ends one that costs too much.
        too_long = (1 << 22).to_bytes(4) + (1 << 21).to_bytes(4)
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(nameserver.address) as ask,
        ):
            (link,) = broker.master.registration._links
            cut = link._connection
            assert cut is not None
            cut._writer.write(too_long)
            await until(lambda: asyncio.sleep(0, cut.closed))
            await route_appears(ask, "TBW102")
            assert link._connection is not cut

    run(scenario)


def test_many_new_topics_make_few_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The count must not depend on how long three hundred topics take.
    monkeypatch.setattr(registration, "GATHER_S", 0.5)

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address) as client,
            connected(nameserver.address) as ask,
        ):
            attempts = 0
            attempt = broker.master.registration._attempt

            async def counted(*arguments: Any) -> None:
                nonlocal attempts
                attempts += 1
                await attempt(*arguments)

            broker.master.registration._attempt = counted  # type: ignore[method-assign]
            calls = [
                client.connection.call(UpdateAndCreateTopic(topic=f"t{number}"), timeout=60)
                for number in range(300)
            ]
            for reply in await asyncio.gather(*calls):
                reply.check()
            await route_appears(ask, "t299")
            assert await route(ask, "t0") is not None
            assert attempts <= 30

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


class Watched:
    """A name server that notes the requests of brokers: code, size of the body, and the topics in it."""

    def __init__(self, nameserver: NameServer, unknown: Collection[int] = ()) -> None:
        self.requests: list[tuple[int, int]] = []
        self.bodies: list[bytes] = []
        begin = nameserver._handlers.begin

        def noted(request: Request) -> Awaitable[None] | None:
            if request.code in (REGISTER_BROKER, REGISTER_TOPIC):
                self.requests.append((request.code, len(request.body)))
                self.bodies.append(request.body)
            if request.code in unknown:
                request.respond(3, remark="request code not supported")
                return None
            return begin(request)

        nameserver._handlers.begin = noted  # type: ignore[method-assign]


def test_a_new_topic_registers_itself_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address) as client,
            connected(nameserver.address) as ask,
        ):
            watched = Watched(nameserver)
            (await client.connection.call(UpdateAndCreateTopic(topic="orders"))).check()
            assert [code for code, _ in watched.requests] == [REGISTER_TOPIC]
            assert watched.requests[0][1] < 500
            change = UpdateAndCreateTopic(topic="orders", read_queue_nums=3, write_queue_nums=2, perm=4)
            (await client.connection.call(change)).check()
            found = await route(ask, "orders")
            assert found is not None
            queues = found.queue_datas[0]
            assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 2, 4)

    run(scenario)


def test_changes_that_are_written_together_are_each_registered(tmp_path: Path) -> None:
    """One caller's write also holds another caller's topic. Each announces only its own."""

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
        ):
            topics = broker.master.state.topics
            for turn in range(20):
                names = [f"t{turn}-{number}" for number in range(3)]
                for queues in (1, 2):
                    works = []
                    for name in names:
                        topics.put(
                            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
                        )
                        works.append(asyncio.create_task(topics.publish([name])))
                        await asyncio.sleep(0)
                    await asyncio.gather(*works)
                    for name in names:
                        found = nameserver.routes.route(name)
                        assert found is not None and found.queue_datas[0].read_queue_nums == queues

    run(scenario)


def test_a_topic_that_did_not_change_is_not_registered_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
        ):
            topics = broker.master.state.topics
            topics.put(TopicConfig(topic_name="orders"))
            watched = Watched(nameserver)
            for _ in range(3):
                await topics.publish(["orders"])
            assert len(watched.requests) == 1

    run(scenario)


def test_a_name_server_before_5_0_gets_the_changed_topics_as_a_registration(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address) as client,
            connected(nameserver.address) as ask,
        ):
            watched = Watched(nameserver, unknown=[REGISTER_TOPIC])
            for topic in ("orders", "bills"):
                (await client.connection.call(UpdateAndCreateTopic(topic=topic))).check()
                assert await route(ask, topic) is not None
            assert [code for code, _ in watched.requests] == [
                REGISTER_TOPIC,
                REGISTER_BROKER,
                REGISTER_BROKER,
            ]
            table = RegisterBrokerBody.decode(watched.bodies[-1]).topic_config_serialize_wrapper
            assert set(table.topic_config_table) == {"bills"}
            assert await route(ask, "TBW102") is not None

    run(scenario)


def test_a_registration_that_fails_is_followed_by_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "FIRST_RETRY_S", 0.01)

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)) as broker,
            connected(broker.address) as client,
            connected(nameserver.address) as ask,
        ):
            link = broker.master.registration._links[0]
            call = link.call

            async def fails_once(command: Command, body: bytes, timeout_s: float) -> None:
                link.call = call  # type: ignore[method-assign]
                raise Unreachable("gone")

            link.call = fails_once  # type: ignore[method-assign]
            watched = Watched(nameserver)
            (await client.connection.call(UpdateAndCreateTopic(topic="orders"))).check()
            await route_appears(ask, "orders")
            assert [code for code, _ in watched.requests] == [REGISTER_BROKER]

    run(scenario)


def test_a_table_too_large_for_a_frame_is_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "PLAIN_BODY_BYTES_MAX", 100)

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            started_broker(broker_options(tmp_path, nameserver.address)),
            connected(nameserver.address) as ask,
        ):
            found = await route(ask, "BenchmarkTest")
            assert found is not None
            assert (found.queue_datas[0].write_queue_nums, found.queue_datas[0].perm) == (1024, 6)

    run(scenario)


def test_a_new_topic_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    """Counts what is written and sent, and how many Python functions are called, not how long it takes."""

    async def scenario() -> None:
        async with (
            started_nameserver() as nameserver,
            # However busy the machine is, a full registration of all topics ends in time.
            started_broker(broker_options(tmp_path, nameserver.address, register_timeout_s=600.0)) as broker,
        ):
            topics, journal = broker.master.state.topics, broker.node.journal
            watched = Watched(nameserver)

            async def cost_of_one_more(name: str) -> tuple[int, int, int]:
                written, requests = journal.appended_bytes, len(watched.requests)
                calls = 0

                def count(frame: object, event: str, argument: object) -> None:
                    nonlocal calls
                    calls += event in ("call", "c_call")

                sys.setprofile(count)
                try:
                    topics.update(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4), {})
                    await topics.publish([name])
                finally:
                    sys.setprofile(None)
                sent = sum(size for code, size in watched.requests[requests:] if code == REGISTER_TOPIC)
                return journal.appended_bytes - written, sent, calls

            async def least_cost(name: str) -> tuple[int, int, int]:
                # The regular registration of all topics may come in between.
                costs = [await cost_of_one_more(f"{name}{number}") for number in range(5)]
                on_their_own = [cost for cost in costs if cost[1] > 0]
                assert on_their_own, "no topic was registered on its own"
                written, sent, calls = map(min, zip(*on_their_own, strict=True))
                return written, sent, calls

            async def grow(to: int) -> None:
                names = [f"topic-{number:05}" for number in range(len(topics), to)]
                for name in names:
                    topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4))
                await topics.publish(names)
                # All of them are registered at once. That is over before one is counted.
                await until(lambda: nameserver.routes.route(names[-1]) is not None)

            await grow(100)
            few = await least_cost("few-")
            await grow(50_000)
            many = await least_cost("many")
            assert many[0] <= 1.2 * few[0], f"bytes written: {few[0]}, then {many[0]}"
            assert many[1] <= 1.2 * few[1], f"bytes sent: {few[1]}, then {many[1]}"
            assert many[2] <= 3 * few[2], f"calls: {few[2]}, then {many[2]}"

    run(scenario)
