"""Every request is checked before a page sees it, over real HTTP."""

from __future__ import annotations

import asyncio
import http.cookies
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette import datastructures
from starlette.responses import PlainTextResponse
from starlette.types import Message

from metaq.console.access.body import BODY_BYTES_MAX
from metaq.console.access.headers import CONTENT_SECURITY_POLICY
from metaq.console.access.middleware import AccessMiddleware
from metaq.console.access.roles import Role
from metaq.plain_requests import CHUNKS_REFUSED
from tests.support.console_app import ServedApp, served_app
from tests.support.visitor import Visitor
from tests.support.waiting import run


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with served_app(tmp_path_factory.mktemp("state"), hosts=frozenset({"mq.example.com"})) as served:
        yield served


def test_nothing_is_shown_without_a_link(app: ServedApp) -> None:
    stranger = app.visitor()
    page = stranger.get("/topics/a%2Fb?search=a%20b")
    assert (page.status, page.location) == (
        303,
        f"/login?next={quote('/topics/a%2Fb?search=a%20b', safe='')}",
    )
    assert stranger.get("/").location == "/login"
    assert stranger.get("/no-such-page").status == 303
    assert stranger.get("/events").status == 401
    refreshed = stranger.get("/topics", HX_Request="true")
    assert (refreshed.status, refreshed.headers["HX-Redirect"]) == (401, "/login")
    assert stranger.post("/change", {"what": "x"}).status == 401
    login = stranger.get("/login?next=/topics")
    assert login.status == 200
    assert "metaq console link" in login.text and "<form" not in login.text
    assert stranger.get("/static/a.css").text == "body {}"


def test_a_link_signs_in_once_and_leaves_the_address(app: ServedApp) -> None:
    token = app.access.links.create(Role.operator)
    anna = app.visitor()
    click = anna.get(f"/topics/%25RETRY%25a%2Fb?search=&token={token}&page=2")
    assert (click.status, click.location) == (303, "/topics/%25RETRY%25a%2Fb?search=&page=2")
    cookie = click.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=604800"))
    assert "Secure" not in cookie
    assert anna.get("/who").text == "operator operator"
    second = app.visitor().get(f"/?token={token}")
    assert second.status == 403
    assert "This link was used already" in second.text and "metaq console link" in second.text
    assert "metaq-" + app.access.sessions.console_id + "=" not in str(second.headers)
    # The same person may click it again.
    assert (anna.get(f"/?token={token}").status, anna.get("/who").status) == (303, 200)


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("HEAD", {}),
        ("GET", {"Sec-Purpose": "prefetch;prerender"}),
        ("GET", {"Purpose": "prefetch"}),
        ("GET", {"X-Moz": "prefetch"}),
        ("POST", {}),
    ],
)
def test_programs_that_look_at_a_link_do_not_use_it_up(
    app: ServedApp, method: str, headers: dict[str, str]
) -> None:
    token = app.access.links.create(Role.viewer)
    looker = app.visitor()
    assert looker.ask(method, f"/?token={token}", headers=headers).status in (401, 403)
    assert not looker.cookies
    assert app.visitor().get(f"/?token={token}").status == 303


def test_a_link_for_another_role_takes_the_place_of_the_session(app: ServedApp) -> None:
    person = app.visitor(Role.viewer)
    former = dict(person.cookies)
    assert person.get(f"/?token={app.access.links.create(Role.operator)}").status == 303
    assert person.get("/who").text == "operator operator"
    person.cookies = former
    assert person.get("/who").status == 303


def test_a_viewer_changes_nothing(app: ServedApp) -> None:
    viewer = app.visitor(Role.viewer)
    csrf = viewer.get("/").text
    refused = viewer.post("/change", {"what": "x"}, X_CSRF_Token=csrf)
    assert refused.status == 403
    assert refused.text.startswith("You are signed in as a viewer, and only an operator can do this.")
    assert viewer.post("/anything", X_CSRF_Token=csrf).status == 403
    # The language and the theme of this browser; the small application has no such page.
    assert viewer.post("/preferences", X_CSRF_Token=csrf).status == 404


def test_a_change_needs_the_token_of_its_session(app: ServedApp) -> None:
    anna, berta = app.visitor(Role.operator), app.visitor(Role.operator)
    csrf = anna.get("/").text
    assert anna.post("/change", {"what": "x"}, X_CSRF_Token=csrf).text == "operator changed x"
    assert anna.post("/change", {"what": "x", "csrf": csrf}).text == "operator changed x"
    for refused in (
        anna.post("/change", {"what": "x"}),
        anna.post("/change", {"what": "x", "csrf": ""}),
        anna.post("/change", {"what": "x", "csrf": csrf[:-1] + "é"}),
        anna.post("/change", {"what": "x"}, X_CSRF_Token=berta.get("/").text),
        anna.ask("POST", "/change", b"csrf=x", {}),
        anna.ask("DELETE", "/change"),
    ):
        assert refused.status == 403
        assert "X-CSRF-Token" in refused.text


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=B",
        "Multipart/Form-Data;boundary=B;charset=punycode",
        "application/json",
        "text/plain",
    ],
)
def test_only_plain_forms_are_read(app: ServedApp, kind: str) -> None:
    anna = app.visitor(Role.operator)
    headers = {"Content-Type": kind, "X-CSRF-Token": anna.get("/").text}
    form = b'--B\r\nContent-Disposition: form-data; name="what"\r\n\r\nx\r\n--B--\r\n'
    for person, path in ((anna, "/change"), (app.visitor(), "/login"), (app.visitor(), "/change")):
        refused = person.ask("POST", path, form, headers)
        assert (refused.status, "application/x-www-form-urlencoded" in refused.text) == (415, True)
    plain = {**headers, "Content-Type": "Application/X-WWW-Form-Urlencoded; charset=UTF-8"}
    assert anna.ask("POST", "/change", b"what=x", plain).text == "operator changed x"


def test_a_viewer_sends_only_small_forms(app: ServedApp) -> None:
    viewer = app.visitor(Role.viewer)
    large = {"csrf": viewer.get("/").text, "what": "x" * 100_000}
    assert viewer.post("/preferences", large).status == 413
    # Refused for the role, before anybody reads the form.
    assert "only an operator" in viewer.post("/change", large).text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "null"},
    ],
)
def test_pages_of_others_change_nothing(app: ServedApp, headers: dict[str, str]) -> None:
    anna = app.visitor(Role.operator)
    refused = anna.post("/change", {"what": "x"}, X_CSRF_Token=anna.get("/").text, **headers)
    assert refused.status == 403
    assert refused.text == "This request does not come from a page of this console."


def test_only_known_host_names(app: ServedApp) -> None:
    anna = app.visitor(Role.operator)
    assert anna.get("/who", Host="mq.example.com").status == 200
    assert anna.get("/who", Host="LOCALHOST:99").status == 200
    for path in ("/who", "/login", "/static/a.css", f"/?token={app.access.links.create(Role.viewer)}"):
        refused = anna.get(path, Host="evil.example")
        assert refused.status == 400
        assert "--host-name" in refused.text


def test_headers_of_every_answer(app: ServedApp) -> None:
    anna = app.visitor(Role.operator)
    answers = [
        anna.get("/who"),
        anna.get("/no-such-page"),
        anna.get("/fail"),
        anna.get("/who", Host="evil.example"),
        anna.post("/change"),
        anna.get("/login"),
        app.visitor().get("/"),
    ]
    assert [answer.status for answer in answers] == [200, 404, 500, 400, 403, 303, 303]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Server"] is None
        assert "Traceback" not in answer.text
    style = anna.get("/static/a.css")
    assert style.headers["Cache-Control"] == "no-cache"
    assert style.headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_large_bodies_are_refused(app: ServedApp) -> None:
    anna = app.visitor(Role.operator)
    csrf = anna.get("/").text
    form = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRF-Token": csrf}
    declared = {**form, "Content-Length": str(BODY_BYTES_MAX + 1)}
    refused = anna.ask("POST", "/change", b"what=x", declared)
    assert (refused.status, "8 MiB" in refused.text) == (413, True)
    whole = b"what=" + b"x" * (BODY_BYTES_MAX - 5)
    assert anna.ask("POST", "/size", whole, form).text == str(BODY_BYTES_MAX)
    assert _send_chunks(anna, form) == (400, CHUNKS_REFUSED)


@pytest.mark.parametrize("length", ["9" * 5_000, "x", "-1", "٣"])
def test_a_length_that_no_server_should_pass_on_is_refused(app: ServedApp, length: str) -> None:
    """Our HTTP server refuses such a length itself; the check does not depend on that."""
    checks = AccessMiddleware(PlainTextResponse(""), settings=app.access.settings, access=app.access)
    headers = [(b"host", b"127.0.0.1"), (b"content-length", length.encode())]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody reads the body")

    scope = {"type": "http", "method": "POST", "path": "/change", "query_string": b"", "headers": headers}
    asyncio.run(checks(scope, receive, send))
    assert sent[0]["status"] == 413
    assert b"8 MiB" in sent[1]["body"]


def _send_chunks(visitor: Visitor, headers: dict[str, str]) -> tuple[int, str]:
    """Posts a body without a length."""
    connection = visitor.connect()
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    connection.request(
        "POST", "/size", iter([b"what=x"]), {**headers, "Cookie": cookies}, encode_chunked=True
    )
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_signing_out_ends_the_session_and_its_streams(app: ServedApp) -> None:
    anna = app.visitor(Role.viewer)
    csrf, cookies = anna.get("/").text, dict(anna.cookies)
    connection = anna.connect()
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    connection.request("GET", "/events", headers={"Cookie": cookie})
    stream = connection.getresponse()
    assert stream.readline() == b"event: tick\n"
    assert anna.post("/logout").status == 403
    bye = anna.post("/logout", {"csrf": csrf})
    assert (bye.status, "You are signed out." in bye.text) == (200, True)
    assert anna.get("/who").status == 303
    anna.cookies = cookies
    assert anna.get("/who").status == 303
    # It ends: otherwise this would wait until the time-out of the connection.
    assert stream.read() is not None
    connection.close()


def test_sign_ins_are_in_the_audit_log(app: ServedApp) -> None:
    async def scenario() -> None:
        person = app.visitor(Role.viewer)
        session = app.access.sessions.find(person.cookies[app.access.cookie_name])
        assert session is not None
        (entry,) = [one for one in await app.access.audit.entries() if one.session == session.session]
        assert (entry.command, entry.target, entry.role) == ("sign in", "link", "viewer")
        assert (entry.address, entry.result) == ("127.0.0.1", "done")

    run(scenario)


def test_a_base_path_and_tls_are_in_cookies_and_addresses(tmp_path: Path) -> None:
    with served_app(tmp_path, base_path="/metaq", secure_cookies=True) as app:
        stranger = app.visitor()
        assert stranger.get("/topics").location == "/metaq/login?next=%2Ftopics"
        assert stranger.get("/x", HX_Request="true").headers["HX-Redirect"] == "/metaq/login"
        assert 'href="/metaq/static/' in stranger.get("/login").text
        click = stranger.get(f"/topics?token={app.access.links.create(Role.viewer)}")
        assert click.location == "/metaq/topics"
        again = f"/metaq/topics?token={app.access.links.create(Role.viewer)}"
        assert app.visitor().get(again).location == "/metaq/topics"
        cookie = click.headers["set-cookie"]
        assert cookie.startswith("__Secure-metaq-")
        assert all(part in cookie for part in ("Path=/metaq/", "Secure", "HttpOnly"))


def test_a_path_with_two_slashes_stays_on_this_host(app: ServedApp) -> None:
    token = app.access.links.create(Role.viewer)
    assert app.visitor().get(f"//evil.example/?token={token}").location == "/"


def test_cookies_of_others_are_not_read(app: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python needs seconds to take the escapes out of a long cookie."""
    unquoted: list[str] = []
    unquote = http.cookies._unquote  # type: ignore[attr-defined]
    monkeypatch.setattr(http.cookies, "_unquote", lambda text: unquoted.append(text) or unquote(text))
    anna = app.visitor(Role.viewer)
    own = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
    escapes = '"' + '\\"' * 5_000 + '"'
    for cookies in (f"other={escapes}; {own}", f"{own}; metaq-theme={escapes}", f'a="b c"; {own}'):
        unquoted.clear()
        assert app.visitor().ask("GET", "/who", headers={"Cookie": cookies}).text == "viewer viewer"
        assert own.partition("=")[2] in unquoted
        assert not any("\\" in text or "b c" in text for text in unquoted)


def test_an_address_with_many_fields_is_refused_unread(
    app: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = datastructures.parse_qsl
    monkeypatch.setattr(
        datastructures,
        "parse_qsl",
        lambda text, **options: parsed.append(len(text)) or parse(text, **options),
    )
    stranger = app.visitor()
    assert stranger.get("/login?" + "a&" * 1_999 + "a").status == 200
    assert max(parsed) == 3_999
    refused = stranger.get("/login?" + "a&" * 2_000 + "a")
    assert (refused.status, max(parsed)) == (400, 3_999)
    assert "more than 2000 fields" in refused.text
