"""The console's HTTP: slow and many clients, and a stop that does not wait for open pages."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import h11
import pytest

from metaq.console import web_server
from metaq.console.access import body
from metaq.console.access.roles import Role
from metaq.console.web_server import TlsFiles
from tests.support.console_app import ServedApp, served_app
from tests.support.etcd import Certificates
from tests.support.visitor import Visitor
from tests.support.waiting import wait_until


def connected(app: ServedApp) -> socket.socket:
    address = urlsplit(app.address)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def test_a_stop_does_not_wait_for_open_pages(tmp_path: Path) -> None:
    with served_app(tmp_path) as app:
        anna = app.visitor(Role.viewer)
        cookie = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
        connection = anna.connect()
        connection.request("GET", "/events", headers={"Cookie": cookie})
        stream = connection.getresponse()
        assert stream.readline() == b"event: tick\n"
        silent = connected(app)
        began = time.monotonic()
    # Without the abort of open pages, the stream would go on for ever.
    assert time.monotonic() - began < 20
    silent.close()
    connection.close()


def test_clients_that_do_not_send_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "REQUEST_HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.2)
    with served_app(tmp_path) as app:
        anna = app.visitor(Role.operator)
        csrf = anna.get("/").text
        with connected(app) as silent, connected(app) as slow, connected(app) as second:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            # A second request on a connection that was good before.
            second.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            while b"</html>" not in received:
                received += second.recv(65_536)
            second.sendall(b"GET /lo")
            assert all(_is_ended(client) for client in (silent, slow, second))
        with connected(app) as half:
            head = f"POST /size HTTP/1.1\r\nHost: localhost\r\nX-CSRF-Token: {csrf}\r\nContent-Length: 10\r\n"
            cookie = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
            half.sendall(f"{head}Cookie: {cookie}\r\n\r\nabc".encode())
            assert half.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_the_rest_of_a_body_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "REQUEST_HEAD_TIMEOUT_S", 0.2)
    with served_app(tmp_path) as app, connected(app) as client:
        client.sendall(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
        assert _answer(client).startswith(b"HTTP/1.1 401 ")
        # The first byte after the answer ends uvicorn's own timer.
        client.sendall(b"x")
        assert _is_ended(client)


def test_a_connection_goes_on_after_the_rest_of_a_body(tmp_path: Path) -> None:
    with served_app(tmp_path) as app, connected(app) as client:
        for _ in range(3):
            client.sendall(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
            assert _answer(client).startswith(b"HTTP/1.1 401 ")
            client.sendall(b"xyz")


def _answer(client: socket.socket) -> bytes:
    """Returns the whole answer to somebody who is not signed in."""
    answer = b""
    while b"metaq console link" not in answer:
        received = client.recv(65_536)
        assert received, answer
        answer += received
    return answer


def _is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_reader_that_stops_reading_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "WRITE_TIMEOUT_S", 0.2)
    with served_app(tmp_path) as app:
        anna = app.visitor(Role.viewer)
        cookie = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
        with connected(app) as deaf:
            deaf.sendall(f"GET /flood HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            wait_until(lambda: app.server.server_state.connections, what="connected")
            wait_until(lambda: not app.server.server_state.connections, what="dropped")


def test_a_few_bytes_that_nobody_reads_do_not_hold_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "WRITE_TIMEOUT_S", 0.2)
    with served_app(tmp_path) as app, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        address = urlsplit(app.address)
        deaf.connect((address.hostname, address.port))
        wait_until(lambda: app.server.server_state.connections, what="connected")
        (protocol,) = app.server.server_state.connections
        transport = protocol.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        # Short answers, until the system takes no more of them: the last one waits in this process.
        while not transport.get_write_buffer_size():
            goal = app.server.server_state.total_requests + 1
            deaf.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(
                lambda goal=goal: (
                    app.server.server_state.total_requests == goal or transport.get_write_buffer_size()
                ),
                what="answered",
                interval_s=0.001,
            )
        wait_until(lambda: not app.server.server_state.connections, what="dropped")


def test_connections_that_negotiate_tls_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "CONNECTIONS_HARD_MAX", 4)
    monkeypatch.setattr(web_server, "TLS_HANDSHAKE_TIMEOUT_S", 1.0)
    certificates = Certificates.make(tmp_path)
    tls = TlsFiles(str(certificates.cert), str(certificates.key))
    with served_app(tmp_path, tls=tls) as app:
        crowd = [connected(app) for _ in range(8)]
        # Four at once because they are too many, the others because they stay silent.
        assert all(_is_ended(client) for client in crowd)
        context = ssl.create_default_context(cafile=str(certificates.ca))
        assert Visitor(app.address, context=context).get("/login").status == 200


def test_the_process_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The other tests of this process may have many files open.
    few = len([*Path("/proc/self/fd").iterdir()]) + 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, few), hard))
    try:
        with served_app(tmp_path):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.parametrize(
    "sent", [b"", b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"]
)
def test_silent_connections_make_room_for_new_ones(tmp_path: Path, sent: bytes) -> None:
    """The crowd sends nothing, or a request without its body."""
    with served_app(tmp_path) as app:
        crowd = []
        for _ in range(400):
            crowd.append(connected(app))
            crowd[-1].sendall(sent)
        assert [app.visitor().get("/login").status for _ in range(10)] == [200] * 10
        assert len(app.server.server_state.connections) <= web_server.WAITING_PER_ADDRESS_MAX + 1
        for client in crowd:
            client.close()


def test_connections_at_work_are_kept_and_further_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web_server, "CONNECTIONS_HARD_MAX", 6)
    with served_app(tmp_path) as app:
        anna = app.visitor(Role.viewer)
        cookie = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
        streams = []
        for _ in range(2):
            connection = anna.connect()
            connection.request("GET", "/events", headers={"Cookie": cookie})
            streams.append((connection, connection.getresponse()))
        crowd = [connected(app) for _ in range(8)]
        assert app.visitor().get("/login").status == 503
        for connection, stream in streams:
            assert stream.readline() == b"event: tick\n"
            connection.close()
        for client in crowd:
            client.close()
        wait_until(lambda: not app.server.server_state.connections, what="free again")
        assert app.visitor().get("/login").status == 200


def test_large_heads_are_refused(tmp_path: Path) -> None:
    with served_app(tmp_path) as app, connected(app) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 40_000)
        assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")


def test_bodies_in_chunks_are_refused_by_their_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's body in one-byte chunks would keep everybody waiting."""
    data: list[h11.Event] = []
    make = h11.Data.__init__

    def counted(self: h11.Data, *arguments: object, **options: object) -> None:
        data.append(self)
        make(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(h11.Data, "__init__", counted)
    with served_app(tmp_path) as app, connected(app) as client:
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head + b"1\r\nx\r\n" * 5_000)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while received := client.recv(65_536):
                answer += received
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        # The answer has one.
        assert len(data) <= 1
        assert app.visitor().get("/login").status == 200
