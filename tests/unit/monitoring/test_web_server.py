"""The HTTP server of the pages for monitoring, with peers that behave and peers that do not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import h11
import pytest

from metaq.monitoring import web_server
from metaq.monitoring.web_server import Page, Response, WebServer
from metaq.plain_requests import BODY_REFUSED, CHUNKS_REFUSED


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


@asynccontextmanager
async def serving_page(page: Page) -> AsyncIterator[WebServer]:
    server = WebServer({"/page": page}, {"/livez": _hello})
    await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(60):
            yield server
    finally:
        await server.stop()


async def send(server: WebServer, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


ASK = b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_everybody_who_waits_for_a_page_gets_the_same_one() -> None:
    """A stranger who asks often cannot use up the pages that others need."""

    async def main() -> None:
        go_on, begun = asyncio.Event(), 0

        async def slow() -> Response:
            nonlocal begun
            begun += 1
            number = begun
            await go_on.wait()
            return Response(HTTPStatus.OK, f"page {number}".encode())

        async with serving_page(slow) as server:
            first, _ = await send(server, ASK)
            while not begun:
                await asyncio.sleep(0.01)
            others = [await send(server, ASK) for _ in range(20)]
            # They have asked when a probe that came later has its answer.
            assert await asyncio.to_thread(ask, server, ("GET", "/livez")) == [(200, b"hello\n")]
            go_on.set()
            assert (await first.read()).endswith(b"page 1")
            answers = [await reader.read() for reader, _ in others]
            # The first page may be older than their questions.
            assert {answer.partition(b"\r\n\r\n")[2] for answer in answers} == {b"page 2"}
            assert begun == 2

    asyncio.run(main())


def test_many_who_wait_for_a_page_leave_room_for_probes() -> None:
    async def main() -> None:
        async def endless() -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        async with serving_page(endless) as server:
            crowd = [await send(server, ASK) for _ in range(200)]
            probes = [await asyncio.to_thread(ask, server, ("GET", "/livez")) for _ in range(5)]
            assert probes == [[(200, b"hello\n")]] * 5
            for _, writer in crowd:
                writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        (b"Transfer-Encoding: chunked", b"411", CHUNKS_REFUSED),
        (b"Content-Length: 30000", b"413", BODY_REFUSED),
    ],
)
def test_bodies_are_refused_by_their_head(
    head: bytes, status: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be parsed on the event loop of the broker, one event for each chunk."""
    data: list[object] = []
    make = h11.Data.__init__

    def counted(self: h11.Data, *arguments: object, **options: object) -> None:
        data.append(self)
        make(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(h11.Data, "__init__", counted)

    async def test(server: WebServer) -> None:
        request = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n"
        reader, writer = await send(server, request)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status) and answer.endswith(f"{reason}\n".encode())
        writer.close()
        _, writer = await send(server, request + b"1\r\nx\r\n" * 2_000)
        await asyncio.to_thread(ask, server, ("GET", "/livez"))
        assert len(data) <= 3, "one for each answer"
        writer.close()

    run(test)


def test_of_requests_that_come_at_once_the_first_is_answered() -> None:
    async def test(server: WebServer) -> None:
        reader, writer = await send(server, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200") <= 1
        writer.close()

    run(test)


def test_peers_that_do_not_read_share_the_page() -> None:
    async def main() -> None:
        body = b"x" * (16 * 1024 * 1024)

        async def page() -> Response:
            return Response(HTTPStatus.OK, body)

        async with serving_page(page) as server:
            tracemalloc.start()
            try:
                deaf = [await send(server, ASK) for _ in range(4)]
                while sum(len(reader._buffer) > 0 for reader, _ in deaf) < 4:  # type: ignore[attr-defined]
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                assert tracemalloc.get_traced_memory()[1] < len(body)
            finally:
                tracemalloc.stop()
            for reader, _ in deaf:
                assert (await reader.read()).endswith(b"\r\n\r\n" + body)

    asyncio.run(main())


def test_old_pages_that_nobody_reads_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "PAGES_BYTES_MAX", 1024 * 1024)

    async def main() -> None:
        async def page() -> Response:
            return Response(HTTPStatus.OK, b"x" * (16 * 1024 * 1024))

        async with serving_page(page) as server:
            deaf = []
            for _ in range(5):
                reader, writer = await send(server, ASK)
                await reader.readline()
                deaf.append((reader, writer))
            whole = [await _is_whole(reader) for reader, _ in deaf]
            assert whole == [False, False, False, True, True]

    asyncio.run(main())


async def _is_whole(reader: asyncio.StreamReader) -> bool:
    try:
        return len(await reader.read()) > 16 * 1024 * 1024
    except ConnectionResetError:
        return False


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
