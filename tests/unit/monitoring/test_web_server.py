"""The HTTP server of the pages for monitoring, with peers that behave and peers that do not."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from metaq.monitoring import web_server
from metaq.monitoring.web_server import Response, WebServer


async def _hello() -> Response:
    return Response(HTTPStatus.OK, b"hello\n")


async def _broken() -> Response:
    raise ValueError("secret detail")


@asynccontextmanager
async def serving() -> AsyncIterator[WebServer]:
    server = WebServer({"/hello": _hello, "/broken": _broken}, {"/livez": _hello})
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


def run(test: Callable[[WebServer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving() as server:
            await test(server)

    asyncio.run(main())


def ask(server: WebServer, *requests: tuple[str, str]) -> list[tuple[int, bytes]]:
    """Sends requests over one connection and returns the answers."""
    connection = http.client.HTTPConnection(server.address, timeout=10)
    answers = []
    for method, path in requests:
        connection.request(method, path)
        response = connection.getresponse()
        answers.append((response.status, response.read()))
    connection.close()
    return answers


def test_pages_are_found_by_path() -> None:
    async def test(server: WebServer) -> None:
        answers = await asyncio.to_thread(
            ask, server, ("GET", "/hello?x=1"), ("HEAD", "/hello"), ("GET", "/absent"), ("POST", "/hello")
        )
        assert answers[:2] == [(200, b"hello\n"), (200, b"")]
        assert answers[2] == (404, b"there is no such page; there are /broken, /hello, /livez\n")
        assert answers[3][0] == 405

    run(test)


def test_an_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: WebServer) -> None:
        ((status, body),) = await asyncio.to_thread(ask, server, ("GET", "/broken"))
        assert status == 500
        assert b"secret" not in body

    run(test)
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    "sent", [b"\x00\x00\x01\x0f{}", b"GET /hello HTTP/1.1\r\nX: " + b"y" * 100_000, b"GET /hello\r\n\r\n"]
)
def test_what_is_not_http_ends_the_connection(sent: bytes) -> None:
    async def test(server: WebServer) -> None:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        writer.close()
        assert (await asyncio.to_thread(ask, server, ("GET", "/hello"))) == [(200, b"hello\n")]

    run(test)


def test_silent_peers_are_limited_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web_server, "REQUEST_S", 0.5)

    async def test(server: WebServer) -> None:
        host, _, port = server.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
        assert all(end == b"" or isinstance(end, ConnectionResetError) for end in ends)
        assert (await asyncio.to_thread(ask, server, ("GET", "/hello"))) == [(200, b"hello\n")]
        for _, writer in silent:
            writer.close()

    run(test)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /hello HT", b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["silent", "partial", "idle"],
)
def test_probes_get_through_a_crowd_of_idle_connections(sent: bytes) -> None:
    """Forty probes beside 400 connections that never end their request, or keep a connection after it."""

    async def test(server: WebServer) -> None:
        host, _, port = server.address.rpartition(":")
        crowd = []
        for _ in range(400):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            crowd.append((reader, writer))
        probes = [await asyncio.to_thread(ask, server, ("GET", "/livez")) for _ in range(40)]
        assert probes == [[(200, b"hello\n")]] * 40
        for _, writer in crowd:
            writer.close()

    run(test)


def test_probes_get_through_pages_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "PAGES_MAX", 3)

    async def main() -> None:
        go_on = asyncio.Event()

        async def slow() -> Response:
            await go_on.wait()
            return Response(HTTPStatus.OK, b"slow\n")

        server = WebServer({"/slow": slow}, {"/livez": _hello})
        await server.start("127.0.0.1", 0)
        try:
            host, _, port = server.address.rpartition(":")
            crowd = []
            for _ in range(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                crowd.append((reader, writer))
            async with asyncio.timeout(20):
                refused = [(await reader.read()).partition(b"\r\n")[0] for reader, _ in crowd[3:]]
                assert refused == [b"HTTP/1.1 503 "] * 2
                assert await asyncio.to_thread(ask, server, ("GET", "/livez")) == [(200, b"hello\n")]
                go_on.set()
                served = [(await reader.read()).partition(b"\r\n")[0] for reader, _ in crowd[:3]]
                assert served == [b"HTTP/1.1 200 "] * 3
            for _, writer in crowd:
                writer.close()
        finally:
            await server.stop()

    asyncio.run(main())


def test_a_taken_port_gives_way_to_a_free_one() -> None:
    async def test(server: WebServer) -> None:
        other = WebServer({"/hello": _hello}, {})
        await other.start("127.0.0.1", int(server.address.rpartition(":")[2]))
        try:
            assert other.address != server.address
            assert (await asyncio.to_thread(ask, other, ("GET", "/hello"))) == [(200, b"hello\n")]
        finally:
            await other.stop()

    run(test)
