"""Outgoing connections and the request pump, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from metaq._core import Closed, Frame, Listener, encode_frame
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import (
    GetConsumerListByGroup,
    GetConsumerRunningInfo,
    NotifyConsumerIdsChanged,
)
from metaq.protocol.commands.offsets import QueueOffset
from metaq.protocol.commands.routes import (
    GetAllTopicListFromNameServer,
    GetRouteInfoByTopic,
    GetTopicsByCluster,
)
from metaq.protocol.dispatch import Handlers, Request, Response, Unavailable, handles
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.handling.pump import Pump
from metaq.protocol.reply import Reply
from metaq.remoting import ANSWERING_MAX, Connection, Connections, OnRequest, split_address
from metaq.settings import MIB, ServerSettings
from tests.support.waiting import run, until


class Echo:
    """Echoes requests; it answers a topic list when `gate` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0
        self.waiting = 0
        self.waiting_most = 0
        self.heard: list[str] = []
        self.connection = -1

    @handles(GetRouteInfoByTopic)
    def get_route(self, command: GetRouteInfoByTopic, request: Request) -> Response:
        self.heard.append(command.topic)
        self.connection = request.connection
        return Response(fields=QueueOffset(len(request.body)), body=command.topic.encode() + request.body)

    @handles(GetTopicsByCluster)
    async def get_topics(self, command: GetTopicsByCluster, request: Request) -> Response:
        self.begun += 1
        self.waiting += 1
        self.waiting_most = max(self.waiting, self.waiting_most)
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return Response(body=command.cluster.encode())

    @handles(GetConsumerListByGroup)
    def get_consumers(self, command: GetConsumerListByGroup, request: Request) -> None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "nobody in " + command.consumer_group)


@dataclass
class Running:
    server: Listener
    pump: Pump
    echo: Echo
    closed: list[Closed] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@contextlib.asynccontextmanager
async def running(tasks_max: int = 1024) -> AsyncIterator[Running]:
    echo = Echo()
    closed: list[Closed] = []
    server = Listener(ServerSettings("127.0.0.1", 0), serves_broker=False)
    pump = Pump(server, Handlers(echo), on_closed=closed.append, tasks_max=tasks_max)
    pump.start()
    server.start()
    try:
        yield Running(server, pump, echo, closed)
    finally:
        echo.gate.set()
        await pump.stop()
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_calls_in_both_encodings(binary: bool) -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address, binary=binary)
            for body in (b"", b"x", bytes(range(256)) * 128):
                reply = await connection.call(GetRouteInfoByTopic("Tö\x01"), body)
                assert reply.check().body == "Tö\x01".encode() + body
                assert reply.header(QueueOffset).queue_offset == len(body)
            refused = await connection.call(GetConsumerListByGroup("g"))
            assert (refused.code, refused.remark) == (1, "nobody in g")
            with pytest.raises(Refused, match="nobody in g"):
                refused.check()
            unknown = await connection.call(GetAllTopicListFromNameServer())
            assert (unknown.code, unknown.remark) == (3, "request code 206 is not supported")
            await connection.close()

    run(scenario)


def test_many_calls_at_once_find_their_answers() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            slow = asyncio.create_task(connection.call(GetTopicsByCluster("late"), timeout=60))
            names = [f"T{number}" for number in range(2000)]
            replies = await asyncio.gather(
                *(connection.call(GetRouteInfoByTopic(name), timeout=60) for name in names)
            )
            assert [reply.body.decode() for reply in replies] == names
            assert not slow.done()
            peer.echo.gate.set()
            assert (await slow).body == b"late"
            await connection.close()

    run(scenario)


def test_oneway_requests_arrive_in_order() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            for number in range(100):
                await connection.send_oneway(GetRouteInfoByTopic(str(number)))
            await until(lambda: len(peer.echo.heard) == 100)
            assert peer.echo.heard == [str(number) for number in range(100)]
            await connection.close()

    run(scenario)


def test_silence_ends_in_unreachable_and_a_late_answer_is_dropped() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            with pytest.raises(Unreachable, match=r"no answer to GetTopicsByCluster within 0.1 s"):
                await connection.call(GetTopicsByCluster("c"), timeout=0.1)
            peer.echo.gate.set()
            assert (await connection.call(GetRouteInfoByTopic("T"))).body == b"T"
            await connection.close()

    run(scenario)


def test_nobody_there() -> None:
    async def scenario() -> None:
        async with running() as peer:
            address = peer.address
        with pytest.raises(Unreachable, match=address) as caught:
            await Connection.open(address)
        assert caught.value.retriable

    run(scenario)


def test_a_peer_that_stops_fails_the_calls_under_way() -> None:
    async def scenario() -> None:
        async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            writer.close()

        listener = await asyncio.start_server(end, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        connection = await Connection.open(f"127.0.0.1:{port}")
        with pytest.raises(Unreachable):
            await connection.call(GetRouteInfoByTopic("T"))
        assert connection.closed
        with pytest.raises(Unreachable):
            await connection.call(GetRouteInfoByTopic("T"))
        with pytest.raises(Unreachable):
            await connection.send_oneway(GetRouteInfoByTopic("T"))
        await connection.close()
        await connection.close()
        listener.close()

    run(scenario)


def test_a_peer_that_speaks_something_else() -> None:
    async def scenario() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)  # Garbage would close it.
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        writers: list[asyncio.StreamWriter] = []
        listener = await asyncio.start_server(speak, "127.0.0.1", 0)
        connection = await Connection.open(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        with pytest.raises(Unreachable, match="the peer speaks HTTP/1, not RocketMQ"):
            await connection.call(GetRouteInfoByTopic("T"))
        await connection.close()
        listener.close()

    run(scenario)


def test_a_server_asks_its_client() -> None:
    asked: list[tuple[int, dict[str, str], bytes]] = []

    def on_request(frame: Frame) -> Response | None:
        asked.append((frame.code, frame.fields, frame.body))
        if frame.code == GetConsumerRunningInfo.code:
            return Response(body=b"running " + frame.body)
        return None

    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address, on_request=on_request)
            await connection.call(GetRouteInfoByTopic("T"))
            number = peer.echo.connection
            reply = await peer.pump.invoke(number, GetConsumerRunningInfo("g", "c"), b"?")
            assert (reply.code, reply.body) == (0, b"running ?")
            assert peer.pump.send_oneway(number, NotifyConsumerIdsChanged("g"))
            await until(lambda: len(asked) == 2)
            assert asked[1] == (40, {"consumerGroup": "g"}, b"")
            await connection.close()
            await until(lambda: bool(peer.closed))
            assert [closed.connection for closed in peer.closed] == [number]
            assert not peer.pump.send_oneway(number, NotifyConsumerIdsChanged("g"))
            with pytest.raises(Unreachable):
                await peer.pump.invoke(number, GetConsumerRunningInfo("g", "c"))

    run(scenario)


def test_a_question_that_is_too_long_for_a_frame_is_refused() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            await connection.call(GetRouteInfoByTopic("T"))
            question = GetConsumerRunningInfo("g", "c")
            with pytest.raises(Refused, match="16777216"):
                await peer.pump.invoke(peer.echo.connection, question, bytes(16 * MIB))
            assert (await connection.call(GetRouteInfoByTopic("T"))).code == 0, "the connection stays"
            await connection.close()

    run(scenario)


def test_a_client_without_answers() -> None:
    async def scenario() -> None:
        async with running() as peer:
            deaf = await Connection.open(peer.address)
            await deaf.call(GetRouteInfoByTopic("T"))
            reply = await peer.pump.invoke(peer.echo.connection, GetConsumerRunningInfo("g", "c"))
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            await deaf.close()

            host, port = split_address(peer.address)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(encode_frame(105, opaque=9, fields={"topic": "T"}))
            await reader.read(100)
            silent = peer.echo.connection
            with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
                await peer.pump.invoke(silent, GetConsumerRunningInfo("g", "c"), timeout=0.1)
            await reader.read(65536)
            under_way = asyncio.create_task(
                peer.pump.invoke(silent, GetConsumerRunningInfo("g", "c"), timeout=60)
            )
            assert await reader.read(65536), "the request has arrived"
            writer.close()
            with pytest.raises(Unreachable, match="closed"):
                await under_way

    run(scenario)


def test_asynchronous_handlers_are_bounded() -> None:
    async def scenario() -> None:
        async with running(tasks_max=64) as peer:
            connections = [await Connection.open(peer.address) for _ in range(70)]
            calls = [
                asyncio.create_task(connection.call(GetTopicsByCluster(str(number)), timeout=60))
                for number in range(3)
                for connection in connections
            ]
            # Requests that only ask have half of the slots. The last three of them are for other addresses.
            await until(lambda: peer.echo.waiting == 29)
            await asyncio.sleep(0.1)
            assert peer.echo.waiting == 29
            peer.echo.gate.set()
            replies = await asyncio.gather(*calls)
            assert [reply.body for reply in replies] == [b"%d" % n for n in range(3) for _ in connections]
            assert peer.echo.waiting_most == 29
            for connection in connections:
                await connection.close()

    run(scenario)


def asked_without_end(connections: list[Connection], count: int) -> list[asyncio.Task[Reply]]:
    return [
        asyncio.create_task(connection.call(GetTopicsByCluster("flood"), timeout=60))
        for _ in range(count)
        for connection in connections
    ]


def test_newcomers_and_synchronous_handlers_do_not_wait_for_those_who_ask_without_end() -> None:
    async def scenario() -> None:
        async with running() as peer:
            flood = [await Connection.open(peer.address) for _ in range(9)]
            calls = asked_without_end(flood, 130)
            await until(lambda: peer.echo.waiting >= 250)
            newcomer = await Connection.open(peer.address)
            assert (await newcomer.call(GetRouteInfoByTopic("T"))).check().body == b"T"
            before = peer.echo.waiting
            call = asyncio.create_task(newcomer.call(GetTopicsByCluster("new"), timeout=60))
            await until(lambda: peer.echo.waiting == before + 1)
            peer.echo.gate.set()
            assert (await call).body == b"new"
            await asyncio.gather(*calls)
            for connection in (*flood, newcomer):
                await connection.close()

    run(scenario)


def test_a_closed_connection_has_nothing_under_way_and_nothing_begins() -> None:
    async def scenario() -> None:
        async with running() as peer:
            flood = [await Connection.open(peer.address) for _ in range(9)]
            calls = asked_without_end(flood, 300)
            await until(lambda: peer.echo.waiting >= 250)
            for connection in flood:
                await connection.close()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: len(peer.closed) == 9)
            begun = peer.echo.begun
            await until(lambda: peer.echo.waiting == 0)
            newcomer = await Connection.open(peer.address)
            assert (await newcomer.call(GetRouteInfoByTopic("T"))).check().body == b"T"
            assert peer.echo.begun == begun < 512, "no request of theirs begins after they have left"
            assert peer.pump._slots.free == 1024
            await newcomer.close()

    run(scenario)


def test_oneway_requests_of_a_closed_connection_are_done() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            calls = asked_without_end([connection], 300)
            await until(lambda: peer.echo.waiting >= 80)
            for number in range(10):
                await connection.send_oneway(GetRouteInfoByTopic(str(number)))
            await connection.close()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: len(peer.closed) == 1)
            assert peer.echo.heard == [str(number) for number in range(10)]

    run(scenario)


def test_requests_are_handed_over_to_other_handlers() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            begun = [
                asyncio.create_task(connection.call(GetTopicsByCluster(name), timeout=60)) for name in "ab"
            ]
            await until(lambda: peer.echo.waiting == 2)
            over = asyncio.create_task(peer.pump.hand_over(Unavailable("not now"), timeout=60))
            refused = await connection.call(GetRouteInfoByTopic("T"))
            assert (refused.code, refused.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "not now")
            assert not over.done(), "the former handlers finish first"
            peer.echo.gate.set()
            await over
            assert [(await task).body for task in begun] == [b"a", b"b"]
            await peer.pump.hand_over(Handlers(peer.echo))
            assert (await connection.call(GetRouteInfoByTopic("T"))).check().body == b"T"
            await connection.close()

    run(scenario)


def test_a_handler_that_takes_too_long_is_cancelled_and_its_request_refused() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connection = await Connection.open(peer.address)
            slow = asyncio.create_task(connection.call(GetTopicsByCluster("late"), timeout=60))
            await until(lambda: peer.echo.waiting == 1)
            await peer.pump.hand_over(Unavailable("not now"), timeout=0.01)
            assert peer.echo.waiting == 0
            assert (await slow).code == ResponseCode.SERVICE_NOT_AVAILABLE
            await connection.close()

    run(scenario)


def test_connections_are_opened_once_and_again_after_they_end() -> None:
    async def scenario() -> None:
        async with running() as peer:
            connections = Connections()
            await asyncio.gather(
                *(connections.call(peer.address, GetRouteInfoByTopic(str(n))) for n in range(20))
            )
            first = await connections.get(peer.address)
            assert await connections.get(peer.address) is first
            await first.close()
            second = await connections.get(peer.address)
            assert second is not first
            await connections.send_oneway(peer.address, GetRouteInfoByTopic("oneway"))
            await until(lambda: "oneway" in peer.echo.heard)
            await connections.close()
            assert second.closed
            with pytest.raises(Unreachable, match="is closing"):
                await connections.get(peer.address)

    run(scenario)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:70000", "host:-1", "host:１"])
def test_text_that_is_not_an_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not of the form host:port"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("localhost:9876") == ("localhost", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)


@contextlib.asynccontextmanager
async def connected_to(peer: bytes, on_request: OnRequest) -> AsyncIterator[Connection]:
    """A connection to a peer that sends these bytes and reads nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(peer)
        with contextlib.suppress(OSError):
            await writer.drain()
            await ended.wait()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await Connection.open(f"127.0.0.1:{port}", on_request=on_request)
    try:
        yield connection
    finally:
        ended.set()
        await connection.close()
        server.close()


def requests_of(count: int, body: bytes = b"") -> bytes:
    code = GetConsumerRunningInfo.code
    return b"".join(encode_frame(code, opaque=number, body=body) for number in range(count))


@pytest.mark.parametrize(
    "count, body_bytes, under_way_max", [(ANSWERING_MAX + 500, 0, ANSWERING_MAX), (12, 8 * 1024 * 1024, 8)]
)
def test_requests_of_a_peer_that_never_end_have_a_limit(
    count: int, body_bytes: int, under_way_max: int
) -> None:
    requests = requests_of(count, bytes(body_bytes))

    async def scenario() -> None:
        begun = 0

        async def never(_: Frame) -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        async with connected_to(requests, never) as connection:
            await until(lambda: begun >= under_way_max)
            await asyncio.sleep(0.2)
            assert begun == under_way_max == len(connection._answering)

    run(scenario)


def test_answers_do_not_pile_up_for_a_peer_that_reads_nothing() -> None:
    async def scenario() -> None:
        answered = 0

        async def answer(_: Frame) -> Response:
            nonlocal answered
            answered += 1
            return Response(body=bytes(256 * 1024))

        async with connected_to(requests_of(2000), answer) as connection:
            await until(lambda: answered == 2000)
            await asyncio.sleep(0.2)
            assert connection._writer.transport.get_write_buffer_size() < 8 * 1024 * 1024

    run(scenario)


@pytest.mark.parametrize("address", ["nonsense", "a:1:x", "a..b:1", "a" * 70 + ":1", "a\x00b:1", ":1"])
def test_an_address_that_cannot_be_one_does_not_answer(address: str) -> None:
    async def scenario() -> None:
        with pytest.raises(Unreachable):
            await Connection.open(address)

    run(scenario)
