"""A server without a store: every request goes to Python, and Python's answers go back to the sender."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from metaq import _core
from metaq.settings import ServerSettings
from tests.support.waiting import wait_until

Event = _core.Request | _core.Answer | _core.Closed


@pytest.fixture
def serve() -> Iterator[Callable[..., _core.Listener]]:
    servers: list[_core.Listener] = []

    def make(**settings: int) -> _core.Listener:
        server = _core.Listener(
            ServerSettings(host="127.0.0.1", port=0, **settings),  # type: ignore[arg-type]
            serves_broker=False,
        )
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


def connect(server: _core.Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def next_event(server: _core.Listener) -> Event:
    ready, _, _ = select.select([server.fileno()], [], [], 60)
    assert ready, "nothing came up within ten seconds"
    return server.drain(1)[0]


def next_request(server: _core.Listener) -> _core.Request:
    event = next_event(server)
    assert isinstance(event, _core.Request)
    return event


def read_frames(client: socket.socket, count: int) -> list[_core.Frame]:
    decoder = _core.FrameDecoder()
    frames: list[_core.Frame] = []
    while len(frames) < count:
        data = client.recv(65536)
        assert data, "the server closed the connection"
        frames += decoder.feed(data)
    return frames


@pytest.mark.parametrize("binary", [False, True])
def test_a_request_comes_up_and_its_answer_goes_back(
    serve: Callable[..., _core.Listener], binary: bool
) -> None:
    server = serve()
    with connect(server) as client:
        client.sendall(_core.encode_frame(105, opaque=7, fields={"topic": "é"}, body=b"in", binary=binary))
        request = next_request(server)
        assert (request.code, request.fields, request.body) == (105, {"topic": "é"}, b"in")
        assert request.remote == "{}:{}".format(*client.getsockname())
        request.respond(17, remark="no such topic", fields={"a": "b"}, body=b"out")
        (answer,) = read_frames(client, 1)
        assert (answer.opaque, answer.code, answer.remark) == (7, 17, "no such topic")
        assert (answer.fields, answer.body, answer.flag) == ({"a": "b"}, b"out", 1)


def test_answers_may_leave_in_any_order(serve: Callable[..., _core.Listener]) -> None:
    server = serve()
    with connect(server) as client:
        client.sendall(b"".join(_core.encode_frame(1, opaque=opaque) for opaque in range(50)))
        requests = [next_request(server) for _ in range(50)]
        for request in reversed(requests):
            request.respond(body=b"x" * 5000)
        assert sorted(frame.opaque for frame in read_frames(client, 50)) == list(range(50))


def test_a_oneway_request_gets_no_answer(serve: Callable[..., _core.Listener]) -> None:
    server = serve()
    with connect(server) as client:
        client.sendall(_core.encode_frame(1, opaque=1, flag=2) + _core.encode_frame(1, opaque=2))
        oneway, other = next_request(server), next_request(server)
        assert oneway.oneway and not other.oneway
        oneway.respond()
        other.respond()
        assert [frame.opaque for frame in read_frames(client, 1)] == [2]


def test_a_client_is_asked_and_answers(serve: Callable[..., _core.Listener]) -> None:
    server = serve()
    with connect(server) as client:
        client.sendall(_core.encode_frame(34, opaque=1))
        connection = next_request(server).connection
        opaque = server.invoke(connection, 307, fields={"q": "v"}, body=b"ask")
        (asked,) = read_frames(client, 1)
        assert (asked.code, asked.opaque, asked.fields, asked.body) == (307, opaque, {"q": "v"}, b"ask")
        client.sendall(_core.encode_frame(0, opaque=opaque, flag=1, body=b"answer"))
        answer = next_event(server)
        assert isinstance(answer, _core.Answer)
        assert (answer.connection, answer.opaque, answer.body) == (connection, opaque, b"answer")
    closed = next_event(server)
    assert isinstance(closed, _core.Closed) and closed.connection == connection
    with pytest.raises(_core.ConnectionGone):
        server.invoke(connection, 40)


def test_a_full_crossing_answers_busy_and_goes_on(serve: Callable[..., _core.Listener]) -> None:
    # One address may have half of the room.
    server = serve(crossing_requests_max=6)
    with connect(server) as client:
        client.sendall(b"".join(_core.encode_frame(1, opaque=opaque) for opaque in range(10)))
        refused = read_frames(client, 7)
        assert {frame.code for frame in refused} == {2}
        assert all("OVERLOAD" in (frame.remark or "") for frame in refused)
        for _ in range(3):
            next_request(server).respond()
        assert [frame.code for frame in read_frames(client, 3)] == [0, 0, 0]


def test_a_request_that_waited_too_long_is_answered_busy(serve: Callable[..., _core.Listener]) -> None:
    server = serve(crossing_age_ms_max=50)
    with connect(server) as client:
        client.sendall(_core.encode_frame(1, opaque=1) + _core.encode_frame(1, opaque=2, flag=2))
        select.select([server.fileno()], [], [], 60)
        crossed_at = time.monotonic()
        wait_until(lambda: time.monotonic() > crossed_at + 0.1, what="older than the limit")
        (oneway,) = server.drain()
        assert isinstance(oneway, _core.Request) and oneway.oneway, "nobody would repeat it"
        (late,) = read_frames(client, 1)
        assert (late.opaque, late.code) == (1, 2)
        assert "TIMEOUT_CLEAN_QUEUE" in (late.remark or "") and "crossing_age_ms_max" in (late.remark or "")
        # Requests are served again as soon as one is drained in time.
        for opaque in range(3, 1000):
            client.sendall(_core.encode_frame(1, opaque=opaque))
            select.select([server.fileno()], [], [], 60)
            for request in server.drain():
                assert isinstance(request, _core.Request)
                request.respond()
            (answer,) = read_frames(client, 1)
            if answer.code == 0:
                break
        assert (answer.opaque, answer.code) == (opaque, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x08\x00\x00\x00\x09{}      ",
    ],
)
def test_garbage_closes_its_connection_and_no_other(
    serve: Callable[..., _core.Listener], data: bytes
) -> None:
    server = serve()
    with connect(server) as good, connect(server) as bad:
        bad.sendall(data)
        assert bad.recv(1) == b""
        good.sendall(_core.encode_frame(1, opaque=5))
        while not isinstance(event := next_event(server), _core.Request):
            pass
        event.respond()
        assert read_frames(good, 1)[0].opaque == 5


def test_trickled_bytes_meet_the_frame_deadline(serve: Callable[..., _core.Listener]) -> None:
    server = serve(frame_deadline_ms=200)
    with connect(server) as slow:
        slow.sendall(b"\x00\x00")
        assert slow.recv(1) == b""


def test_connections_past_the_limit_are_closed(serve: Callable[..., _core.Listener]) -> None:
    server = serve(connections_per_address_max=2)

    def ask(client: socket.socket) -> None:
        client.sendall(_core.encode_frame(1, opaque=1))
        next_request(server).respond()
        assert read_frames(client, 1)[0].opaque == 1

    with connect(server) as first, connect(server) as second:
        ask(first)
        ask(second)
        with connect(server) as third:
            assert third.recv(1) == b""
        ask(first)
        ask(second)


def test_a_connection_that_said_nothing_makes_way_for_one_past_the_limit(
    serve: Callable[..., _core.Listener],
) -> None:
    server = serve(connections_per_address_max=2)
    with connect(server) as silent, connect(server), connect(server) as third:
        assert silent.recv(1) == b""
        third.sendall(_core.encode_frame(1, opaque=1))
        while not isinstance(event := next_event(server), _core.Request):
            pass  # The connection that was closed is reported, too.
        event.respond()
        assert read_frames(third, 1)[0].opaque == 1


def test_a_taken_port_is_an_error_that_names_it(serve: Callable[..., _core.Listener]) -> None:
    port = serve().port
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        _core.Listener(ServerSettings(host="127.0.0.1", port=port), serves_broker=False)
