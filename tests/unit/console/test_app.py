"""The answers of the whole application to people who are not signed in, whatever they send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from metaq.console.access.access import Access
from metaq.console.access.passwords import PasswordDirectory
from metaq.console.access.roles import Role
from metaq.console.app import create_app
from metaq.console.console import Console
from metaq.console.settings import ConsoleSettings
from metaq.console.static_files import static_path
from tests.support.console_app import serving
from tests.support.visitor import Visitor
from tests.support.waiting import wait_until

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = ConsoleSettings(nameservers="127.0.0.1:1", state_folder=tmp_path_factory.mktemp("state"))
    access = Access.open(settings, PasswordDirectory({Role.viewer: "only looking"}))
    # Strangers reach neither the cluster nor its figures.
    nothing: Any = None
    with serving(create_app(Console(settings, nothing, nothing, access, nothing))) as (served, _):
        yield served


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails if a stranger causes a line in the log."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/login", 405),
        ("POST", static_path("console.css"), 405),
        ("GET", "/static/x/none", 404),
        ("GET", "/static/x/console.css/none", 404),
        ("GET", "/static/x/%00", 404),
        ("GET", "/static/x/" + "a" * 5000, 404),
        ("GET", "/static/x/..%2f..%2fapp.py", 404),
        ("GET", "/static/x/%ff%fe", 404),
        ("GET", "/%00", 303),
        ("GET", "//[", 303),
        ("GET", "/login?token=%00", 403),
        ("GET", "/login?next=%ff%00", 200),
        ("OPTIONS", "/login", 405),
        ("TRACE", "/login", 405),
    ],
)
def test_addresses_that_lead_nowhere(
    address: str, method: str, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Visitor(address).ask(method, path)
    assert answer.status == status
    if status in (404, 405):
        assert answer.headers["Content-Type"].startswith("text/plain")
    if status == 405:
        assert answer.headers["Allow"]
    if "token" in path:
        caplog.clear()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"a&" * 20, FORM, 400),
        (b"%ff=%ff&csrf=%ff%00", FORM, 403),
        (b"{}", {"Content-Type": "application/json"}, 415),
        (b"--B\r\nnonsense", {"Content-Type": "multipart/form-data; boundary=B; charset=punycode"}, 415),
        (b"", {"Content-Type": ";"}, 403),
        (b"name=x", {**FORM, "Origin": "null"}, 403),
        (b"x" * 70_000, FORM, 413),
    ],
)
def test_malformed_forms(address: str, body: bytes, headers: dict[str, str], status: int) -> None:
    assert Visitor(address).ask("POST", "/login", body, headers).status == status


@pytest.mark.parametrize("cookie", ['"\\012"', '"\\000"', "é" * 10, "", "a" * 5000])
def test_cookies_that_nobody_gave(address: str, cookie: str) -> None:
    stranger = Visitor(address)
    stranger.get("/login")
    (form,) = stranger.cookies
    stranger.cookies = {form: cookie, form.removesuffix("-form"): cookie}
    assert stranger.get("/login").status == 200
    # A secret of ours took the place of the cookie.
    assert len(stranger.cookies[form]) == 43


@pytest.mark.parametrize(
    "head",
    [
        "GET [ HTTP/1.1\r\nHost: localhost",
        "GET http://localhost/ HTTP/1.1\r\nHost: localhost",
        "OPTIONS * HTTP/1.1\r\nHost: localhost",
        "GET / HTTP/1.1\r\nHost: [",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked",
        f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {'9' * 5000}",
    ],
)
def test_malformed_requests(address: str, head: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as client:
        client.sendall(f"{head}\r\n\r\n".encode())
        assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")


def test_somebody_who_leaves_in_the_middle_of_a_form(tmp_path: Path) -> None:
    settings = ConsoleSettings(nameservers="127.0.0.1:1", state_folder=tmp_path)
    nothing: Any = None
    console = Console(settings, nothing, nothing, Access.open(settings), nothing)
    with serving(create_app(console)) as (served, server):
        place = urlsplit(served)
        with socket.create_connection((place.hostname, place.port), timeout=60) as client:
            head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nContent-Type: "
            client.sendall(f"{head}{FORM['Content-Type']}\r\n\r\nname".encode())
            wait_until(lambda: server.server_state.tasks, what="at work")
        wait_until(lambda: not server.server_state.tasks, what="ended")
